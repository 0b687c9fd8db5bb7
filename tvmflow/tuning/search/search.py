"""Search the schedules of a network's kernels on a device and record every measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tvmflow.backends.backend import Backend
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.errors import StageError, ToolchainError
from tvmflow.support.progress import Progress
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.measure.build_pool import BuildPool, Built
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.measure.device_pool import DevicePool
from tvmflow.tuning.measure.jobs import Job, Measured, OpenSession
from tvmflow.tuning.measure.kernel_bench import inputs_of
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.origins import LOST, REMEASURED, RETUNED
from tvmflow.tuning.records.record import (
    OK,
    UNKNOWN,
    Clock,
    TuningRecord,
    best_of,
)
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.candidates import (
    REPLAYED,
    Candidate,
    begin_search,
    default_candidate,
    is_slower,
    record_of_candidate,
)
from tvmflow.tuning.search.display import best_so_far, describe_stop, task_line
from tvmflow.tuning.search.estimates import MAX_COMPILED, order_by_estimate
from tvmflow.tuning.search.state import TuneReport, Watch, WorkloadSearch
from tvmflow.tuning.search.stopping import Later, StoppingRule
from tvmflow.tuning.search.task_scheduler import TaskScheduler
from tvmflow.tuning.search.tuners import StaticTuner, knob_key, tuner_factory
from tvmflow.tuning.status_lines import won_text
from tvmflow.tuning.winograd_choice import Alternative

_ROUND = 16  # candidates per round and device
_PER_KERNEL = 4  # of them per kernel
_MOST_UNBUILT = 8  # in a row, though a small kernel can be built: memory or disk space is too small


def tune(
    workloads: list[Workload],
    open_session: OpenSession,
    backend: Backend,
    rules: SearchRules,
    tuning_log: TuningLog,
    folder: Path,
    progress: Progress,
    watch: Watch | None = None,
    alternatives: Sequence[Alternative] = (),
    budget: Budget | None = None,
    later: Later | None = None,
) -> TuneReport:
    """Tune workloads together, always the one with the largest expected gain per second. Recorded measurements are
    reused.

    alternatives: workloads that may replace others. budget: for the search and the work after it; later: the duration
    of that work.

    A workload that an older toolchain tuned has its old schedule replayed and measured. It is searched again only if
    that schedule does not apply any more, or is slower than the rules allow. Raises DeviceError when no device is
    available; measurements until then are in the log.
    """
    search = _Search(
        workloads, backend, rules, tuning_log, folder, progress, watch, alternatives, budget or Budget(), later
    )
    if search.needs_device() and not search.stopping.spent_budget():
        search.run(open_session)
    else:
        search.report_end()
    keys = {workload.key for workload in workloads}
    search.report.best = best_of([record for record in tuning_log.known() if record.workload in keys])
    return search.report


class _Search:
    def __init__(
        self,
        workloads: list[Workload],
        backend: Backend,
        rules: SearchRules,
        tuning_log: TuningLog,
        folder: Path,
        progress: Progress,
        watch: Watch | None,
        alternatives: Sequence[Alternative],
        budget: Budget,
        later: Later | None,
    ) -> None:
        self.budget = budget
        self.backend, self.rules, self.tuning_log, self.folder = backend, rules, tuning_log, folder
        self.progress, self.watch = progress, watch
        self.report = TuneReport({})
        self.last_error = ""
        self.host_error: ToolchainError | None = None
        self.unbuilt_in_a_row = 0
        self.started = time.monotonic()
        self.clock = Clock()
        self.old = best_of(tuning_log.from_other_toolchains())
        self.known: dict[str, list[TuningRecord]] = {}
        for record in tuning_log.known():
            self.known.setdefault(record.workload, []).append(record)
        factory = tuner_factory(rules.settings)
        begun = (begin_search(w, backend, factory, self.old.get(w.key)) for w in workloads)
        self.searches = [search for search in begun if search is not None]
        self.scheduler = TaskScheduler(self.searches, alternatives, rules.trials, rules.limits.build_workers)
        for key in self.known.keys() - {search.workload.key for search in self.searches}:  # records of other networks
            for record in self.known[key]:
                if record.extents and record.template != REPLAYED:
                    factory.learn(key, record.template, list(record.extents), record.knobs, self.clock.seconds(record))
                    self.scheduler.gains.learn(record)
        self.report.searches = self.searches
        self.stopping = StoppingRule(rules, budget, later, self.scheduler, self.report, self.searches)
        self.to_replay = [search for search in self.searches if search.workload.key in self.old]
        for search in self.searches:
            self._load_known(search)

    # -- before the first measurement --

    def _load_known(self, search: WorkloadSearch) -> None:
        index = {knob_key(knobs): position for position, knobs in enumerate(search.candidates)}
        for record in self.known.get(search.workload.key, []):
            if record.template == REPLAYED:
                self._judge_replay(search, record)
                self.to_replay = [other for other in self.to_replay if other is not search]
            position = index.get(knob_key(record.knobs)) if record.template == search.template else None
            self._learn(search, position, record)
            self.report.reused += 1

    def _learn(self, search: WorkloadSearch, position: int | None, record: TuningRecord) -> None:
        search.learn(position, self.clock.seconds(record))
        if position is not None:
            self.scheduler.gains.learn(record)

    def needs_device(self) -> bool:
        return bool(self.to_replay) or bool(self.stopping.promising_searches())

    def report_end(self) -> None:
        self.stopping.describe_end()
        self.progress(describe_stop(self.report), self.stopping.trials_done(), self.rules.trials * len(self.searches))

    # -- the loop --

    def run(self, open_session: OpenSession) -> None:
        rules = self.rules
        target = self.backend.target
        with BuildPool(
            rules.limits.build_workers, target, self.folder, rules.limits.build_timeout_s, not rules.has_tvm
        ) as build_pool:
            canary = canary_workload()
            with DevicePool(
                open_session, rules, (canary, self._canary_library(build_pool, canary)), self.budget
            ) as device_pool:
                self.report.device_pool = device_pool.counts
                self._prepare_reference(device_pool, build_pool, canary)
                device_pool.start()
                self._replay_all(device_pool, build_pool)
                before = {search.workload.key for search in self.searches if search.trials}
                self._search_all(device_pool, build_pool)
                self.report.searched = len({t.workload.key for t in self.searches if t.trials} - before)
        self.report.seconds = time.monotonic() - self.started
        self._raise_if_nothing()

    def _canary_library(self, build_pool: BuildPool, canary: Workload) -> Path:
        built = build_pool.build(canary, *default_candidate(canary, self.backend)).result()
        if built.status != OK:
            raise ToolchainError(
                f"the schedule of a kernel that is known to be correct cannot be compiled: {built.error}",
                "a compiler that works for the target",
                "run 'tvmflow doctor'; correct the target",
            )
        return built.library

    def _search_all(self, device_pool: DevicePool, build_pool: BuildPool) -> None:
        """Measure one batch after the other; with remote devices, build the next batch meanwhile."""
        ahead: list[Candidate] = []
        while not self.stopping.spent_budget():
            batch = ahead or self._propose(device_pool, build_pool)
            ahead = []
            if not batch:
                break
            if not self.rules.on_this_host:
                ahead = self._propose(device_pool, build_pool)
            self._measure(device_pool, build_pool, batch)
            self._show()
        for candidate in ahead:
            candidate.built.cancel()
            candidate.finish()
        self.report_end()

    def _measure(self, device_pool: DevicePool, build_pool: BuildPool, batch: list[Candidate]) -> None:
        """Measure the candidates of a batch that can be built. Raises ToolchainError, after the rest, if this machine
        cannot build.
        """
        jobs: Iterable[Job] = self._collect(device_pool, build_pool, batch)
        # Build nothing while this machine is the device that measures.
        device_pool.measure(list(jobs) if self.rules.on_this_host else jobs, self._on_measured)
        if self.host_error is not None:
            raise self.host_error

    def _raise_if_nothing(self) -> None:
        """Raise StageError if no kernel could be measured."""
        tried = sum(self.report.failures.values()) + self.report.unbuilt + self.report.device_pool.given_up
        if not tried or any(math.isfinite(search.best_s) for search in self.searches):
            return
        reasons = (
            [*self.report.device_pool.notes[-3:], self.last_error]
            if self.report.device_pool.given_up
            else [self.last_error]
        )
        raise StageError(
            f"not one of {tried} schedules could be compiled and measured; the last errors: {'; '.join(reasons)}",
            "a compiler that works for the target, and a device that responds",
            "run 'tvmflow doctor'; correct the target",
        )

    def _prepare_reference(self, device_pool: DevicePool, build_pool: BuildPool, workload: Workload) -> None:
        """Make the inputs of a workload and build its reference kernel."""
        if workload.key not in device_pool.references.arrays:
            device_pool.references.arrays[workload.key] = inputs_of(workload)
            device_pool.references.kernels[workload.key] = build_pool.build(workload)

    def _replay_all(self, device_pool: DevicePool, build_pool: BuildPool) -> None:
        searches, self.to_replay = self.to_replay, []
        batch = []
        for search in searches:
            self._prepare_reference(device_pool, build_pool, search.workload)
            trace = self.old[search.workload.key].trace
            batch.append(
                Candidate(
                    search, None, self.old[search.workload.key].knobs, build_pool.build(search.workload, trace=trace)
                )
            )
        self._measure(device_pool, build_pool, batch)
        slow = [c for c in batch if c.record is not None and c.record.seconds and self._slower(c.search, c.record)]
        for candidate in slow:  # once more, in turns with the canary
            candidate.is_suspect = True
        self._measure(device_pool, build_pool, slow)
        for candidate in batch:
            if candidate.record is not None:
                self._judge_replay(candidate.search, candidate.record)

    def _slower(self, search: WorkloadSearch, record: TuningRecord) -> bool:
        return is_slower(record, self.old[search.workload.key], self.rules.settings.replay_slowdown)

    def _judge_replay(self, search: WorkloadSearch, record: TuningRecord) -> None:
        if search.workload.key not in self.old:
            return
        if not record.seconds:
            self.report.lost += 1
            search.replayed = LOST
        elif self._slower(search, record):
            self.report.slower += 1
            search.replayed = RETUNED
        else:
            self.report.replayed += 1
            search.exhausted, search.replayed = True, REMEASURED

    def _propose(self, device_pool: DevicePool, build_pool: BuildPool) -> list[Candidate]:
        """Start to build the next round: candidates of the workloads with the largest expected gain."""
        batch_size = int(min(_ROUND * self.rules.sessions, self.stopping.remaining_candidates()))
        batch: list[Candidate] = []
        while len(batch) < batch_size:
            found = [
                (gain, one) for gain, one in self.stopping.promising_searches() if one not in [c.search for c in batch]
            ]
            if not found:
                break
            _, search = max(found, key=lambda one: (one[0], one[1].flops * one[1].workload.calls))
            count = 1 if search.trials == 0 else _PER_KERNEL * self.rules.sessions
            if isinstance(search.tuner, StaticTuner) and search.tuner.order is None:
                if not self.budget.has(MAX_COMPILED * self.scheduler.usual_s()):
                    break
                order = order_by_estimate(build_pool, search.workload, search.template, search.candidates)
                search.tuner.order = [index for _, index, _ in order]
            indices = search.tuner.ask(
                min(count, self.rules.trials - search.trials - search.in_flight, batch_size - len(batch))
            )
            if not indices:
                search.exhausted = True
                continue
            self._prepare_reference(device_pool, build_pool, search.workload)
            search.in_flight += len(indices)
            for index in indices:
                knobs = search.candidates[index]
                batch.append(Candidate(search, index, knobs, build_pool.build(search.workload, search.template, knobs)))
        return batch

    def _collect(self, device_pool: DevicePool, build_pool: BuildPool, batch: list[Candidate]) -> Iterator[Job]:
        """Wait for the builds in order and yield jobs. A failed or duplicate build gets its result without a
        measurement.
        """
        for candidate in batch:
            try:
                reference = device_pool.references.kernels[candidate.search.workload.key].result(
                    self.stopping.build_wait_s()
                )
                built = candidate.built.result(self.stopping.build_wait_s())
            except TimeoutError:  # no time is left to measure it
                candidate.built.cancel()
                candidate.finish()
                continue
            except ToolchainError as error:  # measure what is already built first
                self.host_error = error
                return
            if reference.status == UNKNOWN:
                device_pool.references.kernels[candidate.search.workload.key] = build_pool.build(
                    candidate.search.workload
                )
            if reference.status != OK or built.status == UNKNOWN:
                self._skip(candidate, reference if reference.status != OK else built)
                continue
            self.unbuilt_in_a_row = 0
            if built.status != OK:
                self._record_result(candidate, built.status, None)
            elif built.digest in candidate.search.digests and candidate.record is None:
                self.report.duplicates += 1
                known = candidate.search.digests[built.digest]
                self._record_result(candidate, known.status, known)
            else:
                search, beside = candidate.search, candidate.is_suspect
                yield Job(search.workload, built.library, search.best_s, token=candidate, beside_canary=beside)

    def _skip(self, candidate: Candidate, built: Built) -> None:
        """Drop a candidate about which nothing is known; if its reference kernel failed, drop the whole workload."""
        candidate.finish()
        self.report.unbuilt += 1
        self.last_error = built.error
        self._say(candidate.search, None, built.error)
        if built.status == UNKNOWN:
            self.unbuilt_in_a_row += 1
        else:
            candidate.search.exhausted = True
            self.last_error = f"{candidate.search.workload.name} cannot be compiled at all: {built.error}"
            self.report.device_pool.notes.append(self.last_error)
        if self.unbuilt_in_a_row >= _MOST_UNBUILT:
            self.host_error = ToolchainError(
                f"{self.unbuilt_in_a_row} schedules in a row could not be built, though a small kernel can: "
                f"{built.error}",
                "enough memory, and disk space in TMPDIR, for the target's compiler and linker",
                "free some or use fewer tune.build_workers, then run the same command again: all measurements are kept",
            )

    def _on_measured(self, measured: Measured) -> None:
        candidate: Candidate = measured.job.token
        self.report.device_s += measured.device_s
        if not measured.status:  # no device was available: nothing is known about this candidate
            candidate.finish()
            if measured.error:
                self._say(candidate.search, None, measured.error)
            return
        self.report.measured += 1
        candidate.search.spent_s += measured.device_s
        if measured.unit:
            self.report.units[measured.unit] = self.report.units.get(measured.unit, 0) + 1
        candidate.search.digests[candidate.built.result().digest] = measured
        self._record_result(candidate, measured.status, measured)

    def _record_result(self, candidate: Candidate, status: str, on_device: Measured | None) -> None:
        """Record a result. on_device: None if it was not measured."""
        search, built = candidate.search, candidate.built.result()
        found = on_device or Measured(Job(search.workload, built.library, 0.0), status, (), 0.0, 0.0)
        record = record_of_candidate(candidate, found, status, self.tuning_log)
        if status != OK:
            self.last_error = record.error
            self.report.failures[status] = self.report.failures.get(status, 0) + 1
        self.tuning_log.add(record)
        if candidate.record is None or candidate.is_suspect or record.median_s < candidate.record.median_s:
            candidate.record = record
        candidate.finish()
        search.measured += 1
        search.build_s += built.seconds
        self._learn(search, candidate.index, record)
        self._say(search, self.clock.seconds(record), record.error)

    def _say(self, search: WorkloadSearch, seconds: float | None, error: str) -> None:
        line = task_line(self.searches, search, seconds, self.rules.trials, error)
        self.progress(line, self.stopping.trials_done(), self.rules.trials * len(self.searches))

    def _show(self) -> None:
        won = self.scheduler.won()
        text = best_so_far(self.searches) + (f", {won_text(won)}" if won is not None else "")
        self.progress(text, self.stopping.trials_done(), self.rules.trials * len(self.searches))
        if self.watch is not None:
            self.watch(self.searches, self.report)
