"""Import TensorFlow models: a .tflite file with LiteRT as reference, a SavedModel, or a frozen graph.

A .tflite file does not need TensorFlow. The others are run by TensorFlow and converted to .tflite, in a tool
environment.
"""

from __future__ import annotations

import json
import struct
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    FixedSpec,
    NoOnnxError,
    Runner,
    SourceDescription,
    TensorSpec,
    Variant,
    no_fixed_inputs,
)
from tvmflow.frontends.tensorflow.litert import LitertModel, TfliteInput, is_other_float, is_quantized
from tvmflow.frontends.tensorflow.saved_models import unpacked_model
from tvmflow.frontends.tensorflow.tflite_states import read_file
from tvmflow.frontends.tool_variants import tool_variants
from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Graph, TensorKind, read_graph
from tvmflow.support.errors import ModelFileError
from tvmflow.support.temporary import make_folder, remove_folder
from tvmflow.toolchain.environments import ToolProcess, run_tool

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule


class TfliteModel(LitertModel):
    """A .tflite model: LiteRT is its framework, and its operators are converted one by one."""

    def __init__(self, path: Path, inputs: tuple[TensorSpec, ...], fixed: tuple[FixedSpec, ...] = ()) -> None:
        from tvmflow.frontends.tensorflow.operator_table import check_operators  # loads TVM

        file = read_file(path)
        check_operators(file.graph.operators)
        super().__init__(path, file, inputs, fixed)

    def prepare_conversion(self) -> None:
        pass

    def to_relax(self) -> Any:
        from tvm import relax

        from tvmflow.frontends.tensorflow.tflite_import import import_tflite

        return relax.transform.CanonicalizeBindings()(_float_ends(import_tflite(self.graph, self.fixed), self))

    def to_onnx(self, path: Path) -> None:
        raise NoOnnxError(f"no exporter writes {path.name} from TFLite models")


class TensorFlowModel(TfliteModel):
    """A SavedModel or a frozen graph: outputs come from TensorFlow itself, the graph from its conversion to .tflite.

    In the .tflite file the inputs are named x0, x1, ...: what TensorFlow calls them may be no name there.
    """

    def __init__(self, model: Path, folder: Path, description: SourceDescription) -> None:
        converted, self.request = folder / "model.tflite", folder / "request.json"
        asked = {
            "model": str(model),
            "signature": description.signature or "",
            "inputs": [[spec.name, spec.shape, spec.dtype] for spec in description.inputs],
            "outputs": description.outputs,
        }
        self.request.write_text(json.dumps(asked), encoding="utf-8")
        run_tool("tensorflow", ["convert", str(self.request), str(converted)])
        found = json.loads(converted.with_suffix(".json").read_text(encoding="utf-8"))
        self.names = tuple(str(name) for name in found["outputs"])
        super().__init__(converted, tuple(replace(spec, name=f"x{at}") for at, spec in enumerate(description.inputs)))
        if self.states:
            raise ModelFileError(
                f"a SavedModel with variables that a run changes: {', '.join(one.input for one in self.states)}",
                "a .tflite file of it, or a SavedModel without such variables",
                "convert it to .tflite",
            )
        self._process: ToolProcess | None = None
        self._threads: int | None = None

    def output_names(self) -> tuple[str, ...]:
        return self.names

    def run(self, *inputs: Array) -> Arrays:
        return _plain(array for _, array in self._oracle().arrays("run", self._in_file(inputs)))

    def other_roundings(self) -> Iterator[Runner]:
        yield from ()  # LiteRT's kernels would compare the conversion, too

    def use_threads(self, threads: int) -> None:
        self._process, self._threads = None, threads

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        names = ("concrete function", "frozen function", "XLA")
        return tool_variants(self._oracle(), names, self._in_file(inputs), _plain)

    def _in_file(self, inputs: Sequence[Array]) -> dict[str, Array]:
        return {
            f"x{at}": np.ascontiguousarray(x.transpose(0, 2, 3, 1) if part.channels_first else x)
            for at, (x, part) in enumerate(zip(inputs, self.inputs, strict=True))
        }

    def _oracle(self) -> ToolProcess:
        if self._process is None:
            self._process = ToolProcess("tensorflow", [str(self.request)], self._threads)
        return self._process


def _plain(outputs: Iterable[Array]) -> Arrays:
    """Return outputs in the types of a library: floats of other sizes are float32."""
    return tuple(one.astype(np.float32) if is_other_float(one.dtype) else one for one in outputs)


def load(folder: Path, description: SourceDescription) -> TfliteModel:
    """Read and check a .tflite file, or convert a SavedModel or a frozen graph. Raises ModelFileError."""
    path = folder / description.weights_file
    if path.suffix == ".tflite":
        if description.signature or description.outputs:
            raise ModelFileError(
                f"signature: or outputs: for {path.name}",
                "a SavedModel or a frozen graph",
                "remove them from the model",
            )
        try:
            return TfliteModel(path, description.inputs, description.fixed)
        except (
            struct.error,
            ValueError,
            TypeError,
            IndexError,
            OverflowError,
            AttributeError,
        ) as error:  # of tables that nothing has looked at before
            raise ModelFileError(f"{path.name} is damaged: {error}", "a whole .tflite file") from error
    if description.fixed:
        raise no_fixed_inputs("a SavedModel", description)
    work = make_folder("tensorflow")
    try:
        model = TensorFlowModel(unpacked_model(path, work), work, description)
    except BaseException:
        remove_folder(work)
        raise
    weakref.finalize(model, remove_folder, work)
    return model


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
            name: _in_relax(part, builder, parameters[name]) for name, part in zip(described, model.inputs, strict=True)
        }
        outputs = _inline(builder, inner, values)
        plain = [_in_float(builder, value, output) for value, output in zip(outputs, model.outputs, strict=False)]
        return [*plain, *outputs[len(plain) :]]

    return tvm.IRModule(build_main(builder, Graph(described, inner.steps), body).functions, attrs=module.attrs)


def _in_relax(part: TfliteInput, builder: Any, value: Any) -> Any:
    """Emit the conversion of an input to the file's layout and type."""
    from tvm import relax

    if part.channels_first:
        value = builder.emit(relax.op.permute_dims(value, [0, 2, 3, 1]))
    if part.is_quantized:
        scale, zero = part.detail["quantization"]
        constants = relax.const(scale, "float32"), relax.const(zero, part.dtype.name)
        value = builder.emit(relax.op.quantize(value, *constants, out_dtype=part.dtype.name))
    return builder.emit(relax.op.astype(value, part.dtype.name)) if part.is_cast else value


def _in_float(builder: Any, value: Any, output: dict[str, Any]) -> Any:
    from tvm import relax

    dtype = np.dtype(output["dtype"]).name
    if not is_quantized(output):
        return builder.emit(relax.op.astype(value, "float32")) if is_other_float(dtype) else value
    scale, zero = output["quantization"]
    return builder.emit(relax.op.dequantize(value, relax.const(scale, "float32"), relax.const(zero, dtype)))


def _inline(builder: Any, graph: Graph, values: dict[str, Any]) -> list[Any]:
    """Emit the steps of a graph again with other inputs; return its outputs."""
    for step in graph.steps:
        expression = (
            constant(step.args[0], step.dtype) if step.op == "constant" else rebuild_call(step, values.__getitem__)
        )
        values[step.name] = builder.emit(expression, step.name)
    return [values[name] for name in graph.outputs]
