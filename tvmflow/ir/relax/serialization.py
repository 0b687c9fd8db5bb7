"""Store a Relax module as two files: its IR as JSON, its weights as safetensors.

TVM's own JSON contains every tensor as base64. The tensors are taken out and put back here, so that the IR can be read
and compared, and weights are stored once, as bytes, in a format that cannot contain code. Meanwhile a scalar with the
tensor's number replaces each: TVM takes a second for the base64 of 45 MB, each way. A tensor in the JSON is: magic u64,
reserved u64, device (i32, i32), ndim i32, dtype (code u8, bits u8, lanes u16), shape i64 x ndim, size i64, data. The
same network at smaller sizes may be stored with it: their IR in the same JSON as "others", equal tensors once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tvmflow.ir.relax.allowed_ir import check_ir
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.support.errors import ModelFileError, StoreError, TvmflowError, last_line

IR_NAME, WEIGHTS_NAME = "model.json", "weights.safetensors"
_MAGIC = 0xDD5E40F096B4A13F
_HEAD = struct.Struct("<QQiiiBBH")
_DTYPES = {
    (2, 32): np.float32,
    (2, 16): np.float16,
    (2, 64): np.float64,
    (0, 8): np.int8,
    (0, 16): np.int16,
    (0, 32): np.int32,
    (0, 64): np.int64,
    (1, 8): np.uint8,
    (1, 16): np.uint16,
    (1, 32): np.uint32,
    (6, 8): np.bool_,
    (4, 16): ml_dtypes.bfloat16,
}
_CODES = {np.dtype(kind): code for code, kind in _DTYPES.items()}


def save_module(module: IRModule, folder: Path, others: Mapping[str, Any] | None = None) -> None:
    """Write `model.json` and `weights.safetensors` into a folder. others: label -> a module that shares weights with
    it.
    """
    from safetensors.numpy import save_file

    weights: dict[str, np.ndarray[Any, Any]] = {}
    known: dict[bytes, str] = {}
    graph = _graph_of(module, weights, known)
    if others:
        graph["others"] = {label: _graph_of(other, weights, known) for label, other in others.items()}
    (folder / IR_NAME).write_text(json.dumps(graph, separators=(",", ":")), encoding="utf-8")
    save_file(weights or {"none": np.zeros(1, np.uint8)}, folder / WEIGHTS_NAME)


def _graph_of(module: IRModule, weights: dict[str, np.ndarray[Any, Any]], known: dict[bytes, str]) -> dict[str, Any]:
    """Return a module's IR; add its tensors to the weights unless an earlier module has equal ones."""
    import tvm

    from tvmflow.ir.relax.tensors import replace_tensors

    tensors: list[np.ndarray[Any, Any]] = []

    def number_of(tensor: Any) -> Any:
        tensors.append(np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape)))
        return tvm.runtime.tensor(np.array(len(tensors) - 1, np.int64))

    small = replace_tensors(module, number_of)
    unknown = sorted({str(tensor.dtype) for tensor in tensors} - set(map(str, _CODES)))
    if unknown:
        raise ModelFileError(f"a tensor of {unknown[0]} in the IR", f"one of {sorted(map(str, _CODES))}")
    graph: dict[str, Any] = json.loads(tvm.ir.save_json(small))
    added: dict[bytes, str] = {}
    for node in graph["nodes"]:
        if node["type"] == "ffi.Tensor":
            array = tensors[int(_decode(base64.b64decode(node["data"])))]
            digest = hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).digest()
            if digest in known:
                node["data"] = known[digest]
                continue
            name = f"w{len(weights):05d}"
            if str(array.dtype) == "bfloat16":
                array, name = array.view(np.uint16), f"{name}.bfloat16"
            weights[name] = array
            node["data"] = added[digest] = name
    known.update(added)
    return graph


def load_module(folder: Path, *, is_packed: bool = False) -> Any:
    """Read a module that `save_module` wrote. Raises StoreError for another version of TVM, ModelFileError for damaged
    files and for IR that could do more than compute.

    is_packed: graph_pack wrote it, outside of any sandbox; it holds calls of devices and kernels with LLVM text.
    """
    with _damage_in(folder):
        graph, weights = _read(folder)
        return _module_of(graph, weights, folder, is_packed)


def load_others(folder: Path, *, is_packed: bool = False) -> dict[str, Any]:
    """Return label -> module of the other modules in the folder. Raises as `load_module`."""
    with _damage_in(folder):
        graph, weights = _read(folder)
        others = graph.get("others", {}).items()
        return {label: _module_of(other, weights, folder, is_packed) for label, other in others}


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    from safetensors.numpy import load_file

    return json.loads((folder / IR_NAME).read_text(encoding="utf-8")), load_file(folder / WEIGHTS_NAME)


@contextmanager
def _damage_in(folder: Path) -> Iterator[None]:
    """Convert what JSON, safetensors and TVM raise for files that nothing of ours wrote."""
    try:
        yield
    except TvmflowError:
        raise
    except Exception as error:
        raise ModelFileError(
            f"damaged IR in {folder}: {last_line(error)}", "the files that import_model wrote"
        ) from error


def _module_of(
    graph: dict[str, Any], weights: Mapping[str, np.ndarray[Any, Any]], folder: Path, is_packed: bool
) -> Any:
    import tvm

    from tvmflow.ir.relax.derived_types import check_types
    from tvmflow.ir.relax.recurrent import register_recurrent
    from tvmflow.ir.relax.tensors import replace_tensors

    register_recurrent()  # TVM reads calls of registered operators only
    arrays: list[np.ndarray[Any, Any]] = []
    for node in graph["nodes"]:
        if node["type"] == "ffi.Tensor":
            arrays.append(_named(node["data"], weights[node["data"]]))
            node["data"] = base64.b64encode(_encode(np.array(len(arrays) - 1, np.int64))).decode()
    made_by = graph.get("metadata", {}).get("tvm_version")
    if not is_packed:
        check_ir(graph)
    if made_by != tvm.__version__:
        raise StoreError(
            f"the IR in {folder} was written by TVM {made_by}", f"TVM {tvm.__version__}", "run the cell again"
        )
    module = tvm.ir.load_json(json.dumps({key: value for key, value in graph.items() if key != "others"}))
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    module = replace_tensors(module, lambda number: tensors[int(number.numpy())])
    if not is_packed:
        check_types(module)
    return module


def _named(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array stored as uint16 as bfloat16 if its name says so, since safetensors' numpy lacks the type."""
    return array.view(ml_dtypes.bfloat16) if name.endswith(".bfloat16") else array


def _decode(data: bytes) -> np.ndarray[Any, Any]:
    magic, _, _, _, ndim, code, bits, lanes = _HEAD.unpack_from(data)
    if magic != _MAGIC or lanes != 1 or (code, bits) not in _DTYPES:
        raise ModelFileError(f"a tensor of kind {(code, bits, lanes)} in the IR", f"one of {sorted(_DTYPES)}")
    shape = struct.unpack_from(f"<{ndim}q", data, _HEAD.size)
    offset = _HEAD.size + 8 * ndim + 8
    return np.frombuffer(data, _DTYPES[code, bits], offset=offset).reshape(shape).copy()


def _encode(array: np.ndarray[Any, Any]) -> bytes:
    code, bits = _CODES[array.dtype]
    head = _HEAD.pack(_MAGIC, 0, 1, 0, array.ndim, code, bits, 1)
    return head + struct.pack(f"<{array.ndim}q", *array.shape) + struct.pack("<q", array.nbytes) + array.tobytes()


def bytes_of(shape: Iterable[Any], dtype: Any) -> int:
    """Return the bytes of a tensor; extents and dtype may be TVM's own types."""
    return math.prod(int(size) for size in shape) * numpy_dtype(str(dtype)).itemsize
