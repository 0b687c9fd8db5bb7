"""Statistics over turns: locations, ratios within rounds, and intervals that need no assumption about how noise is distributed.

Medians of turns hold where single runs spread by half. Neighbouring turns are alike, so that intervals are taken over blocks of
consecutive turns, by the sign test (order statistics of the blocks' medians).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
LEAST_BLOCKS = 6  # of fewer, all on one side, chance is a possible reason
_BLOCKS = 15
_LOWEST = 10.0  # percent: where every turn is disturbed, the lowest tenth is what a quiet machine shows


@dataclass(frozen=True)
class Estimate:
    """A value, the interval in which it lies (None where too few turns say), and of how many turns it is."""

    value: float
    low: float | None
    high: float | None
    turns: int


def median_of(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median of what undisturbed turns say, in the order in which they were taken."""
    blocks = [float(np.median(block)) for block in np.array_split(np.asarray(values), min(len(values), _BLOCKS))]
    return _estimate(float(np.median(values)), blocks, len(values), confidence)


def lowest_of(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the bound of the lowest tenth of what disturbed turns say."""
    groups = _interleaved(len(values))
    return _estimate(
        _lowest(values), [_lowest([values[at] for at in group]) for group in groups], len(values), confidence
    )


def median_ratio(ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return theirs over ours, the median of the ratios within rounds. ours, theirs: medians of the turns of the same rounds."""
    logs = median_of([math.log(their / our) for our, their in zip(ours, theirs, strict=True)], confidence)
    return _exponential(logs)


def lowest_ratio(ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return theirs over ours, of the lowest tenth of each: neighbours that come and go within a round fall on one of both."""

    def of(group: Sequence[int]) -> float:
        return math.log(_lowest([theirs[at] for at in group]) / _lowest([ours[at] for at in group]))

    values = [of(group) for group in _interleaved(len(ours))]
    return _exponential(_estimate(of(range(len(ours))), values, len(ours), confidence))


def sign_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the interval of the median of independent values, at least at this confidence; None for too few of them."""
    count, ordered = len(values), sorted(values)
    if count < LEAST_BLOCKS:
        return None
    tail, outside = 0.0, 0
    while (tail := tail + math.comb(count, outside) / 2**count) <= (1 - confidence) / 2 and outside < count // 2:
        outside += 1
    if outside == 0:
        return None
    return ordered[outside - 1], ordered[count - outside]


def _estimate(value: float, blocks: Sequence[float], turns: int, confidence: float) -> Estimate:
    interval = sign_interval(blocks, confidence)
    if interval is None:
        return Estimate(value, None, None, turns)
    return Estimate(value, min(interval[0], value), max(interval[1], value), turns)


def _exponential(logs: Estimate) -> Estimate:
    exp: Callable[[float | None], float | None] = lambda x: None if x is None else math.exp(x)  # noqa: E731
    return Estimate(math.exp(logs.value), exp(logs.low), exp(logs.high), logs.turns)


def _lowest(values: Sequence[float]) -> float:
    return float(np.percentile(values, _LOWEST))


def _interleaved(count: int) -> list[range]:
    groups = min(10, count)
    return [range(at, count, groups) for at in range(groups)]
