"""The state of a search: each workload while it is tuned, and the report of what became of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tvmflow.ir.tir.workloads import Workload
from tvmflow.schedules.registry import Knobs
from tvmflow.tuning.measure.jobs import FleetCounts, Measured
from tvmflow.tuning.records.origins import NEW, REUSED
from tvmflow.tuning.records.record import TuningRecord
from tvmflow.tuning.search.tuners import Tuner

GAIN = 0.01  # less is noise


@dataclass
class WorkloadSearch:
    """One workload while it is tuned. in_flight: candidates that are being built or measured.

    measured: candidates of this run; spent_s, build_s: what measuring and compiling them took. before_s: the best time
    under an older toolchain, 0 where there is none; replayed: what became of that schedule: REMEASURED where it held,
    RETUNED where it got slower, LOST where it does not apply.
    """

    workload: Workload
    template: str
    candidates: list[Knobs]
    tuner: Tuner
    extents: tuple[int, ...]
    trials: int = 0
    in_flight: int = 0
    since_gain: int = 0
    default_s: float = math.inf
    best_s: float = math.inf
    spent_s: float = 0.0
    build_s: float = 0.0
    exhausted: bool = False
    measured: int = 0
    before_s: float = 0.0
    replayed: str = ""
    digests: dict[str, Measured] = field(default_factory=dict)

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.extents) if self.extents else 0.0

    @property
    def origin(self) -> str:
        """Return where this run's schedule comes from, as origins.py names it."""
        if not self.measured:
            return REUSED
        return self.replayed or NEW

    def learn(self, index: int | None, seconds: float) -> None:
        """Take in a measurement, of this run or of an earlier one; infinity where it failed."""
        self.trials += 1
        if index is not None:
            self.tuner.tell(index, seconds)
            self.default_s = seconds if index == 0 else self.default_s
        self.since_gain = 0 if seconds < self.best_s * (1 - GAIN) else self.since_gain + 1
        self.best_s = min(self.best_s, seconds)


@dataclass
class TuneReport:
    """What became of each workload, and what it cost.

    replayed, lost, slower: schedules of an older toolchain that held, did not apply, or got slower; searched: workloads
    that were searched. unbuilt: candidates that this machine could not build, and of which nothing is known. failures:
    status -> count. device_s: seconds that devices measured, over all of them. units: unit of a device -> how many
    schedules it measured. stopped: why the search ended; promised: the share of the network's time that another minute
    was then expected to win.
    """

    best: dict[str, TuningRecord]
    replayed: int = 0
    lost: int = 0
    slower: int = 0
    searched: int = 0
    measured: int = 0
    reused: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    device_s: float = 0.0
    unbuilt: int = 0
    stopped: str = ""
    promised: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)
    fleet: FleetCounts = field(default_factory=FleetCounts)
    searches: list[WorkloadSearch] = field(default_factory=list)


Watch = Callable[[list[WorkloadSearch], TuneReport], None]


def fastest_kernel(searches: list[WorkloadSearch]) -> float:
    """Return the operations per second of the fastest kernel so far, 0 where none was measured."""
    return max((t.flops / t.best_s for t in searches if t.flops and math.isfinite(t.best_s)), default=0.0)
