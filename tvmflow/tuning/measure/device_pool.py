"""Measure on any number of devices of one key: retries elsewhere, quarantine with back-off, a canary against drift.

A failure of a kernel (wrong output, timeout) is a result. A failure of a device or of the network is none: the
candidate goes to another device, the slot of the lost one rests for a while, and nothing is recorded. Whether a kernel
or a device is to blame for a silence is asked of the canary: a kernel that is known to be good, on a new session.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

from tvmflow.devices.session import DeviceSession
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.errors import DeviceBusyError, DeviceError, DeviceLostError, StageError, first_line
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.measure.jobs import FleetCounts, Job, Measured, OpenSession, References
from tvmflow.tuning.measure.kernel_bench import KernelBench
from tvmflow.tuning.records.record import COMPILE_ERROR, KERNEL_TIMEOUT, UNKNOWN
from tvmflow.tuning.rules import SearchRules

_MOST_TRIES = 4  # of one candidate on devices that got lost meanwhile
_FIRST_REST_S, _LONGEST_REST_S = 1.0, 60.0
_OPEN_S = 2.0  # that a session takes to open
_KEPT_BENCHES = 4  # workloads whose inputs stay on a device


class Fleet:
    """Use as a context manager; `measure` blocks until every job has its result.

    budget: what would be measured beyond it comes back as if there were no device.
    """

    def __init__(
        self, open_session: OpenSession, rules: SearchRules, canary: tuple[Workload, Path], budget: Budget | None = None
    ) -> None:
        self.open_session, self.rules, self.canary = open_session, rules, canary
        self.budget = budget or Budget()
        self.references, self.counts = References(), FleetCounts()
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._results: queue.Queue[Measured | Exception] = queue.Queue()
        self._closing, self._has_work = threading.Event(), threading.Event()
        self._slots: list[_Slot] = []
        self.had_device = False

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for _slot in self._slots:
            self._jobs.put(None)
        for slot in self._slots:
            slot.thread.join(timeout=5)
            slot.close()

    def measure(self, jobs: Iterable[Job], on_result: Callable[[Measured], None]) -> None:
        """Measure every job, in any order; devices begin with those that come first while others are still being built.

        Raises the DeviceError that kept all slots from working.
        """
        left = 0
        for job in jobs:
            self._jobs.put(job)
            left += 1
            self._has_work.set()
            self.start()
        while left:
            try:
                found = self._results.get(timeout=0.2)
            except queue.Empty:
                self._watch()
                self._give_back()
                continue
            if isinstance(found, Exception):
                raise found
            left -= 1
            on_result(found)

    def start(self) -> None:
        """Begin to open sessions, if there is the time; the canary runs when there is work."""
        if not self._slots and self.budget.has(_OPEN_S):
            self._slots = [_Slot(self, number) for number in range(self.rules.sessions)]
            for slot in self._slots:
                slot.start()

    def wait_for_work(self) -> None:
        """Return when there is something to measure, or all is over."""
        while not self._has_work.wait(0.2) and not self._closing.is_set():
            pass

    def _give_back(self) -> None:
        """Return the jobs that wait for a device when there is no time left for any."""
        while not self.budget.has(0.0 if self._slots else _OPEN_S):
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self.leave(job)

    def leave(self, job: Job) -> None:
        """Say that nothing is known of a job."""
        self._results.put(Measured(job, UNKNOWN, (), 0.0, 0.0))

    def _watch(self) -> None:
        """Replace a slot that has been silent for too long: a blocked RPC call cannot be interrupted.

        Raises DeviceLostError when every device has been silent since it was opened, for as long as the rules allow.
        """
        now = time.monotonic()
        for at, slot in enumerate(self._slots):
            if not slot.busy_since or now - slot.busy_since <= self.rules.limits.kernel_timeout_s:
                continue
            silent_since = 0.0 if slot.job else slot.without_device_since or slot.busy_since
            fresh = _Slot(self, at, suspect=slot.abandon())
            if silent_since:  # from its first kernel on, which is known to be right
                slot.without_device_since = fresh.without_device_since = silent_since
                error = DeviceLostError(
                    f"device {at} has been silent for {now - silent_since:.0f} s, on a kernel that is known "
                    f"to be right",
                    "a device that computes",
                    "look at the device; what was measured is kept, run the same command again",
                )
                self.counts.lost += 1
                self.counts.notes.append(error.found)
                if now - silent_since >= self.rules.limits.give_up_s and self.without_devices():
                    raise error
            self._slots[at] = fresh
            fresh.start()

    def without_devices(self) -> bool:
        """Whether no slot has a device that responds."""
        return all(slot.without_device_since for slot in self._slots)

    def put_back(self, job: Job, why: str, counted: bool = True) -> None:
        """Give a job to whichever device is free next, or give it up after too many tries.

        counted: the job may be why it was not measured; what another job took with it is measured again in any case.
        """
        if not counted:
            job.tries -= 1
        if job.tries >= _MOST_TRIES:
            self.counts.given_up += 1
            self.counts.notes.append(
                f"{job.workload.name}: {job.library.stem} was given up after {job.tries} tries: {why}"
            )
            self.leave(job)
        else:
            self.counts.retried += 1
            self._jobs.put(job)


class _Slot:
    """One session at a time, in a thread of its own."""

    def __init__(self, fleet: Fleet, number: int, suspect: Job | None = None) -> None:
        self.fleet, self.number, self.suspect = fleet, number, suspect
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"device-{number}")
        self.busy_since = 0.0
        self.job: Job | None = None
        self.abandoned = False
        self._stack = contextlib.ExitStack()
        self._session: DeviceSession | None = None
        self._benches: dict[str, KernelBench] = {}
        self._canary: KernelBench | None = None
        self._baseline = self._last_canary = 0.0
        self._since_canary: list[Measured] = []
        self._opened = self._took_s = 0.0
        self._rest_s = _FIRST_REST_S
        self.without_device_since = 0.0

    def start(self) -> None:
        self.thread.start()

    def abandon(self) -> Job | None:
        """Leave the thread to its silent device and return the job that it has; what it held back is measured again."""
        self.abandoned = True
        for found in self._since_canary:
            self.fleet.put_back(found.job, "another kernel was silent", counted=False)
        self._since_canary = []
        job, self.job, self.suspect, self.busy_since = self.job or self.suspect, None, None, 0.0
        threading.Thread(target=self.close, daemon=True).start()
        return job

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._stack.close()

    def _run(self) -> None:
        while not self.fleet._closing.is_set() and not self.abandoned:
            try:
                if (
                    self._session is not None
                    and time.monotonic() - self._opened > 0.8 * self.fleet.rules.limits.session_s
                ):
                    self.close()
                    self._session = None
                if self._session is None:
                    self._open()
                    if not self.abandoned:
                        self._judge_suspect()
                job = self._next_job()
                if job is None:
                    break
                if self.fleet.budget.has(self._took_s):
                    self._one(job)
                else:
                    self.fleet.leave(job)
            except DeviceError as error:
                self._lost(error)
            except Exception as error:  # a bug must end the search, not leave it waiting for ever
                self.fleet._results.put(error)
                return
        if not self.abandoned:
            self.close()

    def _open(self) -> None:
        self._benches, self._canary = {}, None
        self._stack = contextlib.ExitStack()
        self._session = self._stack.enter_context(self.fleet.open_session())
        self.fleet.wait_for_work()  # what is built meanwhile would disturb the canary
        if self.fleet._closing.is_set():
            return
        self.fleet.had_device, self.busy_since = True, time.monotonic()
        workload, library = self.fleet.canary
        self._canary = self._bench(workload)
        self._baseline = self._last_canary = self._run_canary(library)
        self.busy_since = 0.0
        self._rest_s, self.without_device_since, self._opened = _FIRST_REST_S, 0.0, time.monotonic()

    def _run_canary(self, library: Path) -> float:
        assert self._canary is not None
        try:
            seconds = self._canary.measure_alone(library)
        except StageError as error:
            raise DeviceLostError(
                f"device {self._canary.session.name!r} refuses a kernel that is known to be right: "
                f"{first_line(error, 160)}",
                "a device that computes",
                "look at its driver, or restart it",
            ) from error
        if not seconds:
            raise DeviceLostError(
                f"device {self._canary.session.name!r} computes a wrong output with a kernel that is known to be right",
                "a device that computes correctly",
                "take it out of the tracker and test its memory and clock",
            )
        return median(seconds)

    def _judge_suspect(self) -> None:
        """The device responds and computes again: so the kernel that was silent is to blame, and that is its result."""
        if self.suspect is not None:
            job, self.suspect = self.suspect, None
            limit_s = self.fleet.rules.limits.kernel_timeout_s
            error = f"no output within {limit_s:g} s, on a device that computed the canary before and after"
            self.fleet._results.put(Measured(job, KERNEL_TIMEOUT, (), self._baseline, limit_s, error))

    def _next_job(self) -> Job | None:
        """Wait for a job; what was measured is handed out before waiting, so that nobody waits for it."""
        while not self.fleet._closing.is_set() and not self.abandoned:
            try:
                return self.fleet._jobs.get(block=not self._since_canary, timeout=0.2)
            except queue.Empty:
                if self._since_canary:
                    self._check_canary()
        return None

    def _one(self, job: Job) -> None:
        self.job = job
        assert self._session is not None
        self._session.rest()
        self.busy_since = started = time.monotonic()
        job.tries += 1
        status, seconds, error = self._measured(job)
        if self.abandoned:
            return
        self.busy_since, self.job = 0.0, None
        spent_s, session = time.monotonic() - started, self._session
        self._took_s = spent_s
        found = Measured(job, status, seconds, self._last_canary, spent_s, error, session.unit, session.build)
        self._since_canary.append(found)
        if len(self._since_canary) >= self.fleet.rules.limits.canary_every:
            self._check_canary()

    def _measured(self, job: Job) -> tuple[str, tuple[float, ...], str]:
        """Return status, seconds and what was wrong; what a device refuses that still runs the canary is the schedule's
        fault.
        """
        bench = self._bench(job.workload)
        try:
            return bench.measure(job.library, job.best_s)
        except StageError as error:  # of a GPU's driver, mostly: too many registers, too large a group, a bug
            self._run_canary(self.fleet.canary[1])
            return COMPILE_ERROR, (), first_line(error, 400)

    def _check_canary(self) -> None:
        """Hand out what was measured since the last canary, unless the device has become slower meanwhile."""
        limits, (_, library) = self.fleet.rules.limits, self.fleet.canary
        now = self._run_canary(library)
        if now > self._last_canary * (1 + limits.max_drift):
            self.fleet.counts.drifts += 1
            deadline = time.monotonic() + min(limits.cool_s, self.fleet.budget.left_s())
            while now > self._baseline * (1 + limits.max_drift) and time.monotonic() < deadline:
                time.sleep(min(1.0, limits.cool_s))
                now = self._run_canary(library)
            self.fleet.counts.notes.append(
                f"the canary of device {self.number} went from {self._last_canary * 1e3:.3f} to {now * 1e3:.3f} ms; "
                f"{len(self._since_canary)} measurements discarded"
            )
            self.fleet.counts.discarded += len(self._since_canary)
            dropped, self._since_canary, self._last_canary = self._since_canary, [], now
            self._baseline = now  # cooled down or not: what is measured from here on is compared with this
            for bench in self._benches.values():
                bench.forget_fastest()
            for found in dropped:
                self.fleet.put_back(found.job, self.fleet.counts.notes[-1])
            return
        self._last_canary = now
        done, self._since_canary = self._since_canary, []
        for found in done:
            self.fleet._results.put(found)

    def _bench(self, workload: Workload) -> KernelBench:
        if workload.key not in self._benches:
            assert self._session is not None
            shared = self.fleet.references
            reference = shared.outputs.get(workload.key)
            plain = shared.plain[workload.key].result().library if reference is None else None
            bench = KernelBench(
                workload, self._session, self.fleet.rules.measure, shared.arrays[workload.key], reference, plain
            )
            with shared.lock:
                shared.outputs.setdefault(workload.key, bench.reference)
            while len(self._benches) >= _KEPT_BENCHES:
                self._benches.pop(next(iter(self._benches)))
            self._benches[workload.key] = bench
        return self._benches[workload.key]

    def _lost(self, error: DeviceError) -> None:
        """Put back what this device had, and rest before asking for another."""
        if self.abandoned:
            return
        fleet, now = self.fleet, time.monotonic()
        self.busy_since = 0.0
        why = f"device {self.number}: {first_line(error, 160)}"
        for found in self._since_canary:
            fleet.put_back(found.job, why, counted=self.job is None)
        self._since_canary = []
        if self.job is not None:
            fleet.put_back(self.job, why)
            self.job = None
        self._session = None
        self.close()
        if not isinstance(error, DeviceBusyError):
            fleet.counts.lost += 1
            fleet.counts.notes.append(why)
        self.without_device_since = self.without_device_since or now
        patience = fleet.rules.limits.give_up_s if fleet.had_device else 0.0  # nobody there at all is said at once
        if now - self.without_device_since >= patience:
            if self.suspect is not None:
                fleet.put_back(self.suspect, why)
                self.suspect = None
            if fleet.without_devices():
                fleet._results.put(error)
                return
        fleet._closing.wait(self._rest_s)
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
