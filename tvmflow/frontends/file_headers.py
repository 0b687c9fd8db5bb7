"""Read the header of a model file without its framework: format and inputs, in a fraction of a second.

Parses by allowlist and trusts nothing; to be called in a sandbox, like every reader of a user's file.
"""

from __future__ import annotations

import io
import itertools
import json
import pickletools
import re
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvmflow.frontends.archives import MAX_ENTRIES
from tvmflow.frontends.tensorflow.saved_models import GRAPH, is_saved_model
from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError, UsageError, first_line

MAX_HEADER_BYTES = 256 << 20
_TORCH_DTYPES = tuple(
    """
    unknown uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16
    """.split()
)  # torch/_export/serde/schema.py, ScalarType
_TFLITE_DTYPES = {0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8"}

_OLD_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.save's magic number, as a pickle
_EXTRAS = {"tflite": "tensorflow", "onnx": "onnx", "h5py": "keras"}  # of pip, by the package that a reader imports


@dataclass(frozen=True)
class Input:
    """shape: -1 for a dynamic size, None if unknown; dtype: "" if unknown; high: rows of the table that integers
    index; axes: names of the sizes, "" for none.
    """

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    high: int | None = None
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Header:
    """frameworks: those that read such a file. inputs: None if the header does not contain them. channels_last: shapes
    are (N, H, W, C), whereas params.yaml uses (N, C, H, W). is_whole: not only weights. pickled: the class of a pickled
    module, "" for none.
    """

    kind: str
    frameworks: tuple[str, ...]
    inputs: tuple[Input, ...] | None = None
    channels_last: bool = False
    is_whole: bool = True
    pickled: str = ""


def read_header(path: str, size: int) -> dict[str, Any] | None:
    """Return a Header as plain data, None for an unknown format. Raises ModelFileError for a damaged file, UsageError
    where the package that reads such files is missing.

    size: largest file in bytes that may be read completely.
    """
    file = Path(path)
    with file.open("rb") as opened:
        start = opened.read(16)
    try:
        for matches, read in _FORMATS:
            if matches(file, start):
                if file.stat().st_size > size:
                    return None
                header = read(file)
                return asdict(header) if header is not None else None
    except (ModelFileError, UnsupportedOperatorError):
        raise
    except Exception as error:  # each reader has its own
        if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
            raise UsageError(
                f"the package {error.name} is not installed, which reads {file.name}",
                f"the packages of {_EXTRAS[error.name]}",
                f"pip install 'tvmflow[{_EXTRAS[error.name]}]'",
            ) from None
        raise ModelFileError(
            f"{file.name} is damaged: {type(error).__name__}: {first_line(error)}",
            "a whole model file",
            "export the model again",
        ) from error
    return None


def _zip(file: Path) -> Header | None:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        programs = [name for name in names if re.search(r"(^|/)models/[^/]+\.json$", name)]
        if programs:
            return Header("an exported PyTorch program", ("torch",), _program_inputs(_json_in(archive, programs[0])))
        if any("/code/" in name for name in names):
            return Header("a TorchScript file", ("torch",))
        if pickles := [name for name in names if name.endswith("/data.pkl")]:
            pickled = _class_in(_bytes_in(archive, pickles[0]))
            return Header("a PyTorch state dict", ("torch",), is_whole=False, pickled=pickled)
        if "config.json" in names:
            return _keras("a Keras model", _json_in(archive, "config.json"))
        if any(name.split("/")[-1] == "saved_model.pb" for name in names):
            return Header("a SavedModel", ("tensorflow",))
    return None


def _tar(file: Path) -> Header | None:
    with tarfile.open(file, "r:gz") as archive:
        entries = itertools.islice(archive, MAX_ENTRIES)
        return next(
            (Header("a SavedModel", ("tensorflow",)) for one in entries if one.name.split("/")[-1] == GRAPH), None
        )


def _tensorflow_graph(file: Path) -> Header:
    return Header("a SavedModel" if is_saved_model(file) else "a frozen graph of TensorFlow", ("tensorflow",))


def _old_pickle(file: Path) -> Header:
    """Read a file of torch.save before PyTorch 1.6: a few pickles in a row."""
    data = file.read_bytes()
    return Header("a PyTorch state dict of an old PyTorch", ("torch",), is_whole=False, pickled=_class_in(data))


_OF_WEIGHTS = re.compile(
    r"(collections|torch(\._utils|\._tensor|\.storage|\.nn\.parameter)?|numpy\S*|_codecs|builtins) \S+"
)


def _class_in(data: bytes) -> str:
    """Return the first class in a pickle that is not of tensors, "" for none. Nothing is executed.

    Of several pickles in a row all are read.
    """
    file, texts = io.BytesIO(data), list[str]()
    while file.tell() < len(data):
        try:
            for code, argument, _ in pickletools.genops(file):
                if code.name == "STACK_GLOBAL" and len(texts) > 1:
                    argument = " ".join(texts[-2:])
                elif isinstance(argument, str) and code.name != "GLOBAL":
                    texts.append(argument)
                if code.name in ("GLOBAL", "STACK_GLOBAL") and not _OF_WEIGHTS.fullmatch(str(argument)):
                    module, _, name = str(argument).partition(" ")
                    return f"{name} of {module}"[:200]
        except ValueError:  # what follows the pickles of an old file: the storages
            break
    return ""


def _json_in(archive: zipfile.ZipFile, name: str) -> Any:
    return json.loads(_bytes_in(archive, name))


def _bytes_in(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"{name} in {archive.filename} unpacks to too many bytes", f"at most {MAX_HEADER_BYTES} bytes"
        )
    return archive.read(name)


def _program_inputs(program: Any) -> tuple[Input, ...] | None:
    graph = program["graph_module"]["graph"]
    names = [
        spec["user_input"]["arg"].get("as_tensor", {"name": "(no tensor)"})["name"]
        for spec in program["graph_module"]["signature"]["input_specs"]
        if "user_input" in spec
    ]
    inputs = []
    for name in names:
        value = graph["tensor_values"].get(name, {"sizes": None, "dtype": 0})
        sizes = value["sizes"]
        shape = None if sizes is None else tuple(size["as_int"] if "as_int" in size else -1 for size in sizes)
        known = 0 <= value["dtype"] < len(_TORCH_DTYPES)
        inputs.append(Input(name, shape, _TORCH_DTYPES[value["dtype"]] if known else ""))
    return tuple(inputs)


def _keras_inputs(model: Any) -> tuple[Input, ...] | None:
    layers = [layer for layer in model["config"].get("layers", []) if layer["class_name"] == "InputLayer"]
    inputs = []
    for layer in layers:
        config = layer["config"]
        shape = config.get("batch_shape") or config.get("batch_input_shape")
        dtype = config.get("dtype")
        sizes = None if shape is None else tuple(-1 if size is None else int(size) for size in shape)
        inputs.append(Input(str(config["name"]), sizes, dtype if isinstance(dtype, str) else ""))
    return tuple(inputs) or None


def _keras(kind: str, model: Any) -> Header:
    channels_last = '"channels_first"' not in json.dumps(model)
    return Header(kind, ("keras",), _keras_inputs(model), channels_last)


def _hdf5(file: Path) -> Header:
    import h5py

    with h5py.File(file, "r") as opened:
        config = opened.attrs.get("model_config")
    if config is None:
        return Header("an HDF5 file of Keras weights", ("keras",), is_whole=False)
    text = config.decode() if isinstance(config, bytes) else str(config)
    return _keras("an HDF5 file of Keras", json.loads(text))


def _tflite(file: Path) -> Header:
    """Read the inputs. Raises UnsupportedOperatorError that names all operators that are not imported."""
    import tflite

    from tvmflow.frontends.tensorflow.operator_table import check_operators
    from tvmflow.frontends.tensorflow.tflite_files import plain_name
    from tvmflow.frontends.tensorflow.tflite_states import read_file

    graph = tflite.Model.GetRootAsModel(file.read_bytes(), 0).Subgraphs(0)
    check_operators(read_file(file).graph.operators)
    inputs = []
    for index in graph.InputsAsNumpy():
        tensor = graph.Tensors(int(index))
        shape = tuple(int(tensor.Shape(axis)) for axis in range(tensor.ShapeLength()))
        name = plain_name(tensor.Name().decode(errors="replace"))
        inputs.append(Input(name, shape, _TFLITE_DTYPES.get(tensor.Type(), "")))
    return Header("a TFLite file", ("tensorflow",), tuple(inputs), channels_last=True)


def _safetensors(_file: Path) -> Header:
    return Header("a safetensors file of weights", ("torch",), is_whole=False)


def _mxnet(file: Path) -> Header | None:
    symbol = json.loads(file.read_bytes())
    return Header("an MXNet symbol", ("mxnet",)) if {"nodes", "arg_nodes"} <= symbol.keys() else None


def _onnx(file: Path) -> Header:
    import onnx

    from tvmflow.frontends.onnx.files import read_proto

    model = read_proto(file)
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        sizes = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim)
        dtype = onnx.TensorProto.DataType.Name(kind.elem_type).lower() if kind.elem_type else ""
        dtype, high = {"float": "float32", "double": "float64"}.get(dtype, dtype), None
        if dtype in ("int32", "int64"):
            high = _gathered_rows(model.graph, value.name, weights)
        axes = tuple(size.dim_param for size in kind.shape.dim)
        inputs.append(Input(value.name, sizes if kind.HasField("shape") else None, dtype, high, axes))
    return Header("an ONNX model", ("onnx",), tuple(inputs))


def _gathered_rows(graph: Any, name: str, weights: dict[str, tuple[int, ...]]) -> int | None:
    """Return the rows of the smallest constant table that an input gathers from, directly or after a cast; None without
    one.
    """
    names, rows = {name}, []
    for node in graph.node:  # in topological order
        if node.op_type in ("Cast", "Identity") and node.input[0] in names:
            names.add(node.output[0])
        elif node.op_type == "Gather" and node.input[1] in names and node.input[0] in weights:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            rows.append(weights[node.input[0]][axis])
    return min(rows, default=None)


_FORMATS: tuple[tuple[Callable[[Path, bytes], bool], Callable[[Path], Header | None]], ...] = (
    (lambda _file, start: start.startswith(b"PK\x03\x04"), _zip),
    (lambda _file, start: start.startswith(_OLD_PICKLE), _old_pickle),
    (lambda _file, start: start.startswith(b"\x89HDF\r\n"), _hdf5),
    (lambda _file, start: start[4:8] == b"TFL3", _tflite),
    (lambda _file, start: start[8:9] == b"{" and int.from_bytes(start[:8], "little") < MAX_HEADER_BYTES, _safetensors),
    (lambda _file, start: start.lstrip()[:1] == b"{", _mxnet),
    (lambda file, start: file.suffix == ".pb", _tensorflow_graph),
    (lambda _file, start: start[:2] == b"\x1f\x8b", _tar),
    (lambda file, start: file.suffix == ".onnx" or start[:1] == b"\x08", _onnx),
)
