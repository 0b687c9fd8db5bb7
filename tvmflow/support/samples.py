"""Define what one sample of a model's inputs is."""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = 0  # in place of a batch: a run takes one sample, which is the whole of each input


def batch_of(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return how many samples a run takes: the first size that all inputs share, or WHOLE if they share none.

    Inputs such as a state (2, 1, 128) beside a window (1, 576), or a scalar, have no batch.
    """
    firsts = {shape[:1] for shape in shapes}
    return next(iter(firsts))[0] if len(firsts) == 1 and () not in firsts else WHOLE


def sample_shape(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """Return the shape of one sample of an input of this shape."""
    return shape if batch == WHOLE else shape[1:]
