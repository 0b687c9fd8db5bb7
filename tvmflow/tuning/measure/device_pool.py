"""Measure jobs on a pool of devices: retry on another device, back off, detect clock drift by a canary.

A failure of a kernel (wrong output, timeout) is a result. A failure of a device or the network is not: the candidate is
measured on another device, the slot of the lost device pauses, and nothing is recorded. If a kernel does not return,
the canary (a kernel that is known to be correct) is run in a new session to decide whether the kernel or the device is
at fault.
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
from tvmflow.tuning.measure.jobs import DevicePoolCounts, Job, Measured, OpenSession, References
from tvmflow.tuning.measure.kernel_bench import KernelBench
from tvmflow.tuning.records.record import COMPILE_ERROR, KERNEL_TIMEOUT, UNKNOWN
from tvmflow.tuning.rules import SearchRules

_MOST_TRIES = 4  # tries of one candidate on devices that were lost
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 60.0
_OPEN_S = 2.0  # to open a session
_KEPT_BENCHES = 4  # workloads whose inputs stay on the device


class DevicePool:
    """A pool of devices; use as a context manager. `measure` blocks until every job has its result.

    budget: jobs beyond it return as if there were no device.
    """

    def __init__(
        self,
        open_session: OpenSession,
        rules: SearchRules,
        canary: tuple[Workload, Path],
        budget: Budget | None = None,
    ) -> None:
        self.open_session, self.rules, self.canary = open_session, rules, canary
        self.budget = budget or Budget()
        self.references, self.counts = References(), DevicePoolCounts()
        self._jobs: queue.Queue[Job | None] = queue.Queue()
        self._results: queue.Queue[Measured | Exception] = queue.Queue()
        self._closing, self._has_work = threading.Event(), threading.Event()
        self._slots: list[_Slot] = []
        self.had_device = False

    def __enter__(self) -> DevicePool:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for _slot in self._slots:
            self._jobs.put(None)
        for slot in self._slots:
            slot.thread.join(timeout=5)
            slot.close()

    def measure(self, jobs: Iterable[Job], on_result: Callable[[Measured], None]) -> None:
        """Measure every job in any order, starting with the first ones while others are still being built.

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
                self._return_unmeasured()
                continue
            if isinstance(found, Exception):
                raise found
            left -= 1
            on_result(found)

    def start(self) -> None:
        """Start to open sessions if there is time; the canary runs once there is work."""
        if not self._slots and self.budget.has(_OPEN_S):
            self._slots = [_Slot(self, number) for number in range(self.rules.sessions)]
            for slot in self._slots:
                slot.start()

    def wait_for_work(self) -> None:
        """Block until there is a job, or the pool is closing."""
        while not self._has_work.wait(0.2) and not self._closing.is_set():
            pass

    def _return_unmeasured(self) -> None:
        """Return the waiting jobs as unmeasured if no time is left to measure them."""
        while not self.budget.has(0.0 if self._slots else _OPEN_S):
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self.report_unknown(job)

    def report_unknown(self, job: Job, why: str = "") -> None:
        """Return a job without a measurement. why: "" where its time is over."""
        self._results.put(Measured(job, UNKNOWN, (), 0.0, 0.0, why))

    def _watch(self) -> None:
        """Replace a slot whose kernel timed out, since a blocked RPC call cannot be interrupted.

        Raises DeviceLostError when every device has been silent since it was opened for as long as the rules allow.
        """
        now = time.monotonic()
        for at, slot in enumerate(self._slots):
            if not slot.busy_since or now - slot.busy_since <= self.rules.limits.kernel_timeout_s:
                continue
            silent_since = 0.0 if slot.job else slot.without_device_since or slot.busy_since
            fresh = _Slot(self, at, suspect=slot.abandon())
            if silent_since:  # since its first kernel, which is known to be correct
                slot.without_device_since = fresh.without_device_since = silent_since
                error = DeviceLostError(
                    f"device {at} has been silent for {now - silent_since:.0f} s, "
                    "on a kernel that is known to be correct",
                    "a device that computes",
                    "check the device, then run the same command again; all measurements are kept",
                )
                self.counts.lost += 1
                self.counts.notes.append(error.found)
                if now - silent_since >= self.rules.limits.give_up_s and self.has_no_device():
                    raise error
            self._slots[at] = fresh
            fresh.start()

    def has_no_device(self) -> bool:
        """Return whether no slot has a device that responds."""
        return all(slot.without_device_since for slot in self._slots)

    def requeue(self, job: Job, why: str, is_suspect: bool = True) -> None:
        """Queue a job for the next free device, or give it up after too many tries.

        is_suspect: the job may have caused the failure; jobs lost through another one are always measured again.
        """
        if not is_suspect:
            job.tries -= 1
        if job.tries >= _MOST_TRIES:
            self.counts.given_up += 1
            reason = f"{job.library.stem} was given up after {job.tries} tries: {why}"
            self.counts.notes.append(f"{job.workload.name}: {reason}")
            self.report_unknown(job, reason)
        else:
            self.counts.retried += 1
            self._jobs.put(job)


class _Slot:
    """A thread that holds one session at a time."""

    def __init__(self, pool: DevicePool, number: int, suspect: Job | None = None) -> None:
        self.pool, self.number, self.suspect = pool, number, suspect
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
        self._backoff_s = _FIRST_BACKOFF_S
        self.without_device_since = 0.0

    def start(self) -> None:
        self.thread.start()

    def abandon(self) -> Job | None:
        """Leave the thread with its silent device and return its job; requeue the results that wait for a canary."""
        self.abandoned = True
        for found in self._since_canary:
            self.pool.requeue(found.job, "another kernel timed out", is_suspect=False)
        self._since_canary = []
        job, self.job, self.suspect, self.busy_since = self.job or self.suspect, None, None, 0.0
        threading.Thread(target=self.close, daemon=True).start()
        return job

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._stack.close()

    def _run(self) -> None:
        while not self.pool._closing.is_set() and not self.abandoned:
            try:
                if (
                    self._session is not None
                    and time.monotonic() - self._opened > 0.8 * self.pool.rules.limits.session_s
                ):
                    self.close()
                    self._session = None
                if self._session is None:
                    self._open()
                    if not self.abandoned:
                        self._report_suspect()
                job = self._next_job()
                if job is None:
                    break
                if self.pool.budget.has(self._took_s):
                    self._measure_job(job)
                else:
                    self.pool.report_unknown(job)
            except DeviceError as error:
                self._on_device_lost(error)
            except Exception as error:  # a bug must end the search, not block it forever
                self.pool._results.put(error)
                return
        if not self.abandoned:
            self.close()

    def _open(self) -> None:
        self._benches, self._canary = {}, None
        self._stack = contextlib.ExitStack()
        self._session = self._stack.enter_context(self.pool.open_session())
        self.pool.wait_for_work()  # a concurrent build would disturb the canary
        if self.pool._closing.is_set():
            return
        self.pool.had_device, self.busy_since = True, time.monotonic()
        workload, library = self.pool.canary
        self._canary = self._bench(workload)
        self._baseline = self._last_canary = self._run_canary(library)
        self.busy_since = 0.0
        self._backoff_s, self.without_device_since, self._opened = _FIRST_BACKOFF_S, 0.0, time.monotonic()

    def _run_canary(self, library: Path) -> float:
        assert self._canary is not None
        try:
            seconds = self._canary.measure_alone(library)
        except StageError as error:
            raise DeviceLostError(
                f"device {self._canary.session.name!r} rejects a kernel that is known to be correct: "
                f"{first_line(error, 160)}",
                "a device that computes",
                "check its driver, or restart it",
            ) from error
        if not seconds:
            raise DeviceLostError(
                f"device {self._canary.session.name!r} computes a wrong output "
                "with a kernel that is known to be correct",
                "a device that computes correctly",
                "take it out of the tracker and test its memory and clock",
            )
        return median(seconds)

    def _report_suspect(self) -> None:
        """Report a timeout of the suspect kernel: the device responds and computes the canary again."""
        if self.suspect is not None:
            job, self.suspect = self.suspect, None
            limit_s = self.pool.rules.limits.kernel_timeout_s
            error = f"no output within {limit_s:g} s, on a device that computed the canary before and after"
            self.pool._results.put(Measured(job, KERNEL_TIMEOUT, (), self._baseline, limit_s, error))

    def _next_job(self) -> Job | None:
        """Wait for a job; before blocking, report the results that wait for a canary."""
        while not self.pool._closing.is_set() and not self.abandoned:
            try:
                return self.pool._jobs.get(block=not self._since_canary, timeout=0.2)
            except queue.Empty:
                if self._since_canary:
                    self._check_canary()
        return None

    def _measure_job(self, job: Job) -> None:
        self.job = job
        assert self._session is not None
        self._session.rest()
        self.busy_since = started = time.monotonic()
        job.tries += 1
        status, seconds, error, canary_s = self._run_bench(job)
        if self.abandoned:
            return
        self.busy_since, self.job = 0.0, None
        spent_s, session = time.monotonic() - started, self._session
        self._took_s = spent_s
        beside_s = canary_s or self._last_canary
        found = Measured(job, status, seconds, beside_s, spent_s, error, session.unit, session.build)
        self._since_canary.append(found)
        if len(self._since_canary) >= self.pool.rules.limits.canary_every:
            self._check_canary()

    def _run_bench(self, job: Job) -> tuple[str, tuple[float, ...], str, float]:
        """Return status, seconds, error, and the canary's seconds if it was timed in turns. If the device rejects the
        kernel but runs the canary, the schedule is at fault.
        """
        bench = self._bench(job.workload)
        try:
            if job.beside_canary and self._canary is not None:
                return bench.measure_beside(job.library, self._canary, self.pool.canary[1])
            return (*bench.measure(job.library, job.best_s), 0.0)
        except StageError as error:  # mostly from a GPU driver: too many registers, too large a workgroup, a bug
            self._run_canary(self.pool.canary[1])
            return COMPILE_ERROR, (), first_line(error, 400), 0.0

    def _check_canary(self) -> None:
        """Report the results since the last canary, unless the device has become slower since then."""
        limits, (_, library) = self.pool.rules.limits, self.pool.canary
        now = self._run_canary(library)
        if now > self._last_canary * (1 + limits.max_drift):
            self.pool.counts.drifts += 1
            deadline = time.monotonic() + min(limits.cool_s, self.pool.budget.left_s())
            while now > self._baseline * (1 + limits.max_drift) and time.monotonic() < deadline:
                time.sleep(min(1.0, limits.cool_s))
                now = self._run_canary(library)
            self.pool.counts.notes.append(
                f"the canary of device {self.number} went from {self._last_canary * 1e3:.3f} to {now * 1e3:.3f} ms; "
                f"{len(self._since_canary)} measurements discarded"
            )
            self.pool.counts.discarded += len(self._since_canary)
            dropped, self._since_canary, self._last_canary = self._since_canary, [], now
            self._baseline = now  # the new reference, whether the device cooled down or not
            for bench in self._benches.values():
                bench.forget_fastest()
            for found in dropped:
                self.pool.requeue(found.job, self.pool.counts.notes[-1])
            return
        self._last_canary = now
        done, self._since_canary = self._since_canary, []
        for found in done:
            self.pool._results.put(found)

    def _bench(self, workload: Workload) -> KernelBench:
        if workload.key not in self._benches:
            assert self._session is not None
            shared = self.pool.references
            reference = shared.outputs.get(workload.key)
            kernel = shared.kernels[workload.key].result().library if reference is None else None
            bench = KernelBench(
                workload, self._session, self.pool.rules.measure, shared.arrays[workload.key], reference, kernel
            )
            with shared.lock:
                shared.outputs.setdefault(workload.key, bench.reference)
            while len(self._benches) >= _KEPT_BENCHES:
                self._benches.pop(next(iter(self._benches)))
            self._benches[workload.key] = bench
        return self._benches[workload.key]

    def _on_device_lost(self, error: DeviceError) -> None:
        """Requeue the jobs of this device, then pause before opening another session."""
        if self.abandoned:
            return
        pool, now = self.pool, time.monotonic()
        self.busy_since = 0.0
        why = f"device {self.number}: {first_line(error, 160)}"
        for found in self._since_canary:
            pool.requeue(found.job, why, is_suspect=self.job is None)
        self._since_canary = []
        if self.job is not None:
            pool.requeue(self.job, why)
            self.job = None
        self._session = None
        self.close()
        if not isinstance(error, DeviceBusyError):
            pool.counts.lost += 1
            pool.counts.notes.append(why)
        self.without_device_since = self.without_device_since or now
        patience = pool.rules.limits.give_up_s if pool.had_device else 0.0  # with no device at all, fail at once
        if now - self.without_device_since >= patience:
            if self.suspect is not None:
                pool.requeue(self.suspect, why)
                self.suspect = None
            if pool.has_no_device():
                pool._results.put(error)
                return
        pool._closing.wait(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S)
