"""Compare two libraries on one device, interleaved: A B B A, round after round, with a confidence interval.

Interleaving lets slow changes of the device (heat, other load) fall on both; the interval is taken over the rounds'
log ratios with Student's t, so it is about the ratio and not about either latency.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmflow.errors import StoreError

TimedRuns = Callable[[int], list[float]]
MIN_ROUND_S = 0.05


@dataclass(frozen=True)
class Comparison:
    """ratio: latency of B / latency of A (above 1: B is slower), with its confidence interval [low, high].

    Of simulated accelerators: ratio of their estimated cycles, which are the same in every run.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    confidence: float
    of: str = "latency"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.of != "latency":
            return f"{self.ratio:.4f} of {self.of}"
        return f"{self.ratio:.4f} [{self.low:.4f}, {self.high:.4f}] at {self.confidence:.0%} over {self.rounds} rounds"


def compare_exact(a: int, b: int, of: str) -> Comparison:
    """Compare two numbers that no run changes. Raises StoreError where A is none."""
    if a <= 0:
        raise StoreError(f"{a} {of} of the champion", "more than none")
    return Comparison(b / a, b / a, b / a, 1, 1.0, of)


def compare_interleaved(a: TimedRuns, b: TimedRuns, rounds: int, confidence: float) -> Comparison:
    """Time A and B in turn; each round gives each at least 50 ms, and every second round begins with B."""
    counts = [_runs_per_round(timed) for timed in (a, b)]
    ratios = []
    for index in range(rounds):
        order = ((0, a), (1, b)) if index % 2 == 0 else ((1, b), (0, a))
        medians = {which: float(np.median(timed(counts[which]))) for which, timed in order}
        ratios.append(math.log(medians[1] / medians[0]))
    return interval(ratios, confidence)


def _runs_per_round(timed: TimedRuns) -> int:
    timed(3)
    return max(3, math.ceil(MIN_ROUND_S / max(float(np.median(timed(5))), 1e-9)))


def interval(log_ratios: list[float], confidence: float) -> Comparison:
    """Return the mean ratio and its two-sided Student t interval."""
    from scipy import stats

    values = np.asarray(log_ratios)
    center = float(values.mean())
    error = float(values.std(ddof=1) / math.sqrt(len(values)))
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * error
    return Comparison(math.exp(center), math.exp(center - half), math.exp(center + half), len(values), confidence)
