"""Measure latency by one protocol, for a library on a device and for the baselines beside it.

After a warm-up, measure in many short turns. The reported value is over the undisturbed turns (turn_statistics.py) in
the machine state in which the library is fastest, as is the ratio to each baseline. Badges name the disturbances;
results of other states are listed beside it. There is always a value: on a machine that is never idle it is about the
lowest tenth of the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvmflow.evaluation.interleaved_timing import (
    ClassifiedTurns,
    TimedModel,
    TimedRuns,
    Turn,
    TurnRules,
    busy_threads,
    classify_turns,
    foreign_load,
    measure_interleaved,
    ratio_at,
    ratio_of,
)
from tvmflow.evaluation.latency_summary import Advantage, InState, Latency, TimedTurn
from tvmflow.evaluation.machine_state import Watch
from tvmflow.evaluation.turn_statistics import (
    LEAST_BLOCKS,
    Estimate,
    estimate_time,
)

LIBRARY = "tvmflow"
_THREADS_MARGIN = 0.5  # for a runtime's own threads; one additional compute thread counts as 1
_DISTURBED = 1 / 3  # share of disturbed turns above which a badge is added
_KNOWN = 0.03  # relative half-width of an interval above which a badge is added
_BY_REASON = {
    "waited": "waited for a processor in {:.0%} of the turns",
    "moved": "the cores moved in {:.0%} of the turns",
    "slowed": "cores shared or throttled in {:.0%} of the turns",
}


@dataclass(frozen=True)
class LatencyRules:
    """turns: per model, of turn_ms each. warmup_runs: before the first turn. max_seconds: per model.

    max_foreign_load: share of all processors used by others above which a badge is added.
    """

    warmup_runs: int
    turns: int
    turn_ms: float
    max_seconds: float
    max_foreign_load: float

    @property
    def turn_rules(self) -> TurnRules:
        return TurnRules(self.turns, self.turn_ms / 1e3, 1, self.warmup_runs, self.max_seconds)


@dataclass(frozen=True)
class Measured:
    """latency: by model. advantages: of the first model over each other one."""

    latency: dict[str, Latency]
    advantages: dict[str, Advantage]


def measure_latencies(
    models: Sequence[TimedModel], rules: LatencyRules, threads: int, watch: Watch | None = None
) -> Measured:
    """Measure models on `threads` threads, interleaved; the first is the library, the others are baselines.

    watch: observes the machine, None if that is not possible.
    """
    return summarize_turns(measure_interleaved(models, rules.turn_rules, watch), rules, threads)


def summarize_turns(turns: Mapping[str, Sequence[Turn]], rules: LatencyRules, threads: int) -> Measured:
    """Return the results of turns. The first model is the library."""
    ours, *baselines = turns
    classified = classify_turns(turns, threads)
    latency = {name: latency_of(classified, name, rules, threads) for name in turns}
    return Measured(latency, {name: _advantage(classified, ours, name, latency) for name in baselines})


def measure(timed_runs: TimedRuns, rules: LatencyRules) -> Latency:
    """Measure one model alone; `timed_runs(n)` runs n times and returns n times in seconds."""
    found = measure_latencies([TimedModel(LIBRARY, timed_runs)], rules, threads=0)
    return replace(found.latency[LIBRARY], by_turn=())


def latency_of(classified: ClassifiedTurns, name: str, rules: LatencyRules, threads: int) -> Latency:
    """Return the latency of a model in its fastest state, preferably one with undisturbed turns."""
    turns = classified.turns[name]
    state, rounds, is_quiet = _fastest_state(classified, name)
    estimate = _latency_at(turns, rounds, is_quiet)
    ms = 1e3 * np.concatenate([np.asarray(turns[at].times_s) for at in rounds])
    foreign, busy = foreign_load(turns), busy_threads(turns)
    return Latency(
        mean_ms=float(ms.mean()),
        median_ms=estimate.value,
        p90_ms=float(np.percentile(ms, 90)),
        min_ms=float(ms.min()),
        max_ms=float(ms.max()),
        std_ms=float(ms.std()),
        runs=len(ms),
        turns=len(turns),
        undisturbed=sum(reason is None for reason in classified.disturbed[name]),
        badges=(
            *_disturbance_badges(classified, name, state, foreign, rules),
            *_interval_badges(estimate),
            *_thread_badges(busy, threads),
        ),
        low_ms=estimate.low,
        high_ms=estimate.high,
        round_trip_ns=_round_trip(classified, state),
        elsewhere=_elsewhere(classified, (name,), state, lambda at, is_quiet: _latency_at(turns, at, is_quiet)),
        foreign_load=foreign,
        busy_threads=busy,
        by_turn=_by_turn(classified, name, rounds) if name == LIBRARY else (),
    )


def _by_turn(classified: ClassifiedTurns, name: str, rounds: Sequence[int]) -> tuple[TimedTurn, ...]:
    """Return the turns of a model in their order. rounds: those that count."""
    counting = set(rounds)
    reasons = zip(classified.turns[name], classified.disturbed[name], strict=True)
    return tuple(TimedTurn(1e3 * turn.median_s, at in counting, why) for at, (turn, why) in enumerate(reasons))


def _advantage(classified: ClassifiedTurns, ours: str, theirs: str, latency: Mapping[str, Latency]) -> Advantage:
    for name in (ours, theirs):
        if wrong := [badge for badge in latency[name].badges if badge.startswith(_WRONG_THREADS)]:
            return Advantage(None, None, None, 0, reason=f"{name} {wrong[0]}")
    state, _, _ = _fastest_state(classified, ours)
    estimate, rounds, state = ratio_of(classified, ours, theirs, state)
    badges = tuple(dict.fromkeys((*latency[ours].badges, *latency[theirs].badges)))
    elsewhere = _elsewhere(
        classified, (ours, theirs), state, lambda at, is_quiet: ratio_at(classified, ours, theirs, at, is_quiet)
    )
    return Advantage(
        estimate.value, estimate.low, estimate.high, len(rounds), badges, _round_trip(classified, state), elsewhere
    )


def _fastest_state(classified: ClassifiedTurns, name: str) -> tuple[int | None, list[int], bool]:
    """Return the state in which a model is fastest, its turns there that count, and whether these are undisturbed."""
    turns = classified.turns[name]
    found = {}
    for state in range(len(classified.round_trips_ns)):
        rounds, is_quiet = classified.rounds_that_count(name, state=state)
        if len(rounds) >= LEAST_BLOCKS:
            found[state] = (_latency_at(turns, rounds, is_quiet).value, rounds, is_quiet)
    if found:
        state = min(found, key=lambda one: found[one][0])
        return state, *found[state][1:]
    rounds = classified.rounds_in_state(name)
    return None, rounds or list(range(len(turns))), bool(rounds)


def _latency_at(turns: Sequence[Turn], rounds: Sequence[int], is_quiet: bool) -> Estimate:
    return estimate_time([1e3 * turns[at].median_s for at in rounds], is_quiet)


def _elsewhere(
    classified: ClassifiedTurns,
    names: tuple[str, ...],
    state: int | None,
    estimate_at: Callable[[Sequence[int], bool], Estimate],
) -> tuple[InState, ...]:
    """Return the results of the other states, from undisturbed turns if there are any."""
    found = []
    count = len(classified.turns[names[0]])
    for other in range(len(classified.round_trips_ns)):
        every = classified.rounds_in_state(*names, state=other, undisturbed=False)
        if other != state and every:
            estimate = estimate_at(*classified.rounds_that_count(*names, state=other))
            trip_ns = classified.round_trips_ns[other]
            found.append(InState(trip_ns, estimate.value, estimate.low, estimate.high, len(every) / count))
    return tuple(found)


def _round_trip(classified: ClassifiedTurns, state: int | None) -> float | None:
    return None if state is None else classified.round_trips_ns[state]


def _disturbance_badges(
    classified: ClassifiedTurns, name: str, state: int | None, foreign: float | None, rules: LatencyRules
) -> tuple[str, ...]:
    """Return the disturbances of a model as badges."""
    reasons, states = classified.disturbed[name], classified.states[name]
    found = []
    if foreign is not None and foreign > rules.max_foreign_load:
        found.append(f"others used {foreign:.0%}")
    farther = sum(state is not None and one is not None and one > state for one in states) / len(states)
    if farther > _DISTURBED:
        found.append(f"cores far apart in {farther:.0%} of the turns")
    if sum(reason is not None for reason in reasons) > _DISTURBED * len(reasons):
        shares = {reason: reasons.count(reason) / len(reasons) for reason in _BY_REASON}
        worst = max(shares, key=lambda reason: shares[reason])
        if not (worst == "waited" and found):  # the first badge already names the cause
            found.append(_BY_REASON[worst].format(shares[worst]))
    return tuple(found)


def _interval_badges(estimate: Estimate) -> tuple[str, ...]:
    if estimate.low is None or estimate.high is None:
        return ()
    half = (estimate.high - estimate.low) / 2 / estimate.value
    return (f"known to ±{half:.0%}",) if half > _KNOWN else ()


_WRONG_THREADS = "ran on "


def _thread_badges(busy: float | None, threads: int) -> tuple[str, ...]:
    if threads and busy is not None and busy > threads + _THREADS_MARGIN:
        return (f"{_WRONG_THREADS}{busy:.1f} threads instead of {threads}",)
    return ()


def make_timer(run: Callable[[], object]) -> TimedRuns:
    """Return a function that times runs of a function in this process."""

    def timed_runs(count: int) -> list[float]:
        times = []
        for _ in range(count):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return times

    return timed_runs
