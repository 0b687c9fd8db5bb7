"""Track one candidate schedule from build to record."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from tvmflow.backends.backend import Backend
from tvmflow.ir.tir.workloads import Workload, anchor_extents
from tvmflow.schedules.registry import Knobs, scheduled_function
from tvmflow.tuning.measure.build_pool import Built
from tvmflow.tuning.measure.jobs import Measured
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import ILLEGAL_SCHEDULE, OK, TuningRecord
from tvmflow.tuning.search.state import WorkloadSearch
from tvmflow.tuning.search.tuners import TunerFactory

REPLAYED = "replayed"  # template name of a replayed schedule of an older toolchain


@dataclass
class Candidate:
    """A candidate schedule. index: in the search's candidates; None for a replayed schedule of an older toolchain;
    is_suspect: that schedule seems to have become slower, and is measured in turns with the canary.
    """

    search: WorkloadSearch
    index: int | None
    knobs: Knobs
    built: Future[Built]
    record: TuningRecord | None = None
    is_suspect: bool = False

    def finish(self) -> None:
        """Count the candidate as no longer in flight; replayed schedules are not counted."""
        if self.index is not None:
            self.search.in_flight -= 1


def begin_search(
    workload: Workload, backend: Backend, factory: TunerFactory, before: TuningRecord | None
) -> WorkloadSearch | None:
    """Return the search of a workload, None if no template covers it. before: an older toolchain's best record."""
    match = backend.template_for(workload.function)
    if match is None:
        return None
    template, candidates = match
    sizes = anchor_extents(workload.function)
    scheduled = partial(scheduled_function, workload.function, template)
    tuner = factory.make(workload.key, template.name, candidates, sizes, scheduled)
    before_s = before.median_s if before is not None else 0.0
    return WorkloadSearch(workload, template.name, candidates, tuner, tuple(sizes), before_s=before_s)


def default_candidate(workload: Workload, backend: Backend) -> tuple[str, Knobs]:
    """Return template and knobs of a workload's first candidate, the default schedule."""
    match = backend.template_for(workload.function)
    assert match is not None
    return match[0].name, match[1][0]


def is_slower(now: TuningRecord, old: TuningRecord, limit: float) -> bool:
    """Return whether a replayed schedule takes longer than an older toolchain's record of it, by more than a limit.

    Its time must say so in canaries, since the clock may have changed, and on the same unit also in seconds, of its
    fastest turn: the old canary was timed apart from the old kernel, and what disturbs a measurement makes it slower,
    never faster.
    """
    most_s = old.median_s * (1 + limit)
    scale = old.canary_s / now.canary_s if old.canary_s and now.canary_s else 1.0
    is_same_unit = bool(old.unit) and (old.unit, old.build) == (now.unit, now.build)
    return now.median_s * scale > most_s and not (is_same_unit and min(now.seconds, default=now.median_s) <= most_s)


def record_of_candidate(candidate: Candidate, found: Measured, status: str, tuning_log: TuningLog) -> TuningRecord:
    """Return the record of a candidate that was built, and measured unless its status says otherwise."""
    search, built = candidate.search, candidate.built.result()
    return TuningRecord(
        workload=search.workload.key,
        name=search.workload.name,
        template=REPLAYED if candidate.index is None else search.template,
        knobs=candidate.knobs,
        trace=None if status == ILLEGAL_SCHEDULE else built.trace,
        seconds=found.seconds,
        status=status,
        device_kind=tuning_log.device_kind,
        toolchain=tuning_log.toolchain,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        canary_s=found.canary_s,
        flops=search.flops,
        extents=search.extents,
        error="" if status == OK else found.error or built.error or status,
        unit=found.unit,
        build=found.build,
    )
