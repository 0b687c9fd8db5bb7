"""A pool of persistent build processes: a compiler that hangs or crashes costs one candidate, never the search.

Whose fault a failure is, is asked of a kernel that is known to compile: where that fails too, the machine is at fault
(no compiler, no linker, no room, no memory), nothing is said of the schedule, and no more is built. Where it does not,
the candidate is built again, and believed to be at fault when the compiler itself refuses it twice. What only the
linker or the machine refused is never the schedule's fault.
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

from tvmflow.ir.tir.workloads import Workload
from tvmflow.schedules.registry import Knobs
from tvmflow.support.errors import ToolchainError
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.measure.build_process import BuildProcess
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.records.record import COMPILE_ERROR, ILLEGAL_SCHEDULE, OK, UNKNOWN

_MOST_TRIES = 3  # of one candidate
_REFUSALS = 2  # of the compiler, after which the schedule is at fault
_PAUSES_S = (0.0, 1.0, 3.0)  # before the machine is tried again; with all of them over, the search ends


@dataclass(frozen=True)
class Built:
    """A compiled kernel, or why there is none. digest: equal for schedules that came out the same.

    status: UNKNOWN where nothing can be said of the schedule. sure: the failure needs no second look. estimate_s: of
    the static model, where it was asked for and knows the kernel; then there is no library. seconds: that building it
    took.
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
class Order:
    """What to build of a workload: under a template's knobs, under a trace, plainly with neither; estimate: only its
    time.
    """

    workload: Workload
    template: str | None = None
    knobs: Knobs | None = None
    trace: Any = None
    estimate: bool = False


class BuildPool:
    """`workers` processes; use as a context manager. What is built raises ToolchainError where this machine is at
    fault.

    self_contained: for devices without TVM.
    """

    def __init__(
        self, workers: int, target: ResolvedTarget, folder: Path, timeout_s: float, self_contained: bool = False
    ) -> None:
        self.target, self.folder, self.timeout_s, self.self_contained = target, folder, timeout_s, self_contained
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="build")
        self._local = threading.local()
        self._processes: list[BuildProcess] = []
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._broken: ToolchainError | None = None

    def __enter__(self) -> BuildPool:
        for _ in range(self.workers if self.workers > 1 else 0):  # side by side: each imports TVM
            with contextlib.suppress(RuntimeError):
                self._threads.submit(self._start)
        return self

    def _start(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # whoever asks for it says so
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
        """Build a workload under a template's knobs, under a trace, or, with neither, plainly; estimate: only its
        time.
        """
        try:
            return self._threads.submit(self._build, Order(workload, template, knobs, trace, estimate))
        except RuntimeError as error:  # no thread can be started
            failed: Future[Built] = Future()
            failed.set_exception(_broken(str(error)))
            return failed

    def _build(self, order: Order) -> Built:
        refused = 0
        for _ in range(_MOST_TRIES):
            if self._broken is not None:
                raise self._broken
            found = self._once(order)
            if found.status in (OK, ILLEGAL_SCHEDULE):
                return found
            self._try_the_machine(found.error, order.estimate)
            refused += found.status == COMPILE_ERROR
            if refused == _REFUSALS or found.sure:
                return found
        return Built(UNKNOWN, found.library, error=found.error)

    def _try_the_machine(self, error: str, estimate: bool) -> None:
        """Build a kernel that is known to compile, or only compile it where that is all. Raises ToolchainError where
        that fails, too, again and again.
        """
        started = time.monotonic()
        for pause_s in _PAUSES_S:
            if self._closed.wait(pause_s):
                raise _broken(error)
            control = self._once(Order(canary_workload(), estimate=estimate))
            with contextlib.suppress(OSError):
                control.library.unlink()
            if control.status == OK:
                return
            if time.monotonic() - started > self.timeout_s:
                break
        self._broken = _broken(control.error)
        raise self._broken

    def _once(self, order: Order) -> Built:
        library, started = self.folder / f"kernel-{order.workload.key[:12]}-{next(self._count)}.so", time.monotonic()
        try:
            reply = self._process().ask(self.request(order, library), self.timeout_s)
        except (OSError, RuntimeError) as error:  # no room, no process, no thread
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

    def request(self, order: Order, library: Path) -> dict[str, Any]:
        """Return what a build process is asked."""
        return {
            "function": str(self._function_file(order.workload)),
            "template": order.template,
            "knobs": order.knobs,
            "trace": order.trace,
            "target": self.target.to_json(),
            "path": str(library),
            "self_contained": self.self_contained,
            "estimate": order.estimate,
        }

    def _function_file(self, workload: Workload) -> Path:
        """Return the file with a workload's function; written again where somebody tidied the folder up."""
        import tvm

        path = self.folder / f"{workload.key}.json"
        with self._lock:
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                written = path.with_suffix(".part")
                written.write_text(tvm.ir.save_json(workload.function), encoding="utf-8")
                written.replace(path)
        return path

    def _process(self) -> BuildProcess:
        process: BuildProcess | None = getattr(self._local, "process", None)
        if process is None or not process.alive:
            process = self._local.process = BuildProcess()
            with self._lock:
                self._processes = [known for known in self._processes if known.alive] + [process]
                if self._closed.is_set():
                    process.kill()
        return process


def _broken(error: str) -> ToolchainError:
    return ToolchainError(
        f"this machine cannot compile a kernel that is known to be right: {error}",
        "the target's compiler and linker, with room in TMPDIR and memory",
        "mend what the error says ('tvmflow doctor' looks for more) and run the same command again: no schedule was "
        "blamed, and what was measured is kept",
    )
