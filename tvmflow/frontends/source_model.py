"""Define the interface of frontends: a model run by its own framework, and the same model as Relax."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tvmflow.config.buckets import Axis, Numbers, Sizes
from tvmflow.config.fixed_inputs import FixedInput
from tvmflow.support.dtypes import numpy_dtype
from tvmflow.support.errors import ModelFileError, first_line
from tvmflow.support.json_values import OPTIONAL, read_json, to_json
from tvmflow.support.samples import WHOLE, batch_of

Array = NDArray[Any]
Arrays = tuple[Array, ...]
OUTPUTS_NAME = "outputs.json"  # description of the outputs, written by import_model


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model; shape: with its batch first."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def zeros(self) -> Array:
        return np.zeros(self.shape, numpy_dtype(self.dtype))


@dataclass(frozen=True)
class OutputSpec(TensorSpec):
    """An output of a model. axes: those that depend on a size that a run chooses."""

    axes: tuple[Axis, ...] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True)
class State:
    """An input that an instance carries from run to run, and the output that is its next value. initial: its first
    value, one number for all or one for each element; zeros without any.
    """

    input: str
    output: str
    initial: tuple[float, ...] = ()


@dataclass(frozen=True)
class FixedSpec(TensorSpec):
    """An input that has one value in every run. numbers: of the value, in row-major order."""

    numbers: tuple[float, ...] = ()

    @property
    def value(self) -> Array:
        return np.asarray(self.numbers, np.float64).astype(self.dtype).reshape(self.shape)

    def check(self, what: str, dtype: str, shape: Sequence[int | None] | None) -> None:
        """Raise ModelFileError unless the input of a file takes the value. None: left open by the file."""
        fits = shape is None or (
            len(shape) == len(self.shape) and all(a in (None, b) for a, b in zip(shape, self.shape, strict=True))
        )
        if dtype != self.dtype or not fits:
            shown = "" if shape is None else f" {['?' if size is None else size for size in shape]}"
            raise ModelFileError(
                f"input {self.name} of {what} is {dtype}{shown}",
                f"{self.dtype} {list(self.shape)}, the value in params.yaml",
                f"correct value, dtype or shape of inputs.{self.name} in params.yaml",
            )


def fixed_specs(fixed: Mapping[str, FixedInput]) -> tuple[FixedSpec, ...]:
    """Return the fixed inputs of an entry of params.yaml."""
    return tuple(FixedSpec(name, one.shape_of_value, one.dtype_of_value, one.numbers) for name, one in fixed.items())


def one_input(name: str, shape: tuple[int, ...], dtype: str = "float32") -> tuple[TensorSpec, ...]:
    """Return the inputs of a model with one input."""
    return (TensorSpec(name, shape, dtype),)


@dataclass(frozen=True)
class SourceDescription:
    """The description of a model in source.json: framework, network factory or None, weights file, inputs in order.

    task: of its outputs, None if their shapes determine it (`evaluation.agreement`). sizes: the dynamic sizes, of which
    `inputs` have the largest; None if inputs have fixed shapes. has_data: its samples are of a data set, not random.
    states: those that the model's file declares itself; they are among `inputs`.
    fixed: the other inputs, which are constants. signature, outputs: of a TensorFlow model, None and () for the usual
    ones.
    """

    framework: str
    network: str | None
    weights_file: str
    inputs: tuple[TensorSpec, ...]
    task: str | None = None
    sizes: Sizes | None = field(default=None, metadata=OPTIONAL)
    has_data: bool = True
    states: tuple[State, ...] = field(default=(), metadata=OPTIONAL)
    fixed: tuple[FixedSpec, ...] = field(default=(), metadata=OPTIONAL)
    signature: str | None = field(default=None, metadata=OPTIONAL)
    outputs: tuple[str, ...] = field(default=(), metadata=OPTIONAL)

    def at(self, sizes: Numbers) -> SourceDescription:
        """Return the same model for inputs of these fixed sizes."""
        assert self.sizes is not None
        shapes = self.sizes.shapes([spec.shape for spec in self.inputs], sizes)
        inputs = tuple(replace(spec, shape=shape) for spec, shape in zip(self.inputs, shapes, strict=True))
        return replace(self, inputs=inputs, sizes=None)

    @property
    def plain_inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs without the states that the model's file declares itself."""
        declared = {state.input for state in self.states}
        return tuple(spec for spec in self.inputs if spec.name not in declared)

    @property
    def batch(self) -> int:
        """Return the number of samples per run, or WHOLE."""
        return batch_of([spec.shape for spec in self.inputs])

    @property
    def only_input(self) -> TensorSpec:
        """Return the single input. Raises ModelFileError for several inputs, or one that is not float32."""
        if len(self.inputs) != 1 or self.inputs[0].dtype != "float32":
            described = ", ".join(f"{spec.name} {spec.dtype}" for spec in self.inputs)
            raise ModelFileError(
                f"inputs {described} for a model of {self.framework}",
                "one float32 input, the only kind that this frontend supports",
                "export the model to ONNX, which supports several inputs and integer inputs",
            )
        return self.inputs[0]


def is_of_package(network: str | None) -> bool:
    """Return whether a network is one of a package or of tvmflow, which keeps nothing between runs."""
    return network is not None and ":" not in network


def read_description(fetched: Path) -> SourceDescription:
    """Read the description that fetch wrote."""
    return read_json(SourceDescription, fetched / "source.json")


def write_outputs(folder: Path, outputs: Sequence[OutputSpec]) -> None:
    """Write outputs.json, the description of a model's outputs."""
    (folder / OUTPUTS_NAME).write_text(json.dumps(to_json(outputs)), encoding="utf-8")


def read_outputs(imported: Path) -> tuple[OutputSpec, ...]:
    """Read the description of the outputs that import_model wrote."""
    return read_json(tuple[OutputSpec, ...], imported / OUTPUTS_NAME)


def dynamic_axes(outputs: Sequence[OutputSpec]) -> tuple[Axis, ...]:
    """Return the axes of the outputs that depend on a size."""
    return tuple(axis for output in outputs for axis in output.axes)


class Runner(Protocol):
    """Runs a batch: inputs in the model's order, each with the batch first; returns all outputs."""

    def run(self, *inputs: Array) -> Arrays: ...


@dataclass(frozen=True)
class PreparedRun:
    """A model with its inputs set. run: runs once; read: converts the result to outputs. time_runs: returns the seconds
    of n runs that another process times.
    """

    run: Callable[[], Any]
    read: Callable[[Any], Arrays]
    time_runs: Callable[[int], list[float]] | None = None


@dataclass(frozen=True)
class Variant:
    """An execution variant of a framework. prepare: raises any error if the model cannot run this way. compiles_long:
    preparing takes tens of seconds, which pays off for long runs only.
    """

    name: str
    prepare: Callable[[], PreparedRun]
    compiles_long: bool = False


@dataclass(frozen=True)
class WeightedLayer:
    """A layer of a source that multiplies by weights. weights: how many; operator: as the framework names it; node: by
    which viewers of the file know it.
    """

    name: str
    operator: str
    weights: int
    node: str = ""


class SourceModel(Runner, Protocol):
    """A model in its own framework. runs_in_forks: also in a fork of the process that loaded it, of which it has no
    threads, processes or files.
    """

    runs_in_forks: bool

    def use_threads(self, threads: int) -> None:
        """Set the number of threads of `run` and of variants prepared later."""

    def variants(self, *inputs: Array) -> Sequence[Variant]:
        """Return the fast execution variants for repeated runs of these inputs; one of them is timed."""

    def output_names(self) -> tuple[str, ...]:
        """Return the names of the outputs, as many as `run` returns."""

    def layers(self, *inputs: Array) -> Iterator[tuple[str, Array]]:
        """Yield name and float value of every layer for one batch, in order, to find the first that differs."""

    def weighted_layers(self) -> Sequence[WeightedLayer]:
        """Return the layers with weights, in the order of their computation."""

    def other_roundings(self) -> Iterator[Runner]:
        """Yield the same model with other kernels or in float64, to see how much its own rounding matters."""

    def prepare_conversion(self) -> None:
        """Do what `to_relax` and `to_onnx` have in common, so that it is done once."""

    def to_relax(self) -> Any:
        """Return an IRModule with `main(inputs) -> output`, or a tuple of outputs. Raises UnsupportedOperatorError."""

    def to_onnx(self, path: Path) -> None:
        """Write the model as ONNX, for baselines that need it."""


def batch_at(inputs: Sequence[Array], start: int, batch: int) -> Arrays:
    """Return x[start : start + batch] of each input, padded with its last sample to `batch` samples; for WHOLE
    x[start], which has no axis of samples.
    """
    if batch == WHOLE:
        return tuple(np.asarray(x[start]) for x in inputs)
    parts = [x[start : start + batch] for x in inputs]
    return tuple(np.concatenate([x, np.repeat(x[-1:], batch - len(x), axis=0)]) if len(x) < batch else x for x in parts)


def run_in_batches(
    model: Runner,
    inputs: Sequence[Array],
    batch: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Arrays:
    """Run inputs (N, ...) through a model of fixed batch size; the last batch is padded with its last sample.

    Returns each output as (N, ...). Raises ModelFileError for an output without the batch as its first axis.
    """
    parts, count = [], len(inputs[0])
    step = batch or 1
    for start in range(0, count, step):
        outputs = model.run(*batch_at(inputs, start, batch))
        parts.append([by_sample(output, batch)[: count - start] for output in outputs])
        progress(min(start + step, count), count)
    return tuple(np.concatenate(same) for same in zip(*parts, strict=True))


def by_sample(output: Array, batch: int) -> Array:
    """Return an output with the batch first; with a single sample, every output belongs to it."""
    if batch == WHOLE:
        return output[None]
    if output.ndim and len(output) == batch:
        return output
    if batch == 1:
        return output[None]
    raise ModelFileError(
        f"an output of shape {list(output.shape)} for a batch of {batch}",
        "the batch as the first axis of every output",
        "give the inputs a batch of 1",
    )


def wrong_weights(error: Exception, network: str | None) -> ModelFileError:
    return ModelFileError(
        f"the weights do not match network {network!r}: {first_line(error)}",
        "weights of that network",
        "correct network: or weights: in params.yaml",
    )


def input_positions(what: str, names: Sequence[str], inputs: Sequence[TensorSpec]) -> list[int]:
    """Return the position of each input among the names in a file. Raises ModelFileError.

    A single input may have any name; several are matched by name.
    """
    if len(names) == len(inputs) == 1:
        return [0]
    if sorted(names) != sorted(spec.name for spec in inputs):
        raise ModelFileError(
            f"{what} has the inputs {', '.join(names)}",
            f"{', '.join(spec.name for spec in inputs)}, as in params.yaml",
            "correct inputs: of the model in params.yaml",
        )
    return [list(names).index(spec.name) for spec in inputs]


def open_names(what: str, names: Sequence[str], fixed: Sequence[FixedSpec]) -> list[str]:
    """Return the names in a file without those of fixed inputs. Raises ModelFileError for one that is not there."""
    unknown = [spec.name for spec in fixed if spec.name not in names]
    if unknown:
        raise ModelFileError(
            f"{what} has the inputs {', '.join(names)}",
            f"{unknown[0]}, whose value params.yaml sets",
            "correct inputs: of the model in params.yaml",
        )
    taken = {spec.name for spec in fixed}
    return [name for name in names if name not in taken]


def no_fixed_inputs(what: str, description: SourceDescription) -> ModelFileError:
    return ModelFileError(
        f"a value for input {description.fixed[0].name}, which {what} cannot have",
        "inputs with a shape",
        "export the model to ONNX, or without this input",
    )


class NoOnnxError(Exception):
    """The model cannot be written as ONNX: baselines that need it are left out."""
