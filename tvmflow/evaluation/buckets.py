"""Run the network of a shape bucket on smaller, padded inputs, and check its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmflow.config.buckets import Axis, Numbers, Sizes, cut
from tvmflow.evaluation.agreement import Agreement, Noise, check_outputs
from tvmflow.frontends.source_model import Array, Arrays, Runner, SourceDescription, run_in_batches
from tvmflow.support.errors import UsageError

RunnerOf = Callable[[Numbers], Runner]


class Padded:
    """Runs a bucket's network on smaller inputs: pads the inputs and crops the outputs. at: the sizes of the inputs;
    axes: dynamic axes of the outputs.
    """

    def __init__(self, model: Runner, sizes: Sizes, bucket: Numbers, at: Numbers, axes: Sequence[Axis]) -> None:
        self.model, self.sizes, self.bucket, self.at, self.axes = model, sizes, bucket, at, axes

    def run(self, *inputs: Array) -> Arrays:
        outputs = self.model.run(*self.sizes.pad(inputs, self.bucket))
        return tuple(cut(y, [a for a in self.axes if a.tensor == at], self.at) for at, y in enumerate(outputs))


def sizes_of_samples(sizes: Sizes, names: Sequence[str], samples: Sequence[Array]) -> Numbers:
    """Return the sizes of inputs (N, ...), of the batch the largest. Raises UsageError if they do not agree, or are too
    large.
    """
    found = dict[int, dict[str, int]]()
    for axis in (axis for axis in sizes.axes if axis.axis):
        found.setdefault(axis.size, {})[names[axis.tensor]] = samples[axis.tensor].shape[axis.axis]
    at = list(sizes.largest)
    for size, by_input in found.items():
        name, most = sizes.names[size], sizes.largest[size]
        if len({*by_input.values()}) > 1:
            shown = ", ".join(f"{extent} of {tensor}" for tensor, extent in by_input.items())
            raise UsageError(f"{name} is {shown}", "the same of every input")
        at[size] = next(iter(by_input.values()))
        if not 1 <= at[size] <= most:
            raise UsageError(
                f"{name} is {at[size]}",
                f"1 to {most}, the last of its buckets",
                "cut the input, or add a larger bucket in params.yaml and run the cell again",
            )
    return tuple(at)


def at_sizes(model: Runner, sizes: Sizes, at: Numbers, axes: Sequence[Axis]) -> Runner:
    """Return a network of the largest bucket that takes inputs of these sizes."""
    return model if at == sizes.largest else Padded(model, sizes, sizes.largest, at, axes)


def runners_of(
    sizes: Sizes | None, largest: Runner, smaller: Mapping[str, Any], start: Callable[[Any], Runner]
) -> RunnerOf:
    """Return a function bucket -> Runner. smaller: label -> module of each bucket but the largest; start: makes a
    Runner of a module.
    """

    def runner_of(bucket: Numbers) -> Runner:
        module = smaller.get(sizes.label(bucket)) if sizes else None
        return largest if module is None else start(module)

    return runner_of


def run_at(model: Runner, description: SourceDescription, at: Numbers, samples: Arrays) -> Arrays:
    """Crop samples (N, ...) to sizes and run them on a network of these sizes. Returns each output (N, ...)."""
    assert description.sizes is not None
    inner = replace(description.sizes, axes=tuple(axis for axis in description.sizes.axes if axis.axis))
    return run_in_batches(model, inner.cut(samples, at), description.at(at).batch)


def group_of(label: str) -> str:
    """Return the name of a bucket's golden outputs in reference.npz; their sizes are in the middle of the bucket."""
    return f"golden@{label}"


def run_between_buckets(
    description: SourceDescription, axes: Sequence[Axis], runner_of: RunnerOf, samples: Arrays
) -> dict[str, Arrays]:
    """Return bucket label -> outputs for samples with sizes in the middle of the bucket, padded to it. runner_of:
    bucket -> Runner.
    """
    sizes, found = description.sizes, {}
    for bucket in sizes.all if sizes else ():
        assert sizes is not None
        at = sizes.between(bucket)
        found[sizes.label(bucket)] = run_at(
            Padded(runner_of(bucket), sizes, bucket, at, axes), description, at, samples
        )
    return found


def run_at_any_size(description: SourceDescription, runner_at: RunnerOf, samples: Arrays) -> dict[str, Arrays]:
    """Return the outputs of `run_between_buckets`, for a network that takes any size. runner_at: sizes -> Runner."""
    sizes = description.sizes
    if sizes is None:
        return {}
    return {
        sizes.label(bucket): run_at(runner_at(at), description, at, samples)
        for bucket, at in ((bucket, sizes.between(bucket)) for bucket in sizes.all)
    }


def check_between_buckets(
    stage: str,
    outputs: dict[str, Arrays],
    reference_of: Callable[[str], Arrays],
    bound: float,
    task: str | None,
    noise: tuple[Noise, ...] = (),
) -> dict[str, Agreement]:
    """Compare outputs of `run_between_buckets` with those of the stage before. Raises AgreementError."""
    return {
        label: check_outputs(stage, f"golden, padded to {label},", found, reference_of(label), bound, task, noise)
        for label, found in outputs.items()
    }
