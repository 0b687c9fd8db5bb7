"""Import a network for each shape bucket and reject one whose outputs depend on the padding of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tvmflow.config.buckets import Axis, Numbers, axes_of
from tvmflow.evaluation.agreement import Agreement, Noise, check_outputs
from tvmflow.evaluation.buckets import Padded, check_between_buckets, group_of, run_at, run_between_buckets, runners_of
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import Arrays, Runner, SourceDescription, SourceModel, batch_at
from tvmflow.support.errors import AgreementError, ModelFileError


@dataclass(frozen=True)
class BucketedImport:
    """modules: label -> module of each smaller bucket. axes: dynamic axes of the outputs. reference: group -> the
    source's outputs between buckets.
    """

    modules: dict[str, Any]
    axes: tuple[Axis, ...]
    reference: dict[str, Arrays]
    agreement: dict[str, Agreement]


def import_buckets(
    fetched: Path,
    description: SourceDescription,
    source: SourceModel,
    largest: Runner,
    golden: Arrays,
    bound: float,
    noise: tuple[Noise, ...] = (),
) -> BucketedImport:
    """Import all buckets but the largest; check each, at sizes in its middle, against the source at exactly these
    sizes.

    largest: the imported network of the largest bucket. noise: of the source's outputs there. Raises ModelFileError if
    padding changes the outputs of the source itself.
    """
    from tvmflow.backends.cpu import host_backend
    from tvmflow.codegen.compile import LocalRunner
    from tvmflow.passes.pipeline import canonicalize

    sizes = description.sizes
    assert sizes is not None
    axes = _output_axes(description, source, golden)
    reference = {}
    for bucket in sizes.all:
        at = sizes.between(bucket)
        reference[sizes.label(bucket)] = run_at(source, description, at, golden)
        for other in (at, *_neighbouring_sizes(bucket, at)):
            try:
                exact = reference[sizes.label(bucket)] if other == at else run_at(source, description, other, golden)
            except ModelFileError:
                continue  # smaller than the source accepts
            padded = run_at(Padded(source, sizes, bucket, other, axes), description, other, golden)
            _check_masked(description, bucket, other, padded, exact, bound, noise)
    modules = {
        sizes.label(bucket): canonicalize(load_source(fetched, description.at(bucket)).to_relax())
        for bucket in sizes.all[:-1]
    }
    start = partial(LocalRunner.of_plain, backend=host_backend(), runs=len(golden[0]))
    runner_of = runners_of(sizes, largest, modules, start)
    outputs = run_between_buckets(description, axes, runner_of, golden)
    agreement = check_between_buckets("import_model", outputs, reference.__getitem__, bound, description.task, noise)
    return BucketedImport(modules, axes, {group_of(label): found for label, found in reference.items()}, agreement)


def _neighbouring_sizes(bucket: Numbers, at: Numbers) -> set[Numbers]:
    """Return further sizes to test: with strides, padding may matter only at odd lengths."""
    return {tuple(max(1, size - 1) for size in one) for one in (at, bucket)} - {at}


def _output_axes(description: SourceDescription, source: SourceModel, golden: Arrays) -> tuple[Axis, ...]:
    """Return the dynamic axes of the outputs, from the source's outputs at several sizes. Raises ModelFileError if it
    accepts one size only.
    """
    sizes, names = description.sizes, source.output_names()
    assert sizes is not None
    inputs = batch_at(golden, 0, description.batch)
    known: dict[Numbers, list[Numbers] | None] = {}

    def shapes_at(at: Numbers) -> list[Numbers] | None:
        if at not in known:
            try:
                known[at] = [output.shape for output in source.run(*sizes.cut(inputs, at))]
            except ModelFileError:
                if at in sizes.all:
                    raise
                known[at] = None  # a size that it rejects, such as one smaller than a window
        return known[at]

    def shape_of(i: int, at: Numbers) -> Numbers | None:
        shapes = shapes_at(at)
        return None if shapes is None else shapes[i]

    return tuple(axis for i, name in enumerate(names) for axis in axes_of(name, i, sizes, partial(shape_of, i)))


def _check_masked(
    description: SourceDescription,
    bucket: Numbers,
    at: Numbers,
    padded: Arrays,
    exact: Arrays,
    bound: float,
    noise: tuple[Noise, ...],
) -> None:
    sizes = description.sizes
    assert sizes is not None
    try:
        check_outputs("import_model", "golden", padded, exact, bound, description.task, noise)
    except AgreementError as error:
        raise ModelFileError(
            f"this network does not mask the padding of its inputs: at {sizes.label(at)}, padded to "
            f"{sizes.label(bucket)}, its own framework computes something else ({error.found})",
            "outputs that do not depend on the padding",
            "give the network a mask input, which is padded with 0, or set pad: of the inputs to a value that the "
            "network masks; or use fixed shapes, one cell for each",
        ) from error
