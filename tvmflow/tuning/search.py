"""Search the schedules of a network's kernels on a device, and remember every measurement."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tvm import s_tir

from tvmflow.devices.session import DeviceSession
from tvmflow.passes.schedule_kernels import replay
from tvmflow.stages import Progress
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.measure import KernelBench, MeasureRules
from tvmflow.tuning.records import COMPILE_ERROR, TuningRecord, append_record, best_of, read_records
from tvmflow.tuning.templates import Knobs, Template, scheduled, template_for
from tvmflow.tuning.workloads import Workload


@dataclass(frozen=True)
class SearchRules:
    """tuner: order in which candidates are tried; early_stopping: trials without a gain after which a kernel is left."""

    tuner: str
    trials: int
    early_stopping: int
    seed: int
    replay_slowdown: float
    measure: MeasureRules


@dataclass(frozen=True)
class Journal:
    """Where measurements are kept, and under which device kind and toolchain they count."""

    path: Path
    device_kind: str
    toolchain: dict[str, str]

    def known(self) -> list[TuningRecord]:
        """Return the records of this device kind that this toolchain made."""
        return [record for record in self._of_this_device() if record.same_toolchain(self.toolchain)]

    def from_other_toolchains(self) -> list[TuningRecord]:
        """Return the records of this device kind that were measured before an upgrade."""
        return [record for record in self._of_this_device() if not record.same_toolchain(self.toolchain)]

    def _of_this_device(self) -> list[TuningRecord]:
        return [record for record in read_records(self.path) if record.device_kind == self.device_kind]

    def add(self, record: TuningRecord) -> None:
        append_record(self.path, record)


@dataclass
class TuneReport:
    """What became of each workload: replayed from an older toolchain, lost or slower there, or searched for."""

    best: dict[str, TuningRecord]
    replayed: int = 0
    lost: int = 0
    slower: int = 0
    searched: int = 0


def tune(
    workloads: list[Workload], session: DeviceSession, target: ResolvedTarget, rules: SearchRules, journal: Journal,
    folder: Path, progress: Progress,
) -> TuneReport:  # fmt: skip
    """Tune workloads one after the other. What the journal already has is not measured again.

    A workload that an older toolchain tuned gets its old schedule replayed and measured; only where the schedule is
    lost, or slower than before by more than the rules allow, it is searched for anew.
    """
    known, old = journal.known(), best_of(journal.from_other_toolchains())
    report = TuneReport({})
    search = KernelSearch(session, target, rules, journal, folder)
    for index, workload in enumerate(workloads):
        done = [record for record in known if record.workload == workload.key]
        if not _replay(workload, old.get(workload.key), done, search, report):
            report.searched += 1
            _tune_one(workload, done, search)
        progress(f"tuning {workload.name}", index + 1, len(workloads))
    wanted = {workload.key for workload in workloads}
    report.best = best_of([record for record in journal.known() if record.workload in wanted])
    return report


REPLAYED = "replayed"


def _replay(
    workload: Workload, old: TuningRecord | None, done: list[TuningRecord], search: KernelSearch, report: TuneReport
) -> bool:
    """Measure an older toolchain's best schedule. Returns whether it is as good as it was, so that no search is needed."""
    if old is None:
        return False
    record = next((r for r in done if r.template == REPLAYED), None)
    if record is None:
        journal = search.journal
        try:
            function = replay(workload.function, old.trace).mod["main"]
        except (s_tir.ScheduleError, RuntimeError, ValueError, TypeError):
            record = make_record(workload, REPLAYED, old.knobs, None, (COMPILE_ERROR, ()), journal)
        else:
            bench = KernelBench(workload, search.session, search.target, search.rules.measure, search.folder)
            measured = bench.measure(function)
            if measured[1] and median(measured[1]) > old.median_s * (1 + search.rules.replay_slowdown):
                measured = min(measured, bench.measure(function), key=lambda m: median(m[1]) if m[1] else float("inf"))
            record = make_record(workload, REPLAYED, old.knobs, old.trace, measured, journal)
        journal.add(record)
    if not record.seconds:
        report.lost += 1
        return False
    if record.median_s > old.median_s * (1 + search.rules.replay_slowdown):
        report.slower += 1
        return False
    report.replayed += 1
    return True


@dataclass(frozen=True)
class KernelSearch:
    session: DeviceSession
    target: ResolvedTarget
    rules: SearchRules
    journal: Journal
    folder: Path


def _tune_one(workload: Workload, done: list[TuningRecord], search: KernelSearch) -> None:
    found = template_for(workload.function)
    if found is None:
        return
    template, candidates = found
    seen = {_knob_key(record.knobs): record for record in done if record.template == template.name}
    bench: KernelBench | None = None
    best, since = float("inf"), 0
    for knobs in _ordered(candidates, search.rules, workload.key)[: search.rules.trials]:
        record = seen.get(_knob_key(knobs))
        if record is None:
            if bench is None:
                bench = KernelBench(workload, search.session, search.target, search.rules.measure, search.folder)
            record = _try(workload, template, knobs, bench, search.journal)
            search.journal.add(record)
        since = 0 if record.median_s < best * 0.99 else since + 1
        best = min(best, record.median_s)
        if since >= search.rules.early_stopping:
            return


def _try(workload: Workload, template: Template, knobs: Knobs, bench: KernelBench, journal: Journal) -> TuningRecord:
    try:
        schedule = scheduled(workload.function, template, knobs)
    except (s_tir.ScheduleError, RuntimeError, ValueError, TypeError):
        return make_record(workload, template.name, knobs, None, (COMPILE_ERROR, ()), journal)
    measured = bench.measure(schedule.mod["main"])
    return make_record(workload, template.name, knobs, trace_json(schedule), measured, journal)


def trace_json(schedule: Any) -> Any:
    """Return a schedule's trace as plain lists, numbers and strings, which another version of TVM can replay."""
    return _plain(schedule.trace.as_json())


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return value
    if hasattr(value, "value"):
        return _plain(value.value)
    return [_plain(item) for item in value]


def make_record(
    workload: Workload, template: str, knobs: Knobs, trace: Any, measured: tuple[str, tuple[float, ...]], journal: Journal
) -> TuningRecord:  # fmt: skip
    return TuningRecord(
        workload=workload.key, name=workload.name, template=template, knobs=knobs, trace=trace, seconds=measured[1],
        status=measured[0], device_kind=journal.device_kind, toolchain=journal.toolchain,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def _knob_key(knobs: Knobs) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(knobs.items()))


def _ordered(candidates: list[Knobs], rules: SearchRules, key: str) -> list[Knobs]:
    """Return the default first; then the template's own order, or a shuffle fixed by seed and workload."""
    rest = candidates[1:]
    if rules.tuner == "random":
        random.Random(f"{rules.seed}:{key}").shuffle(rest)  # noqa: S311
    return [candidates[0], *rest]
