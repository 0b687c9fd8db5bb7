"""Run a .tflite file with LiteRT, one step of its stream at a time, with its states as inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.frontends.source_model import (
    Array,
    Arrays,
    FixedSpec,
    PreparedRun,
    Runner,
    State,
    TensorSpec,
    Variant,
    WeightedLayer,
    input_positions,
    open_names,
)
from tvmflow.frontends.tensorflow.tflite_files import plain_name
from tvmflow.frontends.tensorflow.tflite_graph import read_subgraphs
from tvmflow.frontends.tensorflow.tflite_states import TfliteFile
from tvmflow.support.errors import ModelFileError, first_line

_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL")


class TfliteInput:
    """An input of the file (detail: LiteRT's) with its description in params.yaml."""

    def __init__(self, detail: dict[str, Any], spec: TensorSpec) -> None:
        self.detail, self.spec, self.dtype = detail, spec, np.dtype(detail["dtype"])
        self.channels_first = _is_channels_first(tuple(int(d) for d in detail["shape"]), spec.shape)
        self.is_quantized = self.dtype.name in ("int8", "uint8", "int16") and spec.dtype == "float32"
        self.is_cast = is_other_float(self.dtype) and spec.dtype == "float32"
        if not self.is_quantized and not self.is_cast and self.dtype.name != spec.dtype:
            raise ModelFileError(
                f"input {spec.name} of the model is {self.dtype.name}",
                f"{spec.dtype}, as in params.yaml",
                "correct input.dtype in params.yaml",
            )

    def in_file(self, x: Array) -> Array:
        """Return a value of this input in the file's layout and type."""
        value = np.asarray(x.transpose(0, 2, 3, 1) if self.channels_first else x, order="C")
        if not self.is_quantized:
            return value.astype(self.dtype, copy=False)
        scale, zero = self.detail["quantization"]
        limits = np.iinfo(self.dtype)
        return np.asarray(np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(self.dtype))


class LitertModel:
    """A .tflite model that LiteRT runs; quantized inputs and outputs are converted from and to float32, states are not.

    Images are channels-last in the file. An input described as channels-first is transposed, and its kernels are
    channels-first after import. specs: the inputs as described, then the states that the file declares.
    """

    runs_in_forks = False  # an interpreter has threads

    def __init__(
        self, path: Path, file: TfliteFile, inputs: tuple[TensorSpec, ...], fixed: tuple[FixedSpec, ...] = ()
    ) -> None:
        self.path, self.file, self.graph = path, file, file.graph
        self.interpreter = self._interpreter()
        self.details = {detail["index"]: detail for detail in self.interpreter.get_tensor_details()}
        declared = {one.input for one in self.states}
        plain = tuple(spec for spec in inputs if spec.name not in declared)
        own = self.graph.inputs[: len(self.graph.inputs) - len(declared)]
        places_of = {plain_name(tensor.name): tensor for tensor in own}
        names = open_names(path.name, list(places_of), fixed)
        ends = [*(places_of[name] for name in names), *self.graph.inputs[len(own) :]]
        self.specs = (*plain, *self.file.specs)
        self.order = [*input_positions(path.name, names, plain), *range(len(names), len(ends))]
        places = zip(self.order, self.specs, strict=True)
        self.inputs = [TfliteInput(self.details[ends[at].index], spec) for at, spec in places]
        self.fixed_specs, self.fixed = fixed, {}
        for spec in fixed:
            part = TfliteInput(self.details[places_of[spec.name].index], spec)
            self.fixed[int(part.detail["index"])] = part.in_file(spec.value)

    @property
    def states(self) -> tuple[State, ...]:
        """Return the states that the file declares."""
        return self.file.declared

    def first_values(self) -> list[Array]:
        """Return the states that a stream begins with."""
        return self.file.first_values()

    def run(self, *inputs: Array) -> Arrays:
        self._set(inputs)
        self.interpreter.invoke()
        return self._outputs()

    def _outputs(self) -> Arrays:
        """Return the outputs and the next states."""
        plain = (_in_float32(self.interpreter.get_tensor(one["index"]), one) for one in self.outputs)
        return (*plain, *(self.interpreter.get_tensor(index) for index in self._next_states()))

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Return LiteRT's details of the outputs without states."""
        plain = self.graph.outputs[: len(self.graph.outputs) - len(self.states)]
        return [self.details[tensor.index] for tensor in plain]

    def _next_states(self) -> list[int]:
        """Return where LiteRT has the next states: in outputs, and where it had those that it keeps itself."""
        given, made = (ends[len(ends) - len(self.states) :] for ends in (self.graph.inputs, self.graph.outputs))
        own = len(self.states) - self.file.kept
        return [tensor.index for tensor in (*made[:own], *given[own:])]

    def output_names(self) -> tuple[str, ...]:
        return (*(plain_name(output["name"]) for output in self.outputs), *(one.output for one in self.states))

    def other_roundings(self) -> Iterator[Runner]:
        from ai_edge_litert.interpreter import OpResolverType

        for kernels in (OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.BUILTIN_REF):
            yield self._with(self._interpreter(kernels=kernels))

    def _with(self, interpreter: Any) -> LitertModel:
        model = LitertModel.__new__(LitertModel)
        model.__dict__ |= self.__dict__ | {"interpreter": interpreter}
        return model

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        model = self._with(self._interpreter(keep=True))
        model._set(inputs)
        model.interpreter.invoke()
        outputs = (output for operator in self.graph.operators for output in operator.outputs)
        for output in (output for output in outputs if output.index in self.details):
            value = model.interpreter.get_tensor(output.index)
            if value.dtype.kind in "fiu" and value.size > 1:
                yield output.name, _in_float32(value, self.details[output.index])

    def weighted_layers(self) -> Sequence[WeightedLayer]:
        found = []
        for operator in self.graph.operators:
            weight = operator.inputs[1] if operator.name in _WEIGHTED else None
            if weight is not None and weight.data is not None:
                name = operator.outputs[0].name
                found.append(WeightedLayer(name, operator.name, math.prod(weight.shape), name))
        return found

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

    def _invoke(self, inputs: Sequence[Array]) -> Callable[[], Any]:
        """Return what runs these inputs again: LiteRT changes the states that it keeps itself."""

        def run() -> None:
            if self.file.kept:
                self._set(inputs)
            self.interpreter.invoke()

        return run

    def of_original(self) -> LitertModel:
        """Return the file as it is, whose states LiteRT carries; it takes and returns the others."""
        graph, original = read_subgraphs(self.file.original)[0], self.file.original
        file = replace(self.file, content=original, graph=graph, states=(), kept=0)
        return LitertModel(self.path, file, self.specs[: len(self.specs) - len(self.states)], self.fixed_specs)

    def use_threads(self, threads: int) -> None:
        self.interpreter = self._interpreter(threads)

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        """Return the single variant: LiteRT uses XNNPACK where possible and keeps the inputs."""

        def prepare() -> PreparedRun:
            self._set(inputs)
            return PreparedRun(self._invoke(inputs), lambda _: self._outputs())

        return (Variant("LiteRT, XNNPACK", prepare),)

    def _interpreter(self, threads: int = 2, keep: bool = False, kernels: Any = None) -> Any:
        """Return LiteRT's interpreter. keep: all tensors. kernels: an OpResolverType; None: the fastest."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        try:
            interpreter = Interpreter(
                model_content=self.file.content,
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


def is_quantized(detail: dict[str, Any]) -> bool:
    """Whether a tensor of LiteRT holds real numbers as integers."""
    return np.dtype(detail["dtype"]) != np.float32 and bool(detail["quantization"][0])


def is_other_float(dtype: Any) -> bool:
    """Whether a model's own framework converts a type from and to float32."""
    return np.dtype(dtype).name in ("float16", "float64")


def _in_float32(value: Array, detail: dict[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not is_quantized(detail):
        return np.asarray(value.astype(np.float32) if is_other_float(value.dtype) else value)
    return np.asarray((value.astype(np.float32) - np.float32(zero)) * np.float32(scale))
