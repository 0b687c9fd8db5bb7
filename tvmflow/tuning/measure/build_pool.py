"""Build kernels in a pool of worker processes; a compiler that hangs or crashes costs one candidate.

After a failure, a kernel that is known to compile is built. If that fails too, the host is at fault (no compiler, no
linker, no disk space, no memory): nothing is recorded about the schedule, and building stops. Otherwise the candidate
is built again; if the compiler rejects it twice, the schedule is at fault. A failure of the linker or of the host is
never the schedule's fault.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import tvm

from tvmflow.ir.tir.workloads import Workload
from tvmflow.schedules.registry import Knobs
from tvmflow.support.errors import ToolchainError
from tvmflow.support.json_values import to_json
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.measure.builders import Builder, builders
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.records.record import COMPILE_ERROR, ILLEGAL_SCHEDULE, OK, UNKNOWN

_MOST_TRIES = 3  # builds of one candidate
_REFUSALS = 2  # compiler errors after which the schedule is at fault
_PAUSES_S = (0.0, 1.0, 3.0)  # before each check of the host; after the last one, the search ends


@dataclass(frozen=True)
class Built:
    """A compiled kernel, or the reason why it could not be built. digest: equal for schedules with equal code.

    status: UNKNOWN where nothing is known about the schedule. sure: the failure needs no second attempt. estimate_s: of
    the static model, if it was requested and covers the kernel; no library is written then. seconds: build time.
    """

    status: str
    library: Path
    trace: Any = None
    digest: str = ""
    error: str = ""
    sure: bool = False
    estimate_s: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class BuildRequest:
    """A build of a workload with template knobs, with a trace, or, with neither, of its reference kernel.

    estimate: compile and estimate the time only.
    """

    workload: Workload
    template: str | None = None
    knobs: Knobs | None = None
    trace: Any = None
    estimate: bool = False


class BuildPool:
    """`workers` build processes; use as a context manager. Builds raise ToolchainError where the host is at fault.

    self_contained: build for devices without TVM.
    """

    def __init__(
        self, workers: int, target: ResolvedTarget, folder: Path, timeout_s: float, self_contained: bool = False
    ) -> None:
        self.target, self.folder, self.timeout_s, self.self_contained = target, folder, timeout_s, self_contained
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="build")
        self._local = threading.local()
        self._processes: list[Builder] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._host_failure: ToolchainError | None = None

    def __enter__(self) -> BuildPool:
        for _ in range(self.workers if self.workers > 1 else 0):  # start them in parallel, since each imports TVM
            with contextlib.suppress(RuntimeError):
                self._threads.submit(self._start)
        return self

    def _start(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the build that needs the process reports it
            self._process()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for process in self._processes:
                process.kill()

    def build(
        self,
        workload: Workload,
        template: str | None = None,
        knobs: Knobs | None = None,
        trace: Any = None,
        estimate: bool = False,
    ) -> Future[Built]:
        """Build a workload with template knobs, with a trace, or, with neither, its reference kernel.

        estimate: compile and estimate the time only.
        """
        try:
            return self._threads.submit(self._build, BuildRequest(workload, template, knobs, trace, estimate))
        except RuntimeError as error:  # no thread can be started
            failed: Future[Built] = Future()
            failed.set_exception(_host_error(str(error)))
            return failed

    def _build(self, request: BuildRequest) -> Built:
        refused = 0
        for _ in range(_MOST_TRIES):
            if self._host_failure is not None:
                raise self._host_failure
            found = self._build_once(request)
            if found.status in (OK, ILLEGAL_SCHEDULE):
                return found
            self._check_host(found.error, request.estimate)
            refused += found.status == COMPILE_ERROR
            if refused == _REFUSALS or found.sure:
                return found
        return Built(UNKNOWN, found.library, error=found.error)

    def _check_host(self, error: str, estimate: bool) -> None:
        """Build (or only compile) a kernel that is known to compile. Raises ToolchainError if that fails repeatedly."""
        started = time.monotonic()
        for pause_s in _PAUSES_S:
            if self._closed.wait(pause_s):
                raise _host_error(error)
            control = self._build_once(BuildRequest(canary_workload(), estimate=estimate))
            with contextlib.suppress(OSError):
                control.library.unlink()
            if control.status == OK:
                return
            if time.monotonic() - started > self.timeout_s:
                break
        self._host_failure = _host_error(control.error)
        raise self._host_failure

    def _build_once(self, request: BuildRequest) -> Built:
        library, started = self.folder / f"kernel-{request.workload.key[:12]}-{next(self._count)}.so", time.monotonic()
        try:
            reply = self._process().ask(self.to_json(request, library), self.timeout_s)
        except (OSError, RuntimeError) as error:  # no disk space, no process, no thread
            return Built(UNKNOWN, library, error=str(error))
        return Built(
            reply["status"],
            library,
            reply.get("trace"),
            reply.get("digest", ""),
            reply.get("error", ""),
            reply.get("sure", False),
            reply.get("estimate_s"),
            time.monotonic() - started,
        )

    def to_json(self, request: BuildRequest, library: Path) -> dict[str, Any]:
        """Return the request that is sent to a build process."""
        return {
            "function": str(self._function_file(request.workload)),
            "template": request.template,
            "knobs": request.knobs,
            "trace": request.trace,
            "target": to_json(self.target),
            "path": str(library),
            "self_contained": self.self_contained,
            "estimate": request.estimate,
        }

    def _function_file(self, workload: Workload) -> Path:
        """Return the file with a workload's function; write it if it is missing."""
        path = self.folder / f"{workload.key}.json"
        with self._lock:
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                written = path.with_suffix(".part")
                written.write_text(tvm.ir.save_json(workload.function), encoding="utf-8")
                written.replace(path)
        return path

    def _process(self) -> Builder:
        process: Builder | None = getattr(self._local, "process", None)
        if process is None or not process.alive:
            process = self._local.process = builders().start()
            with self._lock:
                self._processes = [known for known in self._processes if known.alive] + [process]
                if self._closed.is_set():
                    process.kill()
        return process


def _host_error(error: str) -> ToolchainError:
    return ToolchainError(
        f"this machine cannot compile a kernel that is known to be correct: {error}",
        "the target's compiler and linker, with enough memory and disk space in TMPDIR",
        "fix the error ('tvmflow doctor' checks for others), then run the same command again: no schedule was "
        "rejected, and all measurements are kept",
    )
