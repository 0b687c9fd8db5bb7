"""Define the state of a search: each workload being tuned, and the report over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tvmflow.ir.tir.workloads import Workload
from tvmflow.schedules.registry import Knobs
from tvmflow.tuning.measure.jobs import DevicePoolCounts, Measured
from tvmflow.tuning.records.origins import NEW, REUSED
from tvmflow.tuning.records.record import TuningRecord
from tvmflow.tuning.search.tuners import Tuner

GAIN = 0.01  # less is noise


@dataclass
class WorkloadSearch:
    """One workload while it is tuned. in_flight: candidates being built or measured.

    measured: candidates of this run; spent_s, build_s: time to measure and to compile them. before_s: the best time
    with an older toolchain, 0 without one; replayed: the outcome of that schedule: REMEASURED if it is still as fast,
    RETUNED if it got slower, LOST if it does not apply.
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
        """Return the origin of the schedule, as named in origins.py."""
        if not self.measured:
            return REUSED
        return self.replayed or NEW

    def learn(self, index: int | None, seconds: float) -> None:
        """Add a measurement of this run or an earlier one; infinity for a failure."""
        self.trials += 1
        if index is not None:
            self.tuner.tell(index, seconds)
            self.default_s = seconds if index == 0 else self.default_s
        self.since_gain = 0 if seconds < self.best_s * (1 - GAIN) else self.since_gain + 1
        self.best_s = min(self.best_s, seconds)


@dataclass
class TuneReport:
    """The result and cost of a search.

    replayed, lost, slower: schedules of an older toolchain that are as fast, do not apply, or got slower; searched:
    workloads that were searched. unbuilt: candidates that this machine could not build, about which nothing is known.
    failures: status -> count. device_s: summed measuring time of all devices. units: unit of a device -> schedules that
    it measured. stopped: why the search ended; promised: the share of the network's time that another minute was
    expected to save.
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
    device_pool: DevicePoolCounts = field(default_factory=DevicePoolCounts)
    searches: list[WorkloadSearch] = field(default_factory=list)


Watch = Callable[[list[WorkloadSearch], TuneReport], None]


def fastest_kernel(searches: list[WorkloadSearch]) -> float:
    """Return the operations per second of the fastest kernel so far, 0 if none was measured."""
    return max((t.flops / t.best_s for t in searches if t.flops and math.isfinite(t.best_s)), default=0.0)
