"""Measure several ways of running one thing in turns, and compare them by the rounds that they share.

A clock that moves, heat, and a neighbour fall on all contestants of a round alike, so a ratio is taken within each round; its
interval says what the rounds support. Between its turns a contestant is stopped: threads that spin would take a core from others.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tvmflow.evaluation.load import CpuReading, foreign_share, process_tree, read_cpu

TimedRuns = Callable[[int], list[float]]
LEAST_ROUNDS = 6  # of fewer, all on one side of 1, chance is a possible reason
CONFIDENCE = 0.95
_RESAMPLES = 4000


@dataclass(frozen=True)
class Contestant:
    """time_runs(n): seconds of n runs. group: its process group on this machine, which is stopped between its turns."""

    name: str
    time_runs: TimedRuns
    group: int | None = None


@dataclass(frozen=True)
class TurnRules:
    """turn_s: how long a turn takes, at least least_runs runs; warmup_runs: before all. max_seconds: of one contestant."""

    rounds: int
    turn_s: float
    least_runs: int
    warmup_runs: int = 3
    max_seconds: float = math.inf


@dataclass(frozen=True)
class Turn:
    """times_s: of single runs. wall_s: of the turn. foreign: share of all processors that others took. own_s: processor seconds."""

    times_s: tuple[float, ...]
    wall_s: float
    foreign: float | None = None
    own_s: float | None = None

    @property
    def median_s(self) -> float:
        return float(np.median(self.times_s))


@dataclass(frozen=True)
class Advantage:
    """How many times faster than a peer: the median over the rounds, its interval. None and a reason where nothing is shown."""

    times_faster: float | None
    low: float | None
    high: float | None
    rounds: int
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def take_turns(
    contestants: Sequence[Contestant], rules: TurnRules, read: Callable[[], CpuReading] | None = read_cpu
) -> dict[str, list[Turn]]:
    """Return the turns of each contestant, as many as there are rounds; every second round goes the other way round.

    read: the clocks of the machine that all of them run on; None where they run on another.
    """
    counts = {}
    for contestant in contestants:
        with _awake(contestant):
            contestant.time_runs(max(1, rules.warmup_runs))
            counts[contestant.name] = _runs_per_turn(contestant.time_runs(3), rules)
    turns: dict[str, list[Turn]] = {contestant.name: [] for contestant in contestants}
    for index in range(rules.rounds):
        for contestant in contestants if index % 2 == 0 else reversed(contestants):
            turns[contestant.name].append(_turn(contestant, counts[contestant.name], read))
        if index >= 2 and max(sum(turn.wall_s for turn in taken) for taken in turns.values()) >= rules.max_seconds:
            break
    return turns


def _runs_per_turn(times_s: list[float], rules: TurnRules) -> int:
    return max(rules.least_runs, math.ceil(rules.turn_s / max(float(np.median(times_s)), 1e-9)))


def _turn(contestant: Contestant, count: int, read: Callable[[], CpuReading] | None) -> Turn:
    with _awake(contestant):
        before = read() if read else None
        times = tuple(contestant.time_runs(count))
        after = read() if read else None
        if before is None or after is None:
            return Turn(times, sum(times))
        own = None if contestant.group is None else after.used_since(before, process_tree(contestant.group))
    return Turn(times, after.wall_s - before.wall_s, foreign_share(before, after), own)


@contextlib.contextmanager
def _awake(contestant: Contestant) -> Any:
    _signal(contestant, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(contestant, signal.SIGSTOP)


def _signal(contestant: Contestant, number: int) -> None:
    if contestant.group is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(contestant.group, number)


def foreign_load(turns: Sequence[Turn]) -> float | None:
    """Return the share of all processors that others took in these turns, None where no turn could see it."""
    seen = [(turn.foreign, turn.wall_s) for turn in turns if turn.foreign is not None]
    whole = sum(wall for _, wall in seen)
    return sum(share * wall for share, wall in seen) / whole if whole > 0 else None


def busy_threads(turns: Sequence[Turn]) -> float | None:
    """Return on how many threads a contestant computed at a time, by its processor seconds; None where they were not seen."""
    seen = [(turn.own_s, turn.wall_s) for turn in turns if turn.own_s is not None and turn.wall_s > 0]
    return sum(own for own, _ in seen) / sum(wall for _, wall in seen) if seen else None


def advantage(ours: Sequence[Turn], theirs: Sequence[Turn], why_not: str | None = None) -> Advantage:
    """Return how many times faster we are, from the medians of each round, with a bootstrap interval of their median.

    why_not: what forbids any ratio. Where the interval holds 1, no difference is shown and no ratio is given.
    """
    pairs = list(zip(ours, theirs, strict=False))
    if why_not is not None:
        return Advantage(None, None, None, len(pairs), why_not)
    if len(pairs) < LEAST_ROUNDS:
        return Advantage(None, None, None, len(pairs), f"only {len(pairs)} rounds, at least {LEAST_ROUNDS} are needed")
    logs = [math.log(their.median_s / our.median_s) for our, their in pairs]
    low, high = (math.exp(end) for end in _interval_of_median(logs))
    if low <= 1.0 <= high:
        return Advantage(None, low, high, len(pairs), "no difference shown")
    return Advantage(float(np.exp(np.median(logs))), low, high, len(pairs), None)


def median_interval_s(turns: Sequence[Turn]) -> tuple[float, float] | None:
    """Return the interval in which the median of one run lies, in seconds, by the medians of the rounds; None for too few.

    It knows of what changed from round to round, not of what changes from day to day.
    """
    if len(turns) < LEAST_ROUNDS:
        return None
    low, high = _interval_of_median([math.log(turn.median_s) for turn in turns])
    return math.exp(low), math.exp(high)


def _interval_of_median(values: list[float]) -> tuple[float, float]:
    """Return the bootstrap interval of the median of values, at CONFIDENCE."""
    drawn = np.random.default_rng(0).integers(0, len(values), (_RESAMPLES, len(values)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(np.median(np.asarray(values)[drawn], axis=1), [tail, 100 - tail])
    return float(low), float(high)
