"""Define the summary of a latency and of the speedup over a baseline. Knows nothing of how they are measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvmflow.support.json_values import OPTIONAL


@dataclass(frozen=True)
class InState:
    """A latency in ms or a ratio in another machine state. share: of all turns that were in it."""

    round_trip_ns: float | None
    value: float
    low: float | None
    high: float | None
    share: float


@dataclass(frozen=True)
class TimedTurn:
    """A turn of runs in ms. counts: whether the latency is of it; why: what disturbed it, None if nothing was seen."""

    median_ms: float
    counts: bool
    why: str | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one run of one batch.

    median_ms: of the turns that count, with its interval low_ms to high_ms (None: too few turns). mean to std: of
    single runs in these turns. turns: number of all turns; undisturbed: of those without a disturbance. badges:
    descriptions of disturbances. round_trip_ns: between the cores in the reported state; elsewhere: the medians of the
    other states. foreign_load: share of all processors that others used; busy_threads: average number of computing
    threads; None if unknown. is_time: false for an emulated device, whose clock counts instructions.
    by_turn: all turns in their order, of the library only.
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
    by_turn: tuple[TimedTurn, ...] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True)
class Advantage:
    """Speedup over a baseline, over rounds of one state, with its interval; badges and elsewhere as in Latency.

    times_faster: None only if the baseline did not run as intended, with the reason.
    """

    times_faster: float | None
    low: float | None
    high: float | None
    rounds: int
    badges: tuple[str, ...] = ()
    round_trip_ns: float | None = None
    elsewhere: tuple[InState, ...] = ()
    reason: str | None = None

    @property
    def is_shown(self) -> bool:
        """Return whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high
