"""A pool of persistent build processes: a compiler that hangs or crashes costs one candidate, never the search."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tvmflow.recipe import CODE_ROOT
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.tuning.records import COMPILE_ERROR
from tvmflow.tuning.templates import Knobs
from tvmflow.tuning.workloads import Workload


@dataclass(frozen=True)
class Built:
    """A compiled kernel, or why there is none. digest: equal for schedules that came out the same."""

    status: str
    library: Path
    trace: Any = None
    digest: str = ""
    error: str = ""


class BuildPool:
    """`workers` processes; use as a context manager. Raises nothing: what cannot be built is a Built that says so."""

    def __init__(self, workers: int, target: ResolvedTarget, folder: Path, timeout_s: float) -> None:
        self.target, self.folder, self.timeout_s = target, folder, timeout_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="build")
        self._local = threading.local()
        self._processes: list[subprocess.Popen[str]] = []
        self._count = itertools.count()
        self._functions: dict[str, Path] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.kill()
        for process in self._processes:
            process.wait()

    def build(
        self, workload: Workload, template: str | None = None, knobs: Knobs | None = None, trace: Any = None
    ) -> Future[Built]:
        """Build a workload under a template's knobs, under a trace, or, with neither, plainly."""
        return self._threads.submit(self._build, workload, template, knobs, trace)

    def _build(self, workload: Workload, template: str | None, knobs: Knobs | None, trace: Any) -> Built:
        library = self.folder / f"kernel-{workload.key[:12]}-{next(self._count)}.so"
        request = {
            "function": str(self._function_file(workload)), "template": template, "knobs": knobs, "trace": trace,
            "target": self.target.to_json(), "path": str(library),
        }  # fmt: skip
        process = self._process()
        watchdog = threading.Timer(self.timeout_s, process.kill)
        watchdog.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or "null")
        except (OSError, ValueError):
            answer = None
        finally:
            watchdog.cancel()
        if answer is None:  # it was killed, or crashed: the next candidate gets a new process
            process.kill()
            process.wait()
            self._local.process = None
            return Built(COMPILE_ERROR, library, error=f"the compiler crashed or took longer than {self.timeout_s:g} s")
        return Built(answer["status"], library, answer.get("trace"), answer.get("digest", ""), answer.get("error", ""))

    def _function_file(self, workload: Workload) -> Path:
        import tvm

        with self._lock:
            if workload.key not in self._functions:
                path = self.folder / f"{workload.key}.json"
                path.write_text(tvm.ir.save_json(workload.function), encoding="utf-8")
                self._functions[workload.key] = path
            return self._functions[workload.key]

    def _process(self) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] | None = getattr(self._local, "process", None)
        if process is None or process.poll() is not None:
            process = subprocess.Popen(
                [sys.executable, "-m", "tvmflow.tuning.build_worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
            )  # fmt: skip
            self._local.process = process
            with self._lock:
                self._processes.append(process)
        return process
