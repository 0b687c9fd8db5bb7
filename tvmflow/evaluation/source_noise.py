"""Measure how much the outputs of a source framework change when only its rounding changes.

The same network is computed by the framework's other kernels, in float64 where the framework can, and for inputs moved
by one rounding. What differs then is no property of the network: an import is not wrong because it differs as much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tvmflow.evaluation.agreement import NO_NOISE, Noise, compare_all
from tvmflow.frontends.source_model import Array, Arrays, SourceModel, run_in_batches
from tvmflow.support.errors import AgreementError, ModelFileError

ROUNDING = 2.0**-23  # between 1 and the next float32
_FEW = 2  # samples that foretell whether noise matters
_PART = 16  # of the bound, from which it is likely to: an import rounds more often than its inputs


def measure_noise(
    source: SourceModel, inputs: Arrays, batch: int, reference: Arrays, scales: Sequence[float] | None = None
) -> tuple[Noise, ...]:
    """Return the noise of each output for inputs (N, ...). reference: the source's own outputs for them. scales: of
    `compare_all`.
    """
    return noise_between(_outputs_otherwise(source, inputs, batch), reference, [NO_NOISE] * len(reference), scales)


def is_near(source: SourceModel, inputs: Arrays, batch: int, reference: Arrays, bound: float) -> bool:
    """Return whether an import that rounds otherwise is likely to come near a bound: whether inputs (N, ...) that are
    moved by one rounding move an output by a sixteenth of it, as two samples show.
    """
    few, expected = (tuple(x[:_FEW] for x in values) for values in (inputs, reference))
    try:
        moved = compare_all(run_in_batches(source, tuple(map(move_by_a_rounding, few)), batch), expected)
    except (AgreementError, ModelFileError):
        return True
    return any(one.max_relative_error > bound / _PART or (one.equal or 1.0) < 1.0 for one in moved)


def noise_between(
    others: Iterable[Arrays], reference: Arrays, noise: Sequence[Noise], scales: Sequence[float] | None = None
) -> tuple[Noise, ...]:
    """Return the noise of each output, raised to the difference of outputs with other roundings from the reference."""
    for found in others:
        try:
            every = compare_all(found, reference, scales=scales)
        except AgreementError:
            continue  # not comparable: NaN, or another number of boxes
        noise = [
            Noise(
                max(one.max_relative_error, own.max_relative_error),
                min(one.sqnr_db, own.sqnr_db),
                min(1.0 if one.equal is None else one.equal, own.equal),
            )
            for one, own in zip(every, noise, strict=True)
        ]
    return tuple(noise)


def _outputs_otherwise(source: SourceModel, inputs: Arrays, batch: int) -> Iterator[Arrays]:
    """Yield the outputs of what computes the same with other roundings, as far as the framework can."""
    if any(x.dtype.kind == "f" for x in inputs):
        with contextlib.suppress(ModelFileError):
            yield run_in_batches(source, tuple(move_by_a_rounding(x) for x in inputs), batch)
    with contextlib.suppress(Exception):  # a kernel set that lacks an operator, a module with float32 inside
        for runner in source.other_roundings():
            with contextlib.suppress(Exception):
                yield run_in_batches(runner, inputs, batch)


def move_by_a_rounding(x: Array) -> Array:
    """Return floats moved up or down by one rounding each, zeros by one rounding of 1; others unchanged."""
    if x.dtype.kind != "f":
        return x
    signs = np.random.default_rng(0).choice([-1.0, 1.0], x.shape)
    return np.asarray((x + signs * ROUNDING * np.where(x == 0, 1.0, np.abs(x))).astype(x.dtype))
