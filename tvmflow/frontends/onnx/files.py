"""Read an ONNX model and find its external data files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvmflow.support.errors import ModelFileError
from tvmflow.support.plain_files import is_plain

MAX_ONNX_BYTES = 2 << 30  # protobuf's own limit
MAX_EXTERNAL_BYTES = 8 << 30
_NAME = re.compile(r"[A-Za-z0-9_][\w .+@=()-]{0,199}", re.ASCII)
# Names of other files of the stages and of the recipe key.
_RESERVED = frozenset(
    """
    source.json labels.json calibration.npz evaluation.npz golden.npz edges.npz conditioning.json record.json
    network.py model.onnx model.json weights.safetensors reference.npz import.json peer.onnx weights network dataset
    labels
    """.split()
)


def read_proto(path: Path) -> Any:
    """Return the ModelProto without its external data. Raises ModelFileError."""
    import onnx

    if path.stat().st_size > MAX_ONNX_BYTES:
        raise ModelFileError(f"{path.name} holds {path.stat().st_size} bytes", f"at most {MAX_ONNX_BYTES}")
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf and onnx each have their own
        raise damaged_file_error(path, error) from error


def damaged_file_error(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"{path.name} is not a whole, valid ONNX file: {' '.join(str(error).split())[:300] or type(error).__name__}",
        "an ONNX model, with its external data (if any) next to it",
    )


def external_files(path: Path) -> dict[str, Path]:
    """Return name -> file of a model's external data. Raises ModelFileError unless each is a complete file
    beside it.
    """
    return files_beside(path, external_ends(str(path)))


def external_ends(path: str) -> dict[str, int]:
    """Return name -> end in bytes of each file of external data, from the model alone. Raises ModelFileError."""
    ends: dict[str, int] = {}
    for tensor in _tensors(read_proto(Path(path))):
        try:
            place = _location(tensor)
            end = int(place.get("offset", "0")) + _size(tensor, place.get("length"))
        except ValueError as error:
            raise _invalid_location(Path(path), f"for tensor {tensor.name[:100]!r}: {error}") from error
        ends[place["location"]] = max(end, ends.get(place["location"], 0))
    return ends


def files_beside(path: Path, ends: Mapping[str, int]) -> dict[str, Path]:
    """Return the files of these names beside a model. Raises ModelFileError unless each reaches to its end."""
    files = {name: path.parent / name for name in ends}
    for name, file in files.items():
        if not is_plain(file):
            raise ModelFileError(
                f"no {name} next to {path.name}", "the external data of the model", "copy it there too"
            )
        if ends[name] > (size := file.stat().st_size):
            raise _invalid_location(path, f"of {name}: it ends at byte {ends[name]}, but the file has {size}")
    total = sum(file.stat().st_size for file in files.values())
    if total > MAX_EXTERNAL_BYTES:
        raise ModelFileError(f"the external data of {path.name} holds {total} bytes", f"at most {MAX_EXTERNAL_BYTES}")
    return files


def _invalid_location(path: Path, what: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name} has an invalid location {what}", "plain files next to the model", "export the model again"
    )


def subgraphs_of(attribute: Any) -> list[Any]:
    """Return the graphs that an attribute of a node holds."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def is_name(text: str) -> bool:
    """Return whether external data may be in a file of this name."""
    return _NAME.fullmatch(text) is not None and text.lower() not in _RESERVED


def _location(tensor: Any) -> dict[str, str]:
    """Return location, offset and length of a tensor. Raises ValueError for entries that readers may interpret
    differently.
    """
    entries = [(entry.key, entry.value) for entry in tensor.external_data]
    place = dict(entries)
    if len(place) < len(entries) or not {"location"} <= set(place) <= {"location", "offset", "length", "checksum"}:
        raise ValueError(f"entries {[key for key, _ in entries][:10]}")
    if not is_name(place["location"]):
        raise ValueError(f"location {place['location'][:100]!r}")
    if any(not re.fullmatch("[0-9]{1,18}", place.get(key, "0")) for key in ("offset", "length")):
        raise ValueError(f"offset {place.get('offset')!r}, length {place.get('length')!r}")
    return place


def _size(tensor: Any, length: str | None) -> int:
    """Return the number of bytes of a tensor. Raises ValueError if `length` differs."""
    import onnx

    if tensor.data_type not in onnx.helper.get_all_tensor_dtypes() or tensor.data_type == onnx.TensorProto.STRING:
        raise ValueError(f"data of type {tensor.data_type}")
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"a shape of {list(tensor.dims)}")
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    count = math.prod(tensor.dims)
    bits = next((bits for kind, bits in (("INT4", 4), ("FLOAT4", 4), ("INT2", 2)) if kind in name), 0)
    size: int = (
        -(-count * bits // 8) if bits else count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    )
    if length is not None and int(length) != size:
        raise ValueError(f"{length} bytes for {list(tensor.dims)} of {name}, which takes {size}")
    return size


def _tensors(model: Any) -> list[Any]:
    """Return all external tensors of a model, including those in subgraphs, functions and training graphs."""
    import onnx

    tensors: list[Any] = []
    graphs = [model.graph, *(g for info in model.training_info for g in (info.initialization, info.algorithm))]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            tensors += graph.initializer
            tensors += [part for sparse in graph.sparse_initializer for part in (sparse.values, sparse.indices)]
            continue
        for attribute in nodes.pop().attribute:
            tensors += [*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors]
            sparse_ones = [
                *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
                *attribute.sparse_tensors,
            ]
            tensors += [part for sparse in sparse_ones for part in (sparse.values, sparse.indices)]
            graphs += subgraphs_of(attribute)
    return [
        tensor for tensor in tensors if tensor.data_location == onnx.TensorProto.EXTERNAL or len(tensor.external_data)
    ]
