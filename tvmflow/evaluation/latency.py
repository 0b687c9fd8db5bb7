"""The latency protocol: the same for a library on a device and for every peer beside it.

Warm up, then measure single runs until there are enough of them and enough time has passed. A result whose spread is
too wide says so, and then its numbers are not printed as a latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TimedRuns = Callable[[int], list[float]]


@dataclass(frozen=True)
class LatencyRules:
    """warmup_runs and min_runs: counts; min_seconds, max_seconds: of measuring; max_spread: half the 10-90 % range / median."""

    warmup_runs: int
    min_runs: int
    min_seconds: float
    max_seconds: float
    max_spread: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one run of one batch. `steady` is False when the spread was above the rules' bound."""

    mean_ms: float
    median_ms: float
    p90_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    spread: float
    runs: int
    steady: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Latency:
        return Latency(**data)


def measure(timed_runs: TimedRuns, rules: LatencyRules) -> Latency:
    """Measure with `timed_runs(n)`, which runs n times and returns n times in seconds.

    An unsteady first half is dropped once: a machine that was busy with something else gets a second chance.
    """
    if rules.warmup_runs:
        timed_runs(rules.warmup_runs)
    found = summarize(_collect(timed_runs, rules), rules)
    return found if found.steady else summarize(_collect(timed_runs, rules), rules)


def _collect(timed_runs: TimedRuns, rules: LatencyRules) -> list[float]:
    started = time.monotonic()
    times: list[float] = []
    while True:
        times += timed_runs(_chunk(times, rules))
        elapsed = time.monotonic() - started
        if elapsed >= rules.max_seconds and len(times) >= 3:
            return times
        if len(times) >= rules.min_runs and elapsed >= rules.min_seconds:
            return times


def _chunk(times: list[float], rules: LatencyRules) -> int:
    """Return how many runs to ask for at once: about a tenth of the time, at most 500."""
    if not times:
        return 3
    return int(np.clip(rules.min_seconds / 10 / max(float(np.median(times)), 1e-9), 1, 500))


def summarize(times_s: list[float], rules: LatencyRules) -> Latency:
    """Return the statistics of run times in seconds."""
    ms = np.asarray(times_s) * 1e3
    p10, median, p90 = (float(x) for x in np.percentile(ms, [10, 50, 90]))
    spread = (p90 - p10) / 2 / median
    return Latency(
        mean_ms=float(ms.mean()), median_ms=median, p90_ms=p90, min_ms=float(ms.min()), max_ms=float(ms.max()),
        std_ms=float(ms.std()), spread=spread, runs=len(ms), steady=bool(spread <= rules.max_spread),
    )  # fmt: skip


def timed(run: Callable[[], object]) -> TimedRuns:
    """Return a TimedRuns that times a function in this process."""

    def timed_runs(count: int) -> list[float]:
        times = []
        for _ in range(count):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return times

    return timed_runs
