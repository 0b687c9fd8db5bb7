"""Search the schedules of a network's kernels on a device, and remember every measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tvmflow.errors import StageError
from tvmflow.stages import Progress
from tvmflow.targets.machine import machine_of
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.builder import BuildPool, Built
from tvmflow.tuning.canary import canary_workload
from tvmflow.tuning.fleet import Fleet, FleetCounts, FleetRules, Job, Measured, OpenSession
from tvmflow.tuning.measure import inputs_of
from tvmflow.tuning.records import (
    COMPILE_ERROR,
    ILLEGAL_SCHEDULE,
    OK,
    TuningRecord,
    append_record,
    best_of,
    read_records,
)  # fmt: skip
from tvmflow.tuning.templates import Knobs, template_for
from tvmflow.tuning.tuners import Loss, Tuner, TunerFactory, knob_key
from tvmflow.tuning.workloads import Workload, anchor_extents

REPLAYED = "replayed"
_ROUND = 8  # candidates in one round, for each device
_GAIN = 0.01  # less is noise


@dataclass(frozen=True)
class SearchRules:
    """tuner, loss: see tuners. early_stopping: trials of a workload without a gain after which it is left.

    total_trials, seconds: budgets of the whole search, 0 for none. overlap: build while measuring, which a device that is
    this machine would feel.
    """

    tuner: str
    loss: Loss
    trials: int
    total_trials: int
    seconds: float
    early_stopping: int
    seed: int
    replay_slowdown: float
    build_workers: int
    build_timeout_s: float
    overlap: bool
    fleet: FleetRules


@dataclass(frozen=True)
class Journal:
    """Where measurements are kept, and under which device kind and toolchain they count.

    A cell writes to a log of its own, which DVC versions with it, and reads those of all cells beside it.
    """

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
        logs = sorted({self.path, *self.path.parent.glob("*.jsonl")})
        return [record for log in logs for record in read_records(log) if record.device_kind == self.device_kind]

    def add(self, record: TuningRecord) -> None:
        append_record(self.path, record)


@dataclass
class Task:
    """One workload while it is tuned. in_flight: candidates that are being built or measured."""

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
    exhausted: bool = False
    digests: dict[str, tuple[str, tuple[float, ...], float]] = field(default_factory=dict)

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.extents) if self.extents else 0.0

    def learn(self, index: int | None, seconds: float) -> None:
        """Take in a measurement, of this run or of an earlier one; infinity where it failed."""
        self.trials += 1
        if index is not None:
            self.tuner.tell(index, seconds)
            self.default_s = seconds if index == 0 else self.default_s
        self.since_gain = 0 if seconds < self.best_s * (1 - _GAIN) else self.since_gain + 1
        self.best_s = min(self.best_s, seconds)

    def promise(self) -> float:
        """Return how many seconds of the network a further trial may win: its share, less the longer nothing came."""
        if math.isinf(self.best_s):
            return math.inf if self.trials == 0 else 0.0
        return self.workload.calls * self.best_s / (1 + self.since_gain)


@dataclass
class TuneReport:
    """What became of each workload, and what it cost.

    replayed, lost, slower: schedules of an older toolchain that held, did not apply, or got slower; searched: workloads
    that were searched. failures: status -> count. device_s: seconds that devices measured, over all of them.
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
    failures: dict[str, int] = field(default_factory=dict)
    fleet: FleetCounts = field(default_factory=FleetCounts)
    tasks: list[Task] = field(default_factory=list)


Watch = Callable[[list[Task], TuneReport], None]


def tune(
    workloads: list[Workload], open_session: OpenSession, target: ResolvedTarget, rules: SearchRules, journal: Journal,
    folder: Path, progress: Progress, watch: Watch | None = None,
) -> TuneReport:  # fmt: skip
    """Tune workloads side by side, always the one that may win most. What the journal already has is not measured again.

    A workload that an older toolchain tuned gets its old schedule replayed and measured; only where the schedule is
    lost, or slower than before by more than the rules allow, it is searched for anew. Raises DeviceError when no device
    can be had; what was measured until then is in the journal.
    """
    search = _Search(workloads, target, rules, journal, folder, progress, watch)
    if search.wants_device():
        search.run(open_session)
    wanted = {workload.key for workload in workloads}
    search.report.best = best_of([record for record in journal.known() if record.workload in wanted])
    return search.report


class _Search:
    def __init__(
        self, workloads: list[Workload], target: ResolvedTarget, rules: SearchRules, journal: Journal, folder: Path,
        progress: Progress, watch: Watch | None,
    ) -> None:  # fmt: skip
        self.target, self.rules, self.journal, self.folder = target, rules, journal, folder
        self.progress, self.watch = progress, watch
        self.report = TuneReport({})
        self.last_error = ""
        self.started = time.monotonic()
        self.old = best_of(journal.from_other_toolchains())
        self.known: dict[str, list[TuningRecord]] = {}
        for record in journal.known():
            self.known.setdefault(record.workload, []).append(record)
        factory = TunerFactory(rules.tuner, rules.loss, rules.seed)
        self.tasks = [task for w in workloads if (task := self._task(w, factory)) is not None]
        for key in self.known.keys() - {task.workload.key for task in self.tasks}:  # what other networks taught
            for record in self.known[key]:
                if record.extents and record.template != REPLAYED:
                    factory.learn(key, record.template, list(record.extents), record.knobs, record.median_s)
        self.report.tasks = self.tasks
        self.to_replay = [task for task in self.tasks if task.workload.key in self.old]
        for task in self.tasks:
            self._recall(task)

    # -- what is known before anything is measured --

    def _task(self, workload: Workload, factory: TunerFactory) -> Task | None:
        found = template_for(workload.function, machine_of(self.target))
        if found is None:
            return None
        template, candidates = found
        sizes = anchor_extents(workload.function)
        tuner = factory.make(workload.key, template.name, candidates, sizes)
        return Task(workload, template.name, candidates, tuner, tuple(sizes))

    def _recall(self, task: Task) -> None:
        index = {knob_key(knobs): at for at, knobs in enumerate(task.candidates)}
        for record in self.known.get(task.workload.key, []):
            if record.template == REPLAYED:
                self._judge_replay(task, record)
                self.to_replay = [other for other in self.to_replay if other is not task]
            at = index.get(knob_key(record.knobs)) if record.template == task.template else None
            task.learn(at, record.median_s)
            self.report.reused += 1

    def wants_device(self) -> bool:
        return bool(self.to_replay) or any(self._open(task) for task in self.tasks)

    def _open(self, task: Task) -> bool:
        return (
            not task.exhausted and task.trials + task.in_flight < min(self.rules.trials, len(task.candidates))
            and task.since_gain < self.rules.early_stopping
        )  # fmt: skip

    def _budget_left(self) -> bool:
        rules = self.rules
        if rules.total_trials and self.report.measured >= rules.total_trials:
            return False
        return not rules.seconds or time.monotonic() - self.started < rules.seconds

    # -- the loop --

    def run(self, open_session: OpenSession) -> None:
        rules = self.rules
        with BuildPool(rules.build_workers, self.target, self.folder, rules.build_timeout_s) as pool:
            canary = canary_workload()
            canary_built = pool.build(canary, *_default(canary, self.target))
            with Fleet(open_session, rules.fleet, (canary, canary_built.result().library)) as fleet:
                self.report.fleet = fleet.counts
                self._know(fleet, pool, canary)
                self._replay_all(fleet, pool)
                before = {task.workload.key for task in self.tasks if task.trials}
                ahead: list[_Candidate] = []
                while True:
                    batch = ahead or self._propose(fleet, pool)
                    ahead = []
                    if not batch or not self._budget_left():
                        break
                    if rules.overlap:
                        ahead = self._propose(fleet, pool)
                        fleet.measure(self._collect(fleet, batch), self._record)
                    else:  # nothing is built while this machine measures
                        fleet.measure(list(self._collect(fleet, batch)), self._record)
                    self._show()
                for candidate in ahead:
                    candidate.built.cancel()
                self.report.searched = len({t.workload.key for t in self.tasks if t.trials} - before)
        self.report.seconds = time.monotonic() - self.started
        if self.report.failures.get(COMPILE_ERROR) and not any(math.isfinite(task.best_s) for task in self.tasks):
            raise StageError(
                f"not one of {sum(self.report.failures.values())} schedules could be compiled; the last error: "
                f"{self.last_error}", "a compiler that works for the target", "run 'tvmflow doctor'; correct the target",
            )  # fmt: skip

    def _know(self, fleet: Fleet, pool: BuildPool, workload: Workload) -> None:
        """Make the inputs of a workload and the plain kernel, whose answer every schedule must give."""
        if workload.key not in fleet.references.arrays:
            fleet.references.arrays[workload.key] = inputs_of(workload)
            fleet.references.plain[workload.key] = pool.build(workload)

    def _replay_all(self, fleet: Fleet, pool: BuildPool) -> None:
        tasks, self.to_replay = self.to_replay, []
        batch = []
        for task in tasks:
            self._know(fleet, pool, task.workload)
            trace = self.old[task.workload.key].trace
            batch.append(
                _Candidate(task, None, self.old[task.workload.key].knobs, pool.build(task.workload, trace=trace))
            )
        fleet.measure(list(self._collect(fleet, batch)), self._record)
        slow = [c for c in batch if c.record is not None and c.record.seconds and self._slower(c.task, c.record)]
        # Once more before it counts as slower: clocks move.
        fleet.measure(list(self._collect(fleet, slow)), self._record)
        for candidate in batch:
            if candidate.record is not None:
                self._judge_replay(candidate.task, candidate.record)

    def _slower(self, task: Task, record: TuningRecord) -> bool:
        old = self.old[task.workload.key]
        scale = old.canary_s / record.canary_s if old.canary_s and record.canary_s else 1.0
        return record.median_s * scale > old.median_s * (1 + self.rules.replay_slowdown)

    def _judge_replay(self, task: Task, record: TuningRecord) -> None:
        if task.workload.key not in self.old:
            return
        if not record.seconds:
            self.report.lost += 1
        elif self._slower(task, record):
            self.report.slower += 1
        else:
            self.report.replayed += 1
            task.exhausted = True

    def _propose(self, fleet: Fleet, pool: BuildPool) -> list[_Candidate]:
        """Start to build the next round: candidates of the workloads that may win most."""
        wanted = _ROUND * self.rules.fleet.slots
        batch: list[_Candidate] = []
        while len(batch) < wanted:
            open_tasks = [task for task in self.tasks if self._open(task) and task not in [c.task for c in batch]]
            if not open_tasks:
                break
            task = max(open_tasks, key=lambda t: (t.promise(), t.flops * t.workload.calls))
            count = 1 if task.trials == 0 else max(wanted // 2, 1)
            indices = task.tuner.ask(min(count, self.rules.trials - task.trials - task.in_flight, wanted - len(batch)))
            if not indices:
                task.exhausted = True
                continue
            self._know(fleet, pool, task.workload)
            task.in_flight += len(indices)
            for index in indices:
                knobs = task.candidates[index]
                batch.append(_Candidate(task, index, knobs, pool.build(task.workload, task.template, knobs)))
        return batch

    def _collect(self, fleet: Fleet, batch: list[_Candidate]) -> Iterator[Job]:
        """Wait for one build after the other. What cannot be built, or came out as something measured before, has its result already."""
        for candidate in batch:
            plain, built = fleet.references.plain[candidate.task.workload.key].result(), candidate.built.result()
            if built.status != OK or plain.status != OK:
                self._note(candidate, plain.status if built.status == OK else built.status, (), 0.0)
            elif built.digest in candidate.task.digests and candidate.record is None:
                self.report.duplicates += 1
                self._note(candidate, *candidate.task.digests[built.digest])
            else:
                yield Job(candidate.task.workload, built.library, candidate.task.best_s, token=candidate)

    def _record(self, found: Measured) -> None:
        candidate: _Candidate = found.job.token
        self.report.device_s += found.device_s
        if not found.status:  # no device could say: nothing is known about this candidate
            candidate.landed()
            return
        self.report.measured += 1
        candidate.task.spent_s += found.device_s
        candidate.task.digests[candidate.built.result().digest] = (found.status, found.seconds, found.canary_s)
        self._note(candidate, found.status, found.seconds, found.canary_s)

    def _note(self, candidate: _Candidate, status: str, seconds: tuple[float, ...], canary_s: float) -> None:
        task, built = candidate.task, candidate.built.result()
        replayed = candidate.index is None
        record = TuningRecord(
            workload=task.workload.key, name=task.workload.name, template=REPLAYED if replayed else task.template,
            knobs=candidate.knobs, trace=None if status == ILLEGAL_SCHEDULE else built.trace, seconds=seconds,
            status=status, device_kind=self.journal.device_kind, toolchain=self.journal.toolchain,
            created=datetime.now(UTC).isoformat(timespec="seconds"), canary_s=canary_s, flops=task.flops,
            extents=task.extents,
        )  # fmt: skip
        if status != OK:
            self.last_error = built.error or status
            self.report.failures[status] = self.report.failures.get(status, 0) + 1
        self.journal.add(record)
        if candidate.record is None or record.median_s < candidate.record.median_s:
            candidate.record = record
        candidate.landed()
        task.learn(candidate.index, record.median_s)

    def _show(self) -> None:
        done = sum(
            min(task.trials, self.rules.trials) if self._open(task) else self.rules.trials for task in self.tasks
        )
        now = max(self.tasks, key=lambda task: task.promise() if math.isfinite(task.promise()) else 0.0)
        speed = f"{now.flops / now.best_s / 1e9:.0f} GFLOP/s" if now.flops else f"{now.best_s * 1e3:.3f} ms"
        text = f"tuning {now.workload.name}: {speed} after {now.trials} trials"
        self.progress(text, done, self.rules.trials * len(self.tasks))
        if self.watch is not None:
            self.watch(self.tasks, self.report)


@dataclass
class _Candidate:
    """index: into the task's candidates; None for the schedule of an older toolchain."""

    task: Task
    index: int | None
    knobs: Knobs
    built: Future[Built]
    record: TuningRecord | None = None

    def landed(self) -> None:
        """Count the candidate as no longer under way; schedules of an older toolchain never were."""
        if self.index is not None:
            self.task.in_flight -= 1


def _default(workload: Workload, target: ResolvedTarget) -> tuple[str, Knobs]:
    found = template_for(workload.function, machine_of(target))
    assert found is not None
    return found[0].name, found[1][0]
