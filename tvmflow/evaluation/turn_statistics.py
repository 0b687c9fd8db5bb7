"""Statistics over turns: times, ratios within rounds, and intervals that need no assumption about how noise is
distributed.

Others that share a core, or only its caches, make a turn longer and never shorter, come and go within seconds, and are
not always seen. So of each block of consecutive turns the fastest counts, and of the blocks the median: a block is one
placement of a network in memory. Neighbouring turns are alike, blocks hardly; intervals are over blocks, by the sign
test (their order statistics).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_BLOCKS = 6  # of fewer, all on one side, chance is a possible reason
BLOCKS = 15  # of turns
_DISTURBED_BLOCKS = 6  # the lowest tenth of many disturbed turns is what a quiet machine shows: blocks are larger


@dataclass(frozen=True)
class Estimate:
    """A value, the interval in which it lies (None where too few turns say), and of how many turns it is."""

    value: float
    low: float | None
    high: float | None
    turns: int


def time_of(turns: Sequence[float], is_quiet: bool = True, confidence: float = CONFIDENCE) -> Estimate:
    """Return what turns say, in the order in which they were taken. is_quiet: nothing that was seen disturbed them."""
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
    """Return the interval of the median of independent values, at least at this confidence; None for too few of
    them.
    """
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
