"""The latency protocol: the same for a library on a device and for every peer beside it.

Warm up, then measure single runs in turns until there are enough of them and enough time has passed. A result whose spread
is too wide, during which others used the processors, or that ran on other threads than it should, says so, and then its
numbers are not printed as a latency.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tvmflow.evaluation.load import CpuReading, read_cpu
from tvmflow.evaluation.turns import (
    Advantage,
    Contestant,
    TimedRuns,
    Turn,
    TurnRules,
    advantage,
    busy_threads,
    foreign_load,
    median_interval_s,
    take_turns,
)  # fmt: skip

ROUNDS = 10
LIBRARY = "tvmflow"
_THREADS_MARGIN = 0.5  # a runtime's own bookkeeping; one thread too many counts for 1


@dataclass(frozen=True)
class LatencyRules:
    """warmup_runs and min_runs: counts; min_seconds, max_seconds: of measuring one contestant.

    max_spread: half the 10-90 % range / median. max_foreign_load: share of all processors that others may take meanwhile.
    """

    warmup_runs: int
    min_runs: int
    min_seconds: float
    max_seconds: float
    max_spread: float
    max_foreign_load: float

    @property
    def turns(self) -> TurnRules:
        least = math.ceil(self.min_runs / ROUNDS)
        return TurnRules(ROUNDS, self.min_seconds / ROUNDS, least, self.warmup_runs, self.max_seconds)


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one run of one batch. `steady` is False when something forbids to trust them; `reason` says what.

    foreign_load: share of all processors that others took; busy_threads: on how many it computed. low_ms, high_ms: the
    interval of the median over the rounds. None: not seen.
    """

    mean_ms: float
    median_ms: float
    p90_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    spread: float
    runs: int
    steady: bool
    reason: str | None = None
    foreign_load: float | None = None
    busy_threads: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Measured:
    """latency: by contestant. advantages: of the first contestant over each other."""

    latency: dict[str, Latency]
    advantages: dict[str, Advantage]


def measure_in_turns(
    contestants: Sequence[Contestant],
    rules: LatencyRules,
    threads: int,
    read: Callable[[], CpuReading] | None = read_cpu,
) -> Measured:
    """Measure contestants on `threads` threads in turns; the first is the library, the others are its peers.

    Where the library was unsteady, or something forbids a ratio, all are measured once more: a machine that was busy with
    something else gets a second chance. read: clocks of the machine that they run on, None where these cannot be read.
    """
    ours = contestants[0].name
    for _ in range(2):
        turns = take_turns(contestants, rules.turns, read)
        latency = {name: of_turns(taken, rules, threads) for name, taken in turns.items()}
        if latency[ours].steady and not any(_why_not(latency[ours], latency[name], rules, threads) for name in latency):
            break
    advantages = {
        name: advantage(turns[ours], taken, _why_not(latency[ours], latency[name], rules, threads))
        for name, taken in turns.items()
        if name != ours
    }
    return Measured(latency, advantages)


def measure(timed_runs: TimedRuns, rules: LatencyRules) -> Latency:
    """Measure one thing by itself with `timed_runs(n)`, which runs n times and returns n times in seconds."""
    return measure_in_turns([Contestant(LIBRARY, timed_runs)], rules, threads=0, read=None).latency[LIBRARY]


def of_turns(turns: Sequence[Turn], rules: LatencyRules, threads: int) -> Latency:
    """Return the statistics of all runs of all turns."""
    times = [time_s for turn in turns for time_s in turn.times_s]
    latency = summarize(times, rules, foreign_load(turns), busy_threads(turns), threads)
    interval = median_interval_s(turns)
    if interval is None:
        return latency
    low, high = interval
    return replace(latency, low_ms=min(1e3 * low, latency.median_ms), high_ms=max(1e3 * high, latency.median_ms))


def summarize(
    times_s: list[float], rules: LatencyRules, foreign: float | None = None, busy: float | None = None, threads: int = 0
) -> Latency:
    """Return the statistics of run times in seconds. foreign, busy: as in Latency; threads: how many were asked for."""
    ms = np.asarray(times_s) * 1e3
    p10, median, p90 = (float(x) for x in np.percentile(ms, [10, 50, 90]))
    spread = (p90 - p10) / 2 / median
    reason = _disturbed(foreign, busy, rules, threads)
    if reason is None and not spread <= rules.max_spread:
        reason = f"unsteady (±{spread:.0%}, at most {rules.max_spread:.0%})"
    return Latency(
        mean_ms=float(ms.mean()), median_ms=median, p90_ms=p90, min_ms=float(ms.min()), max_ms=float(ms.max()),
        std_ms=float(ms.std()), spread=spread, runs=len(ms), steady=reason is None, reason=reason, foreign_load=foreign,
        busy_threads=busy,
    )  # fmt: skip


def _why_not(ours: Latency, theirs: Latency, rules: LatencyRules, threads: int) -> str | None:
    """Return what forbids a ratio. A wide spread does not: the interval over the rounds knows of it."""
    for latency in (ours, theirs):
        reason = _disturbed(latency.foreign_load, latency.busy_threads, rules, threads)
        if reason is not None:
            return reason
    return None


def _disturbed(foreign: float | None, busy: float | None, rules: LatencyRules, threads: int) -> str | None:
    if foreign is not None and foreign > rules.max_foreign_load:
        return f"busy machine (others {foreign:.0%}, at most {rules.max_foreign_load:.0%})"
    if threads and busy is not None and busy > threads + _THREADS_MARGIN:
        return f"ran on {busy:.1f} threads instead of {threads}"
    return None


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
