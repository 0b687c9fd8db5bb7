"""Search the schedules of a network's kernels on a device, and remember every measurement."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tvmflow.backends.backend import Backend
from tvmflow.ir.tir.workloads import Workload, anchor_extents
from tvmflow.support.errors import StageError, ToolchainError
from tvmflow.support.progress import Progress
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.first_words import won_text
from tvmflow.tuning.measure.build_pool import BuildPool, Built
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.measure.device_pool import Fleet
from tvmflow.tuning.measure.jobs import Job, Measured, OpenSession
from tvmflow.tuning.measure.kernel_bench import inputs_of
from tvmflow.tuning.records.log import Journal
from tvmflow.tuning.records.origins import LOST, REMEASURED, RETUNED
from tvmflow.tuning.records.record import (
    OK,
    UNKNOWN,
    Clock,
    TuningRecord,
    best_of,
)
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.candidates import REPLAYED, Candidate, default_of, record_of_candidate
from tvmflow.tuning.search.display import best_so_far, task_line, why_stopped
from tvmflow.tuning.search.estimates import MOST, order_by_estimate
from tvmflow.tuning.search.state import TuneReport, Watch, WorkloadSearch
from tvmflow.tuning.search.task_scheduler import Prospects
from tvmflow.tuning.search.tuners import StaticTuner, TunerFactory, knob_key
from tvmflow.tuning.winograd_choice import Alternative

# Why a search ended.
MIN_GAIN = "min_gain_per_minute"
TOTAL_TRIALS, MAX_SECONDS = "total_trials", "max_seconds"
NOTHING_LEFT = "every kernel had its trials"
Later = Callable[[Sequence[WorkloadSearch]], float]  # what comes after a search -> seconds that it takes
_ROUND = 16  # candidates in one round, for each device
_UNTIMED = 4  # of them before it is known how long they take, where there is a limit
_OF_ONE = 4  # of them of one kernel
_MOST_UNBUILT = 8  # in a row, though a small kernel can be built: there is too little memory or room


def tune(
    workloads: list[Workload],
    open_session: OpenSession,
    backend: Backend,
    rules: SearchRules,
    journal: Journal,
    folder: Path,
    progress: Progress,
    watch: Watch | None = None,
    alternatives: Sequence[Alternative] = (),
    budget: Budget | None = None,
    later: Later | None = None,
) -> TuneReport:
    """Tune workloads side by side, always the one that may win most per second. What the journal already has is not
    measured again.

    alternatives: which of the workloads would replace which others. budget: for the search and what comes later; later:
    what that takes.

    A workload that an older toolchain tuned gets its old schedule replayed and measured; only where the schedule is
    lost, or slower than before by more than the rules allow, it is searched for anew. Raises DeviceError when no device
    can be had; what was measured until then is in the journal.
    """
    search = _Search(
        workloads, backend, rules, journal, folder, progress, watch, alternatives, budget or Budget(), later
    )
    if search.wants_device() and not search.budget_over():
        search.run(open_session)
    else:
        search.say_why()
    keys = {workload.key for workload in workloads}
    search.report.best = best_of([record for record in journal.known() if record.workload in keys])
    return search.report


class _Search:
    def __init__(
        self,
        workloads: list[Workload],
        backend: Backend,
        rules: SearchRules,
        journal: Journal,
        folder: Path,
        progress: Progress,
        watch: Watch | None,
        alternatives: Sequence[Alternative],
        budget: Budget,
        later: Later | None,
    ) -> None:
        self.budget, self.later = budget, later
        self.backend, self.rules, self.journal, self.folder = backend, rules, journal, folder
        self.progress, self.watch = progress, watch
        self.report = TuneReport({})
        self.last_error = ""
        self.host_error: ToolchainError | None = None
        self.unbuilt_in_a_row = 0
        self.started = time.monotonic()
        self.clock = Clock()
        self.old = best_of(journal.from_other_toolchains())
        self.known: dict[str, list[TuningRecord]] = {}
        for record in journal.known():
            self.known.setdefault(record.workload, []).append(record)
        factory = TunerFactory(rules.settings.tuner, rules.settings.loss, rules.settings.seed)
        self.searches = [search for w in workloads if (search := self._search_of(w, factory)) is not None]
        self.prospects = Prospects(self.searches, alternatives, rules.trials, rules.limits.build_workers)
        for key in self.known.keys() - {search.workload.key for search in self.searches}:  # what other networks taught
            for record in self.known[key]:
                if record.extents and record.template != REPLAYED:
                    factory.learn(key, record.template, list(record.extents), record.knobs, self.clock.seconds(record))
                    self.prospects.gains.learn(record)
        self.report.searches = self.searches
        self.to_replay = [search for search in self.searches if search.workload.key in self.old]
        for search in self.searches:
            self._recall(search)

    # -- what is known before anything is measured --

    def _search_of(self, workload: Workload, factory: TunerFactory) -> WorkloadSearch | None:
        match = self.backend.template_for(workload.function)
        if match is None:
            return None
        template, candidates = match
        sizes = anchor_extents(workload.function)
        tuner = factory.make(workload.key, template.name, candidates, sizes)
        before = self.old.get(workload.key)
        before_s = before.median_s if before is not None else 0.0
        return WorkloadSearch(workload, template.name, candidates, tuner, tuple(sizes), before_s=before_s)

    def _recall(self, search: WorkloadSearch) -> None:
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
            self.prospects.gains.learn(record)

    def wants_device(self) -> bool:
        return bool(self.to_replay) or bool(self._worth_while())

    def _open(self, search: WorkloadSearch) -> bool:
        return (
            not search.exhausted
            and search.trials + search.in_flight < min(self.rules.trials, len(search.candidates))
            and search.since_gain < self.rules.settings.early_stopping
        )

    def _worth_while(self) -> list[tuple[float, WorkloadSearch]]:
        """Return what is left to be tried, with the share of the network's time that a minute with it is expected to
        win.
        """
        found = [(self.prospects.gain_per_minute(search), search) for search in self.searches if self._open(search)]
        return [(gain, search) for gain, search in found if gain >= self.rules.settings.min_gain_per_minute]

    def budget_over(self) -> str:
        """Return which budget is spent, "" for none."""
        rules = self.rules
        if rules.settings.total_trials and self.report.measured >= rules.settings.total_trials:
            return TOTAL_TRIALS
        return "" if self._room() >= 1 else MAX_SECONDS

    def _room(self) -> float:
        """Return how many candidates there is time for, with what comes after the search."""
        left_s = self.budget.left_s()
        if math.isinf(left_s):
            return left_s
        return min(
            (left_s - self._later_s()) / self.prospects.usual_s(), math.inf if self.report.measured else _UNTIMED
        )

    def _later_s(self) -> float:
        return self.later(self.searches) if self.later else 0.0

    def _patience_s(self) -> float | None:
        """Return how long to wait for something that is being built; None without a limit."""
        left_s = self.budget.left_s()
        return max(0.0, left_s - self._later_s()) if math.isfinite(left_s) else None

    def say_why(self) -> None:
        """Say why the search ends, and what another minute promised."""
        left = [self.prospects.gain_per_minute(search) for search in self.searches if self._open(search)]
        self.report.promised = max((gain for gain in left if math.isfinite(gain)), default=0.0)
        self.report.stopped = self.budget_over() or (MIN_GAIN if left else NOTHING_LEFT)
        self.progress(why_stopped(self.report), self._trials_done(), self.rules.trials * len(self.searches))

    # -- the loop --

    def run(self, open_session: OpenSession) -> None:
        rules = self.rules
        target = self.backend.target
        with BuildPool(
            rules.limits.build_workers, target, self.folder, rules.limits.build_timeout_s, not rules.has_tvm
        ) as pool:
            canary = canary_workload()
            with Fleet(open_session, rules, (canary, self._canary_library(pool, canary)), self.budget) as fleet:
                self.report.fleet = fleet.counts
                self._prepare_reference(fleet, pool, canary)
                fleet.start()
                self._replay_all(fleet, pool)
                before = {search.workload.key for search in self.searches if search.trials}
                self._search_all(fleet, pool)
                self.report.searched = len({t.workload.key for t in self.searches if t.trials} - before)
        self.report.seconds = time.monotonic() - self.started
        self._raise_if_nothing()

    def _canary_library(self, pool: BuildPool, canary: Workload) -> Path:
        built = pool.build(canary, *default_of(canary, self.backend)).result()
        if built.status != OK:
            raise ToolchainError(
                f"the schedule of a kernel that is known to be right cannot be compiled: {built.error}",
                "a compiler that works for the target",
                "run 'tvmflow doctor'; correct the target",
            )
        return built.library

    def _search_all(self, fleet: Fleet, pool: BuildPool) -> None:
        """Measure one batch after the other; where devices are elsewhere, the next is built meanwhile."""
        ahead: list[Candidate] = []
        while not self.budget_over():
            batch = ahead or self._propose(fleet, pool)
            ahead = []
            if not batch:
                break
            if not self.rules.on_this_host:
                ahead = self._propose(fleet, pool)
            self._measure(fleet, pool, batch)
            self._show()
        for candidate in ahead:
            candidate.built.cancel()
            candidate.landed()
        self.say_why()

    def _measure(self, fleet: Fleet, pool: BuildPool, batch: list[Candidate]) -> None:
        """Measure what can be built of a batch. Raises ToolchainError, after the rest, where this machine cannot
        build.
        """
        jobs: Iterable[Job] = self._collect(fleet, pool, batch)
        # Nothing is built while this machine measures itself.
        fleet.measure(list(jobs) if self.rules.on_this_host else jobs, self._record)
        if self.host_error is not None:
            raise self.host_error

    def _raise_if_nothing(self) -> None:
        """A search that found no time for any kernel says why."""
        tried = sum(self.report.failures.values()) + self.report.unbuilt + self.report.fleet.given_up
        if not tried or any(math.isfinite(search.best_s) for search in self.searches):
            return
        reasons = [*self.report.fleet.notes[-3:], self.last_error] if self.report.fleet.given_up else [self.last_error]
        raise StageError(
            f"not one of {tried} schedules could be compiled and measured; the last errors: {'; '.join(reasons)}",
            "a compiler that works for the target, and a device that responds",
            "run 'tvmflow doctor'; correct the target",
        )

    def _prepare_reference(self, fleet: Fleet, pool: BuildPool, workload: Workload) -> None:
        """Make the inputs of a workload and the plain kernel, whose output every schedule must give."""
        if workload.key not in fleet.references.arrays:
            fleet.references.arrays[workload.key] = inputs_of(workload)
            fleet.references.plain[workload.key] = pool.build(workload)

    def _replay_all(self, fleet: Fleet, pool: BuildPool) -> None:
        searches, self.to_replay = self.to_replay, []
        batch = []
        for search in searches:
            self._prepare_reference(fleet, pool, search.workload)
            trace = self.old[search.workload.key].trace
            batch.append(
                Candidate(search, None, self.old[search.workload.key].knobs, pool.build(search.workload, trace=trace))
            )
        self._measure(fleet, pool, batch)
        slow = [c for c in batch if c.record is not None and c.record.seconds and self._slower(c.search, c.record)]
        # Once more before it counts as slower: clocks move.
        self._measure(fleet, pool, slow)
        for candidate in batch:
            if candidate.record is not None:
                self._judge_replay(candidate.search, candidate.record)

    def _slower(self, search: WorkloadSearch, record: TuningRecord) -> bool:
        old = self.old[search.workload.key]
        scale = old.canary_s / record.canary_s if old.canary_s and record.canary_s else 1.0
        return record.median_s * scale > old.median_s * (1 + self.rules.settings.replay_slowdown)

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

    def _propose(self, fleet: Fleet, pool: BuildPool) -> list[Candidate]:
        """Start to build the next round: candidates of the workloads that may win most."""
        batch_size = int(min(_ROUND * self.rules.sessions, self._room()))
        batch: list[Candidate] = []
        while len(batch) < batch_size:
            found = [(gain, one) for gain, one in self._worth_while() if one not in [c.search for c in batch]]
            if not found:
                break
            _, search = max(found, key=lambda one: (one[0], one[1].flops * one[1].workload.calls))
            count = 1 if search.trials == 0 else _OF_ONE * self.rules.sessions
            if isinstance(search.tuner, StaticTuner) and search.tuner.order is None:
                if not self.budget.has(MOST * self.prospects.usual_s()):
                    break
                order = order_by_estimate(pool, search.workload, search.template, search.candidates)
                search.tuner.order = [index for _, index, _ in order]
            indices = search.tuner.ask(
                min(count, self.rules.trials - search.trials - search.in_flight, batch_size - len(batch))
            )
            if not indices:
                search.exhausted = True
                continue
            self._prepare_reference(fleet, pool, search.workload)
            search.in_flight += len(indices)
            for index in indices:
                knobs = search.candidates[index]
                batch.append(Candidate(search, index, knobs, pool.build(search.workload, search.template, knobs)))
        return batch

    def _collect(self, fleet: Fleet, pool: BuildPool, batch: list[Candidate]) -> Iterator[Job]:
        """Wait for one build after the other. What the compiler refused, or came out as something measured before, has
        its result already.
        """
        for candidate in batch:
            try:
                plain = fleet.references.plain[candidate.search.workload.key].result(self._patience_s())
                built = candidate.built.result(self._patience_s())
            except TimeoutError:  # there is no time left to measure it
                candidate.built.cancel()
                candidate.landed()
                continue
            except ToolchainError as error:  # what is built already is measured first
                self.host_error = error
                return
            if plain.status == UNKNOWN:
                fleet.references.plain[candidate.search.workload.key] = pool.build(candidate.search.workload)
            if plain.status != OK or built.status == UNKNOWN:
                self._skip(candidate, plain if plain.status != OK else built)
                continue
            self.unbuilt_in_a_row = 0
            if built.status != OK:
                self._note(candidate, built.status, None)
            elif built.digest in candidate.search.digests and candidate.record is None:
                self.report.duplicates += 1
                known = candidate.search.digests[built.digest]
                self._note(candidate, known.status, known)
            else:
                yield Job(candidate.search.workload, built.library, candidate.search.best_s, token=candidate)

    def _skip(self, candidate: Candidate, built: Built) -> None:
        """Leave a candidate of which nothing can be said; without its plain kernel the whole workload."""
        candidate.landed()
        self.report.unbuilt += 1
        self.last_error = built.error
        if built.status == UNKNOWN:
            self.unbuilt_in_a_row += 1
        else:
            candidate.search.exhausted = True
            self.last_error = f"{candidate.search.workload.name} cannot be compiled at all: {built.error}"
            self.report.fleet.notes.append(self.last_error)
        if self.unbuilt_in_a_row >= _MOST_UNBUILT:
            self.host_error = ToolchainError(
                f"{self.unbuilt_in_a_row} schedules in a row could not be built, though a small kernel can: "
                f"{built.error}",
                "memory, and room in TMPDIR, for the compiler and linker of the target",
                "make room or use fewer tune.build_workers, and run the same command again: what was measured is kept",
            )

    def _record(self, measured: Measured) -> None:
        candidate: Candidate = measured.job.token
        self.report.device_s += measured.device_s
        if not measured.status:  # no device could say: nothing is known about this candidate
            candidate.landed()
            return
        self.report.measured += 1
        candidate.search.spent_s += measured.device_s
        if measured.unit:
            self.report.units[measured.unit] = self.report.units.get(measured.unit, 0) + 1
        candidate.search.digests[candidate.built.result().digest] = measured
        self._note(candidate, measured.status, measured)

    def _note(self, candidate: Candidate, status: str, on_device: Measured | None) -> None:
        """Record what came out. on_device: None for what was not measured."""
        search, built = candidate.search, candidate.built.result()
        found = on_device or Measured(Job(search.workload, built.library, 0.0), status, (), 0.0, 0.0)
        record = record_of_candidate(candidate, found, status, self.journal)
        if status != OK:
            self.last_error = record.error
            self.report.failures[status] = self.report.failures.get(status, 0) + 1
        self.journal.add(record)
        if candidate.record is None or record.median_s < candidate.record.median_s:
            candidate.record = record
        candidate.landed()
        search.measured += 1
        search.build_s += built.seconds
        seconds = self.clock.seconds(record)
        self._learn(search, candidate.index, record)
        line = task_line(self.searches, search, seconds, self.rules.trials)
        self.progress(line, self._trials_done(), self.rules.trials * len(self.searches))

    def _trials_done(self) -> int:
        """Return how many trials of all are over; a workload that is left early counts as done."""
        most = self.rules.trials
        return sum(min(search.trials, most) if self._open(search) else most for search in self.searches)

    def _show(self) -> None:
        won = self.prospects.won()
        text = best_so_far(self.searches) + (f", {won_text(won)}" if won is not None else "")
        self.progress(text, self._trials_done(), self.rules.trials * len(self.searches))
        if self.watch is not None:
            self.watch(self.searches, self.report)
