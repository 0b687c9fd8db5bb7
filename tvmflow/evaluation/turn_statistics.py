"""Compute times, ratios within rounds, and distribution-free confidence intervals of turns.

Other processes on a core, or only on its caches, make a turn longer and never shorter; they come and go within seconds
and are not always detected. So the fastest turn of each block of consecutive turns counts, and of the blocks the
median. A block is one placement of a network in memory. Consecutive turns are correlated, blocks hardly; intervals are
over blocks, by the sign test (order statistics).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_BLOCKS = 6  # with fewer, all on one side may be chance
BLOCKS = 15  # blocks of turns
_DISTURBED_BLOCKS = 6  # larger blocks: the lowest tenth of many disturbed turns is the time on an idle machine


@dataclass(frozen=True)
class Estimate:
    """A value with its interval (None: too few turns) and its number of turns."""

    value: float
    low: float | None
    high: float | None
    turns: int


def estimate_time(turns: Sequence[float], is_quiet: bool = True, confidence: float = CONFIDENCE) -> Estimate:
    """Return the estimate of turns in chronological order. is_quiet: no disturbance was detected."""
    return _estimate([min(block) for block in _blocks(turns, is_quiet)], len(turns), confidence)


def ratio_between(
    ours: Sequence[float], theirs: Sequence[float], is_quiet: bool = True, confidence: float = CONFIDENCE
) -> Estimate:
    """Return theirs over ours. ours, theirs: medians of the turns of the same rounds, in order."""
    pairs = zip(_blocks(ours, is_quiet), _blocks(theirs, is_quiet), strict=True)
    logs = _estimate([math.log(min(b) / min(a)) for a, b in pairs], len(ours), confidence)
    exp: Callable[[float | None], float | None] = lambda x: None if x is None else math.exp(x)  # noqa: E731
    return Estimate(math.exp(logs.value), exp(logs.low), exp(logs.high), logs.turns)


def sign_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of the median of independent values at this confidence; None for too few values."""
    count, ordered = len(values), sorted(values)
    if count < LEAST_BLOCKS:
        return None
    tail, outside = 0.0, 0
    while (tail := tail + math.comb(count, outside) / 2**count) <= (1 - confidence) / 2 and outside < count // 2:
        outside += 1
    if outside == 0:
        return None
    return ordered[outside - 1], ordered[count - outside]


def _blocks(values: Sequence[float], is_quiet: bool) -> list[list[float]]:
    count = min(len(values), BLOCKS if is_quiet else _DISTURBED_BLOCKS)
    return [block.tolist() for block in np.array_split(np.asarray(values), count)]


def _estimate(blocks: Sequence[float], turns: int, confidence: float) -> Estimate:
    low, high = sign_interval(blocks, confidence) or (None, None)
    return Estimate(float(np.median(blocks)), low, high, turns)
