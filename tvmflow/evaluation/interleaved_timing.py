"""Measure several ways of running one thing in turns, and compare them by the rounds that they share.

Turns are short and many, in a new order each round: a clock that moves, heat, and a neighbour fall on all contestants
of a round alike. Each turn carries the state of the machine (machine_state.py); turns of one state are compared with
turns of that state. Between its turns a contestant is stopped: threads that spin would take a core from others.

Where a small network lies in memory (which sets of the caches its pages fall into, which addresses differ by a multiple
of a page) moves it by several percent, for as long as it lies there. So it is placed anew for each block of turns: what
is measured holds for the next process, too, and the intervals, which are over blocks, know how far placements differ.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmflow.evaluation.machine_state import (
    TurnState,
    Watch,
    disturbance,
    drop_round_trips,
    states_of,
    usual_loop_ns,
)
from tvmflow.evaluation.turn_statistics import (
    BLOCKS,
    CONFIDENCE,
    LEAST_BLOCKS,
    Estimate,
    ratio_between,
)

Array = np.ndarray[Any, Any]
TimedRuns = Callable[[int], Sequence[float]]
_WARM_SHARE = 0.1  # of a turn's runs: behind the turn of another the caches hold other data
_MOST_ROUNDS = 1.5  # times those asked for, where too few were undisturbed,
_MOST_TIME = 3  # and times the time that these take on a quiet machine
_ENOUGH = 1 / 3  # of the rounds, undisturbed, of one state
_FEW = 1 / 5  # of the turns, undisturbed
_PLACED_RUN_S = 1e-3  # longer runs differ by less than a percent from one placement to another
_PLACED_S = 0.25  # what takes longer to be placed stays where it is
_SETTLED_RUNS = 100  # of a network that was placed: it tries anew how many threads its kernels are worth


@dataclass(frozen=True)
class TimedModel:
    """time_runs(n): seconds of n runs. group: its process group on this machine, which is stopped between its turns.

    relocate: makes time_runs run the same in other memory; None where that cannot be.
    """

    name: str
    time_runs: TimedRuns
    group: int | None = None
    relocate: Callable[[], None] | None = None


@dataclass(frozen=True)
class TurnRules:
    """turn_s: how long a turn takes, at least least_runs runs; warmup_runs: before all. max_seconds: of one
    contestant.
    """

    rounds: int
    turn_s: float
    least_runs: int
    warmup_runs: int = 3
    max_seconds: float = math.inf


@dataclass(frozen=True)
class Turn:
    """times_s: of single runs. wall_s: of the turn. state: of the machine meanwhile."""

    times_s: Sequence[float] | Array
    wall_s: float
    state: TurnState = field(default_factory=TurnState)
    median_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "median_s", float(np.median(self.times_s)))


@dataclass(frozen=True)
class ClassifiedTurns:
    """The turns of all contestants with what they were disturbed by, and the states in which they were measured.

    disturbed: name -> reason of each turn, None for undisturbed. states: name -> number of the state of each turn, 0
    where the cores were nearest, None for a turn between two. round_trips_ns: of each state.
    """

    turns: Mapping[str, Sequence[Turn]]
    disturbed: Mapping[str, Sequence[str | None]]
    states: Mapping[str, Sequence[int | None]]
    round_trips_ns: Sequence[float | None]

    def chosen(self, *names: str, state: int | None = None, undisturbed: bool = True) -> list[int]:
        """Return the rounds in which these contestants were measured in one state, undisturbed unless any will do.

        state: that of these rounds, None for any that they share.
        """
        rounds = range(min(len(self.turns[name]) for name in names))
        found = []
        for at in rounds:
            seen = {self.states[name][at] for name in names}
            same = len(seen) == 1 and None not in seen and (state is None or seen == {state})
            if same and not (undisturbed and any(self.disturbed[name][at] for name in names)):
                found.append(at)
        return found

    def counting(self, *names: str, state: int | None = None) -> tuple[list[int], bool]:
        """Return the rounds that count of those in one state, and whether they are the undisturbed ones: all of them
        where these are few.

        What disturbs is not always seen: of turns that are nearly all disturbed, those that seem to be undisturbed are
        the fastest ones less often than the fastest of all.
        """
        every, undisturbed = self.chosen(*names, state=state, undisturbed=False), self.chosen(*names, state=state)
        if len(undisturbed) >= max(LEAST_BLOCKS, _FEW * len(every)):
            return undisturbed, True
        return every, False


def classify_turns(turns: Mapping[str, Sequence[Turn]], threads: int) -> ClassifiedTurns:
    """Tell states and disturbances of turns apart. threads: of each contestant; one thread knows no distance between
    cores.
    """
    seen = {
        name: [drop_round_trips(turn.state) if threads == 1 else turn.state for turn in taken]
        for name, taken in turns.items()
    }
    every = [state for states in seen.values() for state in states]
    loop_ns = usual_loop_ns(every)
    disturbed = {
        name: [disturbance(state, loop_ns, len(turn.times_s)) for state, turn in zip(states, turns[name], strict=True)]
        for name, states in seen.items()
    }
    numbers = iter(states_of([state.round_trip_ns for state in every]))
    by_name = {name: [next(numbers) for _ in states] for name, states in seen.items()}
    trips: dict[int, list[float]] = {}
    for name, states in seen.items():
        for state, number in zip(states, by_name[name], strict=True):
            if number is not None and state.round_trip_ns is not None:
                trips.setdefault(number, []).append(state.round_trip_ns)
    count = 1 + max((n for states in by_name.values() for n in states if n is not None), default=0)
    return ClassifiedTurns(
        turns, disturbed, by_name, [float(np.median(trips[n])) if n in trips else None for n in range(count)]
    )


def ratio_of(
    in_order: ClassifiedTurns, ours: str, theirs: str, state: int | None = None, confidence: float = CONFIDENCE
) -> tuple[Estimate, list[int], int | None]:
    """Return how many times faster one contestant is than another, the rounds that say so, and their state.

    state: in which it is asked for; another one where that has too few rounds that both share. Undisturbed rounds alone
    count where there are enough.
    """
    every = range(len(in_order.round_trips_ns))
    for one in [known for known in (state, *every) if known is not None]:
        rounds, is_quiet = in_order.counting(ours, theirs, state=one)
        if len(rounds) >= LEAST_BLOCKS:
            return ratio_at(in_order, ours, theirs, rounds, is_quiet, confidence), rounds, one
    rounds = list(range(min(len(in_order.turns[name]) for name in (ours, theirs))))
    return ratio_at(in_order, ours, theirs, rounds, False, confidence), rounds, None


def ratio_at(
    in_order: ClassifiedTurns,
    ours: str,
    theirs: str,
    rounds: Sequence[int],
    is_quiet: bool,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Return how many times faster one contestant is than another in these rounds. is_quiet: nothing disturbed them."""
    a, b = ([in_order.turns[name][at].median_s for at in rounds] for name in (ours, theirs))
    return ratio_between(a, b, is_quiet, confidence)


def measure_interleaved(
    contestants: Sequence[TimedModel], rules: TurnRules, watch: Watch | None = None
) -> dict[str, list[Turn]]:
    """Return the turns of each contestant, as many as there are rounds, each round in another order.

    Goes on for up to half as many rounds more while too few of the first contestant's turns were undisturbed.
    watch: looks at the machine that all of them run on; None where nothing can.
    """
    counts, placed = {}, set[str]()
    for contestant in contestants:
        with _awake(contestant):
            contestant.time_runs(max(1, rules.warmup_runs))
            times_s = contestant.time_runs(3)
        counts[contestant.name] = _runs_per_turn(times_s, rules)
        if contestant.relocate and min(times_s) < _PLACED_RUN_S:
            placed.add(contestant.name)
    turns: dict[str, list[Turn]] = {contestant.name: [] for contestant in contestants}
    shuffled = np.random.default_rng(0)
    for number in range(round(_MOST_ROUNDS * rules.rounds)):
        is_late = _longest_s(turns) > _MOST_TIME * rules.rounds * rules.turn_s
        if number >= rules.rounds and (is_late or _is_enough(turns[contestants[0].name], rules)):
            break
        if number and number % math.ceil(rules.rounds / BLOCKS) == 0:
            placed -= {one.name for one in contestants if one.name in placed and _relocate(one) > _PLACED_S}
        for at in shuffled.permutation(len(contestants)):
            contestant = contestants[at]
            turns[contestant.name].append(_turn(contestant, counts[contestant.name], watch))
        if number >= 2 and _longest_s(turns) >= rules.max_seconds:
            break
    return turns


def _relocate(contestant: TimedModel) -> float:
    """Place a contestant anew and let it settle; returns the seconds that placing took."""
    assert contestant.relocate is not None
    with _awake(contestant):
        started = time.monotonic()
        contestant.relocate()
        took_s = time.monotonic() - started
        contestant.time_runs(_SETTLED_RUNS)
    return took_s


def _longest_s(turns: Mapping[str, Sequence[Turn]]) -> float:
    """Return how long all turns of the slowest contestant took."""
    return max(sum(turn.wall_s for turn in taken) for taken in turns.values())


def _is_enough(turns: Sequence[Turn], rules: TurnRules) -> bool:
    loop_ns = usual_loop_ns([turn.state for turn in turns])
    return sum(disturbance(turn.state, loop_ns, len(turn.times_s)) is None for turn in turns) >= _ENOUGH * rules.rounds


def _runs_per_turn(times_s: Sequence[float], rules: TurnRules) -> int:
    return max(rules.least_runs, math.ceil(rules.turn_s / max(float(np.min(times_s)), 1e-9)))


def _turn(contestant: TimedModel, count: int, watch: Watch | None) -> Turn:
    """Take a turn of so many runs, behind some that are not counted."""
    warm = max(1, round(_WARM_SHARE * count))
    with _awake(contestant):
        if watch is not None:
            watch.begin()
        started = time.monotonic()
        times = np.asarray(contestant.time_runs(warm + count), np.float64)
        wall_s = max(time.monotonic() - started, float(times.sum()))
    state = watch.end(contestant.group) if watch is not None else TurnState()  # while it cannot spin
    return Turn(times[warm:], wall_s, state)


@contextlib.contextmanager
def _awake(contestant: TimedModel) -> Any:
    _signal(contestant, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(contestant, signal.SIGSTOP)


def _signal(contestant: TimedModel, number: int) -> None:
    if contestant.group is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(contestant.group, number)


def foreign_load(turns: Sequence[Turn]) -> float | None:
    """Return the share of all processors that others took in these turns, None where no turn could see it."""
    seen = [(turn.state.foreign, turn.wall_s) for turn in turns if turn.state.foreign is not None]
    whole = sum(wall for _, wall in seen)
    return sum(share * wall for share, wall in seen) / whole if whole > 0 else None


def busy_threads(turns: Sequence[Turn]) -> float | None:
    """Return on how many threads a contestant computed at a time, by its processor seconds; None where they were not
    seen.
    """
    seen = [(turn.state.own_s, turn.wall_s) for turn in turns if turn.state.own_s is not None and turn.wall_s > 0]
    return sum(own for own, _ in seen) / sum(wall for _, wall in seen) if seen else None
