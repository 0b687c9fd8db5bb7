"""Import TensorFlow models: a .tflite file with LiteRT as reference, or a zipped SavedModel.

A .tflite file does not need TensorFlow. A SavedModel is run and converted to .tflite in a tool environment.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    FixedSpec,
    NoOnnxError,
    PreparedRun,
    Runner,
    SourceDescription,
    TensorSpec,
    Variant,
    input_positions,
    no_fixed_inputs,
    open_names,
)
from tvmflow.frontends.tensorflow.custom_operators import replace_custom_operators
from tvmflow.frontends.tensorflow.tflite_files import read_tflite
from tvmflow.frontends.tensorflow.tflite_graph import Subgraph, inline_composites, read_subgraphs
from tvmflow.frontends.tool_variants import tool_variants
from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Graph, TensorKind, read_graph
from tvmflow.support.errors import ModelFileError, first_line
from tvmflow.toolchain.environments import ToolProcess, run_tool

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

MAX_UNPACKED_BYTES = 8 << 30


class TfliteInput:
    """An input of the file (detail: LiteRT's) with its description in params.yaml."""

    def __init__(self, detail: dict[str, Any], spec: TensorSpec) -> None:
        self.detail, self.spec, self.dtype = detail, spec, np.dtype(detail["dtype"])
        self.channels_first = _is_channels_first(tuple(int(d) for d in detail["shape"]), spec.shape)
        self.is_quantized = self.dtype.name in ("int8", "uint8", "int16") and spec.dtype == "float32"
        if not self.is_quantized and self.dtype.name != spec.dtype:
            raise ModelFileError(
                f"input {spec.name} of the model is {self.dtype.name}",
                f"{spec.dtype}, as in params.yaml",
                "correct input.dtype in params.yaml",
            )

    def in_file(self, x: Array) -> Array:
        """Return a value of this input in the file's layout and type."""
        value = np.asarray(x.transpose(0, 2, 3, 1) if self.channels_first else x, order="C")
        if not self.is_quantized:
            return value
        scale, zero = self.detail["quantization"]
        limits = np.iinfo(self.dtype)
        return np.asarray(np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(self.dtype))

    def in_relax(self, builder: Any, value: Any) -> Any:
        """Emit the same conversion for a Relax value."""
        from tvm import relax

        if self.channels_first:
            value = builder.emit(relax.op.permute_dims(value, [0, 2, 3, 1]))
        if self.is_quantized:
            scale, zero = self.detail["quantization"]
            constants = relax.const(scale, "float32"), relax.const(zero, self.dtype.name)
            value = builder.emit(relax.op.quantize(value, *constants, out_dtype=self.dtype.name))
        return value


def _plain_name(detail: dict[str, Any]) -> str:
    """Return the name of a tensor without the exporter's decoration."""
    return str(detail["name"]).removeprefix("serving_default_").split(":")[0]


class TfliteModel:
    """A .tflite model; quantized inputs and outputs are converted from and to float32.

    Images are channels-last in the file. An input described as channels-first is transposed, and its kernels are
    channels-first after import.
    """

    def __init__(self, path: Path, inputs: tuple[TensorSpec, ...], fixed: tuple[FixedSpec, ...] = ()) -> None:
        self.path = path
        self.content, self.graph = read_graph_of(path)
        from tvmflow.frontends.tensorflow.operator_table import check_operators  # loads TVM

        check_operators(self.graph.operators)
        self.interpreter = self._interpreter()
        details = self.interpreter.get_input_details()
        by_name = {_plain_name(detail): detail for detail in details}
        names = open_names(path.name, [_plain_name(detail) for detail in details], fixed)
        self.order = input_positions(path.name, names, inputs)
        self.inputs = [TfliteInput(by_name[names[index]], spec) for index, spec in zip(self.order, inputs, strict=True)]
        self.fixed = {}
        for spec in fixed:
            part = TfliteInput(by_name[spec.name], spec)
            self.fixed[int(part.detail["index"])] = part.in_file(spec.value)
        self.outputs = self.interpreter.get_output_details()

    def run(self, *inputs: Array) -> Arrays:
        self._set(inputs)
        self.interpreter.invoke()
        return self._outputs()

    def _outputs(self) -> Arrays:
        return tuple(_dequantize(self.interpreter.get_tensor(output["index"]), output) for output in self.outputs)

    def output_names(self) -> tuple[str, ...]:
        return tuple(_plain_name(output) for output in self.outputs)

    def other_roundings(self) -> Iterator[Runner]:
        from ai_edge_litert.interpreter import OpResolverType

        for kernels in (OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.BUILTIN_REF):
            yield self._with(self._interpreter(kernels=kernels))

    def _with(self, interpreter: Any) -> TfliteModel:
        model = TfliteModel.__new__(TfliteModel)
        model.__dict__ |= self.__dict__ | {"interpreter": interpreter}
        return model

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        model = self._with(self._interpreter(keep=True))
        model._set(inputs)
        model.interpreter.invoke()
        details = {detail["index"]: detail for detail in model.interpreter.get_tensor_details()}
        outputs = (output for operator in self.graph.operators for output in operator.outputs)
        for output in (output for output in outputs if output.index in details):
            value = model.interpreter.get_tensor(output.index)
            if value.dtype.kind in "fiu" and value.size > 1:
                yield output.name, _dequantize(value, details[output.index])

    def _set(self, inputs: Sequence[Array]) -> None:
        for part, x in zip(self.inputs, inputs, strict=True):
            try:
                self.interpreter.set_tensor(part.detail["index"], part.in_file(x))
            except ValueError as error:
                raise ModelFileError(
                    f"the model rejects an input of shape {list(x.shape)}: {first_line(error)}",
                    f"input.shape {part.detail['shape'].tolist()}, or the same with channels first",
                    "correct input.shape in params.yaml",
                ) from error
        for index, value in self.fixed.items():
            self.interpreter.set_tensor(index, value)

    def use_threads(self, threads: int) -> None:
        self.interpreter = self._interpreter(threads)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        """Return the single variant: LiteRT uses XNNPACK where possible and keeps the inputs."""

        def prepare() -> PreparedRun:
            self._set(inputs)
            return PreparedRun(self.interpreter.invoke, lambda _: self._outputs())

        return (Variant("LiteRT, XNNPACK", prepare),)

    def _interpreter(self, threads: int = 2, keep: bool = False, kernels: Any = None) -> Any:
        """Return LiteRT's interpreter. keep: all tensors. kernels: an OpResolverType; None: the fastest."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        try:
            interpreter = Interpreter(
                model_content=self.content,
                num_threads=threads,
                experimental_op_resolver_type=OpResolverType.AUTO if kernels is None else kernels,
                experimental_preserve_all_tensors=keep,
            )
            interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise ModelFileError(
                f"{self.path.name} cannot be loaded by LiteRT: {first_line(error)}",
                "a whole .tflite file with static shapes",
                "convert the model again",
            ) from error
        return interpreter

    def to_relax(self) -> Any:
        from tvm import relax

        from tvmflow.frontends.tensorflow.tflite_import import import_tflite

        return relax.transform.CanonicalizeBindings()(_float_ends(import_tflite(self.graph, self.fixed), self))

    def to_onnx(self, path: Path) -> None:
        raise NoOnnxError(f"no exporter writes {path.name} from TFLite models")


def read_graph_of(path: Path) -> tuple[bytes, Subgraph]:
    """Return a checked file and its graph, without custom and composite operators that others replace."""
    content = replace_custom_operators(read_tflite(path))
    return content, inline_composites(read_subgraphs(content))


class SavedModel(TfliteModel):
    """A SavedModel: outputs come from TensorFlow itself, the graph from its conversion to .tflite."""

    def __init__(self, folder: Path, description: SourceDescription) -> None:
        self.folder, spec = folder, description.only_input
        converted = folder.parent / "model.tflite"
        run_tool("tensorflow", ["convert", str(folder), str(converted)])
        super().__init__(converted, (spec,))
        self._process: ToolProcess | None = None
        self._threads: int | None = None

    def run(self, *inputs: Array) -> Arrays:
        return (self._oracle().arrays("run", self._in_file(inputs))[0][1],)

    def other_roundings(self) -> Iterator[Runner]:
        yield from ()  # LiteRT's kernels would compare the conversion, too

    def use_threads(self, threads: int) -> None:
        self._process, self._threads = None, threads

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        return tool_variants(self._oracle(), ("concrete function", "frozen function", "XLA"), self._in_file(inputs))

    def _in_file(self, inputs: Sequence[Array]) -> Array:
        (x,) = inputs
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1) if self.inputs[0].channels_first else x)

    def _oracle(self) -> ToolProcess:
        if self._process is None:
            self._process = ToolProcess("tensorflow", [str(self.folder)], self._threads)
        return self._process


def load(folder: Path, description: SourceDescription) -> TfliteModel:
    """Read and check a .tflite file, or unpack and convert a SavedModel. Raises ModelFileError."""
    path = folder / description.weights_file
    if path.suffix == ".tflite":
        return TfliteModel(path, description.inputs, description.fixed)
    if description.fixed:
        raise no_fixed_inputs("a SavedModel", description)
    unpacked = Path(tempfile.mkdtemp(prefix="tvmflow-savedmodel-"))
    try:
        model = SavedModel(_unpack(path, unpacked), description)
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
    models = sorted((folder / "model").rglob("saved_model.pb"))
    if len(models) != 1:
        raise ModelFileError(f"{path.name} contains {len(models)} saved_model.pb files", "one SavedModel folder")
    return models[0].parent


def _is_channels_first(in_file: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    if in_file == expected:
        return False
    if len(in_file) == 4 and expected == (in_file[0], in_file[3], in_file[1], in_file[2]):
        return True
    raise ModelFileError(
        f"the model takes an input of shape {list(in_file)}",
        f"input.shape {list(expected)}, or the same with channels last",
        "correct input.shape in params.yaml",
    )


def _is_quantized(detail: dict[str, Any]) -> bool:
    return np.dtype(detail["dtype"]) != np.float32 and bool(detail["quantization"][0])


def _dequantize(value: Array, detail: dict[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not _is_quantized(detail):
        return np.asarray(value)
    return np.asarray((value.astype(np.float32) - np.float32(zero)) * np.float32(scale))


def _float_ends(module: IRModule, model: TfliteModel) -> Any:
    """Wrap the imported `main`: inputs as described, in their order, and float32 for quantized outputs."""
    import tvm
    from tvm import relax

    inner = read_graph(module)
    builder = relax.BlockBuilder()
    described = {
        name: TensorKind(part.spec.shape, part.spec.dtype)
        for name, part in zip((list(inner.inputs)[index] for index in model.order), model.inputs, strict=True)
    }

    def body(parameters: dict[str, Any]) -> list[Any]:
        values = {
            name: part.in_relax(builder, parameters[name]) for name, part in zip(described, model.inputs, strict=True)
        }
        outputs = _inline(builder, inner, values)
        return [_in_float(builder, value, output) for value, output in zip(outputs, model.outputs, strict=True)]

    return tvm.IRModule(build_main(builder, Graph(described, inner.steps), body).functions, attrs=module.attrs)


def _in_float(builder: Any, value: Any, output: dict[str, Any]) -> Any:
    from tvm import relax

    if not _is_quantized(output):
        return value
    scale, zero = output["quantization"]
    dtype = np.dtype(output["dtype"]).name
    return builder.emit(relax.op.dequantize(value, relax.const(scale, "float32"), relax.const(zero, dtype)))


def _inline(builder: Any, graph: Graph, values: dict[str, Any]) -> list[Any]:
    """Emit the steps of a graph again with other inputs; return its outputs."""
    for step in graph.steps:
        expression = (
            constant(step.args[0], step.dtype) if step.op == "constant" else rebuild_call(step, values.__getitem__)
        )
        values[step.name] = builder.emit(expression, step.name)
    return [values[name] for name in graph.outputs]
