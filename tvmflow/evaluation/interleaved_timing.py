"""Time several models interleaved in short turns, and compare them over the rounds that they share.

A turn is a short series of consecutive runs of one model. Each round has one turn of every model, in a random order, so
that changes of the clock, heat and other load affect all models of a round alike. Each turn records the state of the
machine (machine_state.py), and turns are compared within one state. Between its turns a model's process is stopped,
since spinning threads would take a core from the others.

The addresses of a small network (cache sets of its pages, aliasing of 4 KiB) change its time by several percent for as
long as it stays there. So it is relocated for each block of turns: the result then holds for the next process too, and
the intervals, which are over blocks, include the variation between placements.
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
    number_states,
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
_WARM_SHARE = 0.1  # share of warm-up runs in a turn, since the caches hold data of another model
_MOST_ROUNDS = 1.5  # times the requested rounds, if too few were undisturbed,
_MOST_TIME = 3  # and times their duration on an idle machine
_ENOUGH = 1 / 3  # least share of undisturbed rounds in one state
_FEW = 1 / 5  # least share of undisturbed turns
_RELOCATE_RUN_S = 1e-3  # longer runs vary by less than a percent with the placement
_RELOCATE_S = 0.25  # a model that takes longer to relocate is not relocated
_SETTLED_RUNS = 100  # after relocation, since the network chooses the threads of its kernels anew


@dataclass(frozen=True)
class TimedModel:
    """A model to time. time_runs(n): seconds of n runs. group: its process group on this machine, stopped between its
    turns.

    relocate: moves its data to other addresses; None if that is not possible.
    """

    name: str
    time_runs: TimedRuns
    group: int | None = None
    relocate: Callable[[], None] | None = None


@dataclass(frozen=True)
class TurnRules:
    """turn_s: duration of a turn of at least least_runs runs; warmup_runs: before the first round. max_seconds: per
    model.
    """

    rounds: int
    turn_s: float
    least_runs: int
    warmup_runs: int = 3
    max_seconds: float = math.inf


@dataclass(frozen=True)
class Turn:
    """times_s: of each run. wall_s: of the turn. state: of the machine during the turn."""

    times_s: Sequence[float] | Array
    wall_s: float
    state: TurnState = field(default_factory=TurnState)
    median_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "median_s", float(np.median(self.times_s)))


@dataclass(frozen=True)
class ClassifiedTurns:
    """The turns of all models with their disturbances and machine states.

    disturbed: name -> reason per turn, None if undisturbed. states: name -> state number per turn, 0 for the nearest
    cores, None for a turn between two states. round_trips_ns: of each state.
    """

    turns: Mapping[str, Sequence[Turn]]
    disturbed: Mapping[str, Sequence[str | None]]
    states: Mapping[str, Sequence[int | None]]
    round_trips_ns: Sequence[float | None]

    def rounds_in_state(self, *names: str, state: int | None = None, undisturbed: bool = True) -> list[int]:
        """Return the rounds in which these models were in one state, by default only undisturbed ones.

        state: the state of these rounds, None for any shared one.
        """
        rounds = range(min(len(self.turns[name]) for name in names))
        found = []
        for at in rounds:
            states = {self.states[name][at] for name in names}
            same = len(states) == 1 and None not in states and (state is None or states == {state})
            if same and not (undisturbed and any(self.disturbed[name][at] for name in names)):
                found.append(at)
        return found

    def rounds_that_count(self, *names: str, state: int | None = None) -> tuple[list[int], bool]:
        """Return the rounds in one state that count, and whether they are undisturbed: all rounds if few are.

        Disturbances are not always detected: if nearly all turns are disturbed, those that seem undisturbed are often
        not the fastest.
        """
        every, undisturbed = (
            self.rounds_in_state(*names, state=state, undisturbed=False),
            self.rounds_in_state(*names, state=state),
        )
        if len(undisturbed) >= max(LEAST_BLOCKS, _FEW * len(every)):
            return undisturbed, True
        return every, False


def classify_turns(turns: Mapping[str, Sequence[Turn]], threads: int) -> ClassifiedTurns:
    """Determine the machine state and the disturbance of each turn. threads: per model; with one thread, the distance
    between cores does not matter.
    """
    machine_states = {
        name: [drop_round_trips(turn.state) if threads == 1 else turn.state for turn in turns_of_model]
        for name, turns_of_model in turns.items()
    }
    every = [state for states in machine_states.values() for state in states]
    loop_ns = usual_loop_ns(every)
    disturbed = {
        name: [disturbance(state, loop_ns, len(turn.times_s)) for state, turn in zip(states, turns[name], strict=True)]
        for name, states in machine_states.items()
    }
    numbers = iter(number_states([state.round_trip_ns for state in every]))
    by_name = {name: [next(numbers) for _ in states] for name, states in machine_states.items()}
    trips: dict[int, list[float]] = {}
    for name, states in machine_states.items():
        for state, number in zip(states, by_name[name], strict=True):
            if number is not None and state.round_trip_ns is not None:
                trips.setdefault(number, []).append(state.round_trip_ns)
    count = 1 + max((n for states in by_name.values() for n in states if n is not None), default=0)
    return ClassifiedTurns(
        turns, disturbed, by_name, [float(np.median(trips[n])) if n in trips else None for n in range(count)]
    )


def ratio_of(
    classified: ClassifiedTurns, ours: str, theirs: str, state: int | None = None, confidence: float = CONFIDENCE
) -> tuple[Estimate, list[int], int | None]:
    """Return how many times faster one model is than another, the rounds used, and their state.

    state: the preferred state; another one if it has too few shared rounds. Only undisturbed rounds count if there are
    enough.
    """
    every = range(len(classified.round_trips_ns))
    for one in [known for known in (state, *every) if known is not None]:
        rounds, is_quiet = classified.rounds_that_count(ours, theirs, state=one)
        if len(rounds) >= LEAST_BLOCKS:
            return ratio_at(classified, ours, theirs, rounds, is_quiet, confidence), rounds, one
    rounds = list(range(min(len(classified.turns[name]) for name in (ours, theirs))))
    return ratio_at(classified, ours, theirs, rounds, False, confidence), rounds, None


def ratio_at(
    classified: ClassifiedTurns,
    ours: str,
    theirs: str,
    rounds: Sequence[int],
    is_quiet: bool,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Return how many times faster one model is than another in these rounds. is_quiet: they are undisturbed."""
    a, b = ([classified.turns[name][at].median_s for at in rounds] for name in (ours, theirs))
    return ratio_between(a, b, is_quiet, confidence)


def measure_interleaved(
    models: Sequence[TimedModel], rules: TurnRules, watch: Watch | None = None
) -> dict[str, list[Turn]]:
    """Return the turns of each model, one per round, in a random order within each round.

    Adds up to half as many rounds while too few turns of the first model are undisturbed. watch: observes the machine,
    None if that is not possible.
    """
    counts, relocatable = {}, set[str]()
    for model in models:
        with _running(model):
            model.time_runs(max(1, rules.warmup_runs))
            times_s = model.time_runs(3)
        counts[model.name] = _runs_per_turn(times_s, rules)
        if model.relocate and min(times_s) < _RELOCATE_RUN_S:
            relocatable.add(model.name)
    turns: dict[str, list[Turn]] = {model.name: [] for model in models}
    random = np.random.default_rng(0)
    for number in range(round(_MOST_ROUNDS * rules.rounds)):
        is_late = _longest_s(turns) > _MOST_TIME * rules.rounds * rules.turn_s
        if number >= rules.rounds and (is_late or _is_enough(turns[models[0].name], rules)):
            break
        if number and number % math.ceil(rules.rounds / BLOCKS) == 0:
            relocatable -= {one.name for one in models if one.name in relocatable and _relocate(one) > _RELOCATE_S}
        for at in random.permutation(len(models)):
            model = models[at]
            turns[model.name].append(_time_turn(model, counts[model.name], watch))
        if number >= 2 and _longest_s(turns) >= rules.max_seconds:
            break
    return turns


def _relocate(model: TimedModel) -> float:
    """Relocate a model and let it settle; return the seconds that relocation took."""
    assert model.relocate is not None
    with _running(model):
        started = time.monotonic()
        model.relocate()
        took_s = time.monotonic() - started
        model.time_runs(_SETTLED_RUNS)
    return took_s


def _longest_s(turns: Mapping[str, Sequence[Turn]]) -> float:
    """Return the total time of the slowest model's turns."""
    return max(sum(turn.wall_s for turn in turns_of_model) for turns_of_model in turns.values())


def _is_enough(turns: Sequence[Turn], rules: TurnRules) -> bool:
    loop_ns = usual_loop_ns([turn.state for turn in turns])
    return sum(disturbance(turn.state, loop_ns, len(turn.times_s)) is None for turn in turns) >= _ENOUGH * rules.rounds


def _runs_per_turn(times_s: Sequence[float], rules: TurnRules) -> int:
    return max(rules.least_runs, math.ceil(rules.turn_s / max(float(np.min(times_s)), 1e-9)))


def _time_turn(model: TimedModel, count: int, watch: Watch | None) -> Turn:
    """Time a turn of `count` runs after some warm-up runs."""
    warm = max(1, round(_WARM_SHARE * count))
    with _running(model):
        if watch is not None:
            watch.begin()
        started = time.monotonic()
        times = np.asarray(model.time_runs(warm + count), np.float64)
        wall_s = max(time.monotonic() - started, float(times.sum()))
    state = watch.end(model.group) if watch is not None else TurnState()  # while the model is stopped
    return Turn(times[warm:], wall_s, state)


@contextlib.contextmanager
def _running(model: TimedModel) -> Any:
    _signal(model, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(model, signal.SIGSTOP)


def _signal(model: TimedModel, number: int) -> None:
    if model.group is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(model.group, number)


def foreign_load(turns: Sequence[Turn]) -> float | None:
    """Return the share of all processors that other processes used during these turns, None if unknown."""
    states = [(turn.state.foreign, turn.wall_s) for turn in turns if turn.state.foreign is not None]
    whole = sum(wall for _, wall in states)
    return sum(share * wall for share, wall in states) / whole if whole > 0 else None


def busy_threads(turns: Sequence[Turn]) -> float | None:
    """Return the average number of threads that computed, by CPU seconds; None if unknown."""
    states = [(turn.state.own_s, turn.wall_s) for turn in turns if turn.state.own_s is not None and turn.wall_s > 0]
    return sum(own for own, _ in states) / sum(wall for _, wall in states) if states else None
