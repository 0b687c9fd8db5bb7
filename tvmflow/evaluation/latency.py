"""The latency protocol: the same for a library on a device and for every peer beside it.

Warm up, then measure in many short turns. What is shown is what the undisturbed turns say (turn_statistics.py) in that
state of the machine in which the library is fastest, and within it the ratio to each peer; badges say what disturbed
the measurement, and other states are noted beside it. There is always a number: on a machine that is never quiet it is
about the lowest tenth of the turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
from tvmflow.evaluation.machine_state import Watch
from tvmflow.evaluation.turn_statistics import (
    LEAST_BLOCKS,
    Estimate,
    time_of,
)

LIBRARY = "tvmflow"
_THREADS_MARGIN = 0.5  # a runtime's own bookkeeping; one thread too many counts for 1
_DISTURBED = 1 / 3  # share of the turns from which on what disturbs them is said
_KNOWN = 0.03  # half of an interval, of its value, from which on how wide it is is said
_BY_REASON = {
    "waited": "waited for a processor in {:.0%} of the turns",
    "moved": "the cores moved in {:.0%} of the turns",
    "slowed": "cores shared or throttled in {:.0%} of the turns",
}


@dataclass(frozen=True)
class LatencyRules:
    """turns: of each contestant, of turn_ms each. warmup_runs: before all. max_seconds: of measuring one contestant.

    max_foreign_load: share of all processors that others may take before a badge says so.
    """

    warmup_runs: int
    turns: int
    turn_ms: float
    max_seconds: float
    max_foreign_load: float

    @property
    def of_turns(self) -> TurnRules:
        return TurnRules(self.turns, self.turn_ms / 1e3, 1, self.warmup_runs, self.max_seconds)


@dataclass(frozen=True)
class InState:
    """What was measured in another state of the machine: a latency in ms, or a ratio. share: of all turns that were in
    it.
    """

    round_trip_ns: float | None
    value: float
    low: float | None
    high: float | None
    share: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one run of one batch.

    median_ms: of the turns that count, with its interval low_ms to high_ms (None: too few turns). mean to std: of
    single runs in these turns. turns: all that were taken; undisturbed: those that count. badges: what disturbed the
    measurement, in words; none: nothing did. round_trip_ns: of the cores in the state that the numbers are of;
    elsewhere: the median in the other states. foreign_load: share of all processors that others took; busy_threads: on
    how many it computed. None: not seen. is_time: whether these are times at all; of an emulated device they count
    instructions.
    """

    mean_ms: float
    median_ms: float
    p90_ms: float
    min_ms: float
    max_ms: float
    std_ms: float
    runs: int
    turns: int
    undisturbed: int
    badges: tuple[str, ...] = ()
    low_ms: float | None = None
    high_ms: float | None = None
    round_trip_ns: float | None = None
    elsewhere: tuple[InState, ...] = ()
    foreign_load: float | None = None
    busy_threads: float | None = None
    is_time: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Advantage:
    """How many times faster than a peer, within rounds of one state, with its interval; badges and elsewhere as in
    Latency.

    times_faster: None only where the peer did not run as it should, with the reason.
    """

    times_faster: float | None
    low: float | None
    high: float | None
    rounds: int
    badges: tuple[str, ...] = ()
    round_trip_ns: float | None = None
    elsewhere: tuple[InState, ...] = ()
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Measured:
    """latency: by contestant. advantages: of the first contestant over each other."""

    latency: dict[str, Latency]
    advantages: dict[str, Advantage]


def measure_latencies(
    contestants: Sequence[TimedModel], rules: LatencyRules, threads: int, watch: Watch | None = None
) -> Measured:
    """Measure contestants on `threads` threads in turns; the first is the library, the others are its peers.

    watch: looks at the machine that they run on, None where nothing can.
    """
    return summarize_turns(measure_interleaved(contestants, rules.of_turns, watch), rules, threads)


def summarize_turns(turns: Mapping[str, Sequence[Turn]], rules: LatencyRules, threads: int) -> Measured:
    """Return what turns say. The first contestant is the library."""
    ours, *peers = turns
    in_order = classify_turns(turns, threads)
    latency = {name: latency_of(in_order, name, rules, threads) for name in turns}
    return Measured(latency, {name: _advantage(in_order, ours, name, latency) for name in peers})


def measure(timed_runs: TimedRuns, rules: LatencyRules) -> Latency:
    """Measure one thing by itself with `timed_runs(n)`, which runs n times and returns n times in seconds."""
    return measure_latencies([TimedModel(LIBRARY, timed_runs)], rules, threads=0).latency[LIBRARY]


def latency_of(in_order: ClassifiedTurns, name: str, rules: LatencyRules, threads: int) -> Latency:
    """Return the latency of a contestant in the state in which it is fastest, of those in which it was undisturbed."""
    turns = in_order.turns[name]
    state, chosen, is_quiet = _state_that_counts(in_order, name)
    estimate = _latency_at(turns, chosen, is_quiet)
    ms = 1e3 * np.concatenate([np.asarray(turns[at].times_s) for at in chosen])
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
        undisturbed=sum(reason is None for reason in in_order.disturbed[name]),
        badges=(
            *_badges(in_order, name, state, foreign, rules),
            *_wide(estimate),
            *_on_other_threads(busy, threads),
        ),
        low_ms=estimate.low,
        high_ms=estimate.high,
        round_trip_ns=_round_trip(in_order, state),
        elsewhere=_elsewhere(in_order, (name,), state, lambda at, is_quiet: _latency_at(turns, at, is_quiet)),
        foreign_load=foreign,
        busy_threads=busy,
    )


def _advantage(in_order: ClassifiedTurns, ours: str, theirs: str, latency: Mapping[str, Latency]) -> Advantage:
    for name in (ours, theirs):
        if wrong := [badge for badge in latency[name].badges if badge.startswith(_WRONG_THREADS)]:
            return Advantage(None, None, None, 0, reason=f"{name} {wrong[0]}")
    state, _, _ = _state_that_counts(in_order, ours)
    estimate, rounds, state = ratio_of(in_order, ours, theirs, state)
    badges = tuple(dict.fromkeys((*latency[ours].badges, *latency[theirs].badges)))
    beside = _elsewhere(
        in_order, (ours, theirs), state, lambda at, is_quiet: ratio_at(in_order, ours, theirs, at, is_quiet)
    )
    return Advantage(
        estimate.value, estimate.low, estimate.high, len(rounds), badges, _round_trip(in_order, state), beside
    )


def _state_that_counts(in_order: ClassifiedTurns, name: str) -> tuple[int | None, list[int], bool]:
    """Return the state in which a contestant is fastest, its turns there that count, and whether these are
    undisturbed.
    """
    turns = in_order.turns[name]
    found = {}
    for state in range(len(in_order.round_trips_ns)):
        chosen, is_quiet = in_order.counting(name, state=state)
        if len(chosen) >= LEAST_BLOCKS:
            found[state] = (_latency_at(turns, chosen, is_quiet).value, chosen, is_quiet)
    if found:
        state = min(found, key=lambda one: found[one][0])
        return state, *found[state][1:]
    chosen = in_order.chosen(name)
    return None, chosen or list(range(len(turns))), bool(chosen)


def _latency_at(turns: Sequence[Turn], chosen: Sequence[int], is_quiet: bool) -> Estimate:
    return time_of([1e3 * turns[at].median_s for at in chosen], is_quiet)


def _elsewhere(
    in_order: ClassifiedTurns, names: tuple[str, ...], state: int | None, of: Callable[[Sequence[int], bool], Estimate]
) -> tuple[InState, ...]:
    """Return what the turns of the other states say, the undisturbed ones where there are any."""
    found = []
    count = len(in_order.turns[names[0]])
    for other in range(len(in_order.round_trips_ns)):
        every = in_order.chosen(*names, state=other, undisturbed=False)
        if other != state and every:
            estimate = of(*in_order.counting(*names, state=other))
            trip_ns = in_order.round_trips_ns[other]
            found.append(InState(trip_ns, estimate.value, estimate.low, estimate.high, len(every) / count))
    return tuple(found)


def _round_trip(in_order: ClassifiedTurns, state: int | None) -> float | None:
    return None if state is None else in_order.round_trips_ns[state]


def _badges(
    in_order: ClassifiedTurns, name: str, state: int | None, foreign: float | None, rules: LatencyRules
) -> tuple[str, ...]:
    """Return what disturbed a contestant, in words."""
    reasons, states = in_order.disturbed[name], in_order.states[name]
    found = []
    if foreign is not None and foreign > rules.max_foreign_load:
        found.append(f"others used {foreign:.0%}")
    farther = sum(state is not None and one is not None and one > state for one in states) / len(states)
    if farther > _DISTURBED:
        found.append(f"cores far apart in {farther:.0%} of the turns")
    if sum(reason is not None for reason in reasons) > _DISTURBED * len(reasons):
        shares = {reason: reasons.count(reason) / len(reasons) for reason in _BY_REASON}
        worst = max(shares, key=lambda reason: shares[reason])
        if not (worst == "waited" and found):  # by whom is said already
            found.append(_BY_REASON[worst].format(shares[worst]))
    return tuple(found)


def _wide(estimate: Estimate) -> tuple[str, ...]:
    if estimate.low is None or estimate.high is None:
        return ()
    half = (estimate.high - estimate.low) / 2 / estimate.value
    return (f"known to ±{half:.0%}",) if half > _KNOWN else ()


_WRONG_THREADS = "ran on "


def _on_other_threads(busy: float | None, threads: int) -> tuple[str, ...]:
    if threads and busy is not None and busy > threads + _THREADS_MARGIN:
        return (f"{_WRONG_THREADS}{busy:.1f} threads instead of {threads}",)
    return ()


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
