"""TensorFlow in: a .tflite file (its own runtime, LiteRT, is the oracle), or a SavedModel in a .zip.

No TensorFlow is needed for .tflite. A SavedModel is run and converted to .tflite in a tool environment.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.errors import ModelFileError, first_line, last_line
from tvmflow.frontends.exported import unsupported
from tvmflow.frontends.source_model import Array, NoOnnxError, SourceDescription
from tvmflow.frontends.tflite_files import flatbuffer, read_tflite
from tvmflow.sources.tool_environments import ToolProcess, run_tool

MAX_UNPACKED_BYTES = 8 << 30


class TfliteModel:
    """One input and one output; 8-bit ones are converted, so that the model takes and gives float32.

    The input is channels-last in the file. A model that is described with a channels-first input.shape gets its input
    transposed in front, and its kernels are channels-first after import.
    """

    in_process = True

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape
        self.content = read_tflite(path)
        self.interpreter = _interpreter(path)
        self.input, self.output = (
            _one(self.interpreter.get_input_details()),
            _one(self.interpreter.get_output_details()),
        )
        self.channels_first = _is_channels_first(tuple(int(d) for d in self.input["shape"]), shape)

    def run(self, x: Array) -> Array:
        self._set(x)
        self.interpreter.invoke()
        return _dequantized(self.interpreter.get_tensor(self.output["index"]), self.output)

    def layers(self, x: Array) -> Iterator[tuple[str, Array]]:
        model = TfliteModel.__new__(TfliteModel)
        model.__dict__ |= self.__dict__ | {"interpreter": _interpreter(self.path, keep=True)}
        model._set(x)
        model.interpreter.invoke()
        details = {detail["index"]: detail for detail in model.interpreter.get_tensor_details()}
        graph = flatbuffer(self.content).Subgraphs(0)
        for at in range(graph.OperatorsLength()):
            operator = graph.Operators(at)
            for index in (int(operator.Outputs(i)) for i in range(operator.OutputsLength())):
                value = model.interpreter.get_tensor(index)
                if value.dtype.kind in "fiu" and value.size > 1:
                    yield str(details[index]["name"]), _dequantized(value, details[index])

    def _set(self, x: Array) -> None:
        value = np.ascontiguousarray(x.transpose(0, 2, 3, 1) if self.channels_first else x)
        if self.input["dtype"] != np.float32:
            scale, zero = self.input["quantization"]
            limits = np.iinfo(self.input["dtype"])
            value = np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(self.input["dtype"])
        try:
            self.interpreter.set_tensor(self.input["index"], value)
        except ValueError as error:
            raise ModelFileError(
                f"the model refuses an input of shape {list(x.shape)}: {first_line(error)}",
                f"input.shape {self.input['shape'].tolist()}, or the same with channels first", "correct input.shape in params.yaml",
            ) from error  # fmt: skip

    def use_threads(self, threads: int) -> None:
        self.interpreter = _interpreter(self.path, threads)

    def to_relax(self) -> Any:
        from tvm import relax
        from tvm.relax.frontend.tflite import from_tflite

        try:
            module = from_tflite(flatbuffer(self.content))
        except Exception as error:
            if type(error).__name__ in ("OpNotImplemented", "NotImplementedError", "KeyError"):
                raise unsupported("TFLite", str(error)) from error
            raise ModelFileError(
                f"TVM cannot import {self.path.name}: {last_line(error)}", "a float or int8 model"
            ) from error
        return relax.transform.CanonicalizeBindings()(_float_ends(module, self))

    def to_onnx(self, path: Path) -> None:
        raise NoOnnxError(f"no exporter writes {path.name} from TFLite models")


class SavedModel(TfliteModel):
    """A SavedModel: outputs come from TensorFlow itself, the graph from its conversion to .tflite."""

    in_process = False

    def __init__(self, folder: Path, shape: tuple[int, ...]) -> None:
        self.folder = folder
        converted = folder.parent / "model.tflite"
        run_tool("tensorflow", ["convert", str(folder), str(converted)])
        super().__init__(converted, shape)
        self._process: ToolProcess | None = None

    def run(self, x: Array) -> Array:
        if self._process is None:
            self._process = ToolProcess("tensorflow", [str(self.folder)])
        value = np.ascontiguousarray(x.transpose(0, 2, 3, 1) if self.channels_first else x)
        return self._process.arrays("run", value)[0][1]


def load(folder: Path, description: SourceDescription) -> TfliteModel:
    """Read and check a .tflite file, or unpack and convert a SavedModel. Raises ModelFileError."""
    path = folder / description.weights_file
    if path.suffix == ".tflite":
        return TfliteModel(path, description.input_shape)
    unpacked = Path(tempfile.mkdtemp(prefix="tvmflow-savedmodel-"))
    try:
        model = SavedModel(_unpack(path, unpacked), description.input_shape)
    except BaseException:
        shutil.rmtree(unpacked, ignore_errors=True)
        raise
    weakref.finalize(model, shutil.rmtree, unpacked, ignore_errors=True)
    return model


def _unpack(path: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MAX_UNPACKED_BYTES:
                raise ModelFileError(f"{path.name} unpacks to {size} bytes", f"at most {MAX_UNPACKED_BYTES}")
            archive.extractall(folder / "model")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ModelFileError(f"{path.name} cannot be unpacked: {error}", "a .zip of a SavedModel folder") from error
    found = sorted((folder / "model").rglob("saved_model.pb"))
    if len(found) != 1:
        raise ModelFileError(f"{path.name} holds {len(found)} files saved_model.pb", "one SavedModel folder")
    return found[0].parent


def _interpreter(path: Path, threads: int = 2, keep: bool = False) -> Any:
    from ai_edge_litert.interpreter import Interpreter

    try:
        interpreter = Interpreter(str(path), num_threads=threads, experimental_preserve_all_tensors=keep)
        interpreter.allocate_tensors()
    except (ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{path.name} cannot be loaded by LiteRT: {first_line(error)}", "a whole .tflite file of static shapes",
            "convert the model again",
        ) from error  # fmt: skip
    return interpreter


def _one(details: list[dict[str, Any]]) -> dict[str, Any]:
    if len(details) != 1:
        raise ModelFileError(f"the model has {len(details)} inputs or outputs", "one of each")
    return details[0]


def _is_channels_first(in_file: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    if in_file == wanted:
        return False
    if len(in_file) == 4 and wanted == (in_file[0], in_file[3], in_file[1], in_file[2]):
        return True
    raise ModelFileError(
        f"the model takes an input of shape {list(in_file)}", f"input.shape {list(wanted)}, or the same with channels last",
        "correct input.shape in params.yaml",
    )  # fmt: skip


def _dequantized(value: Array, detail: dict[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if value.dtype == np.float32 or not scale:
        return np.asarray(value, np.float32)
    return np.asarray((value.astype(np.float32) - np.float32(zero)) * np.float32(scale))


def _float_ends(module: Any, model: TfliteModel) -> Any:
    """Wrap the imported `main`: float32 in (channels first where asked for), float32 out."""
    import tvm
    from tvm import relax

    inner = module["main"]
    parameter = relax.Var("input", relax.TensorType(model.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [parameter]):
        with builder.dataflow():
            value: Any = parameter
            if model.channels_first:
                value = builder.emit(relax.op.permute_dims(value, [0, 2, 3, 1]))
            if model.input["dtype"] != np.float32:
                scale, zero = model.input["quantization"]
                dtype = np.dtype(model.input["dtype"]).name
                value = builder.emit(
                    relax.op.quantize(value, relax.const(scale, "float32"), relax.const(zero, dtype), out_dtype=dtype)
                )
            value = builder.emit(_inlined(builder, inner, value))
            if model.output["dtype"] != np.float32:
                scale, zero = model.output["quantization"]
                dtype = np.dtype(model.output["dtype"]).name
                value = builder.emit(
                    relax.op.dequantize(value, relax.const(scale, "float32"), relax.const(zero, dtype))
                )
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    return tvm.IRModule(builder.get().functions, attrs=module.attrs)


def _inlined(builder: Any, function: Any, argument: Any) -> Any:
    """Emit the body of a one-parameter function again, its parameter replaced."""
    import tvm

    from tvmflow.ir.emit import call_again, constant
    from tvmflow.ir.graph import read_graph

    graph = read_graph(tvm.IRModule({"main": function}))
    values = {graph.input_name: argument}
    for step in graph.steps:
        expression = (
            constant(step.args[0], step.dtype) if step.op == "constant" else call_again(step, values.__getitem__)
        )
        values[step.name] = builder.emit(expression, step.name)
    return values[graph.output]
