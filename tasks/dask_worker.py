"""What a worker of a Dask cluster does: run a stage, or build a candidate of the tuner, on files that came as bytes.

A worker needs nothing but an installed tvmflow with the same tools: no workspace, no store, no server but Dask's. Work
is done in processes of their own, so that a crash of the compiler does not end the worker. They end when the work was
given up, and with the worker.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.worker_tools import check_tools
from tvmflow.support.errors import StageCrashedError, TvmflowError
from tvmflow.support.files import write_atomic
from tvmflow.support.own_packages import own_module
from tvmflow.support.paths import CODE_ROOT
from tvmflow.support.temporary import make_folder, temporary_folder
from tvmflow.tuning.measure.build_process import BuildProcess

REQUEST, OUT, LOG = "request.json", "out", "log.txt"
_LOOK_S = 0.5
_MOST_LOG = 1 << 20


@dataclass(frozen=True)
class StageWork:
    """A stage to run. request: its StageRequest as JSON; files: stage -> path -> content, what it reads; topic: of
    Dask's events, for progress.
    """

    what: str
    request: str
    files: dict[str, dict[str, bytes]]
    topic: str


@dataclass(frozen=True)
class StageDone:
    """What a stage made, or its error as JSON."""

    files: dict[str, bytes] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None
    log: str = ""


@dataclass(frozen=True)
class BuildWork:
    """A kernel to build: the request of a build process, whose function is here as text. tools: those to build with."""

    request: dict[str, Any]
    function: str
    timeout_s: float
    tools: dict[str, str]


@dataclass(frozen=True)
class BuildDone:
    """The reply of a build process, and the files of the library; or an error as JSON."""

    reply: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    error: dict[str, str] | None = None


def take_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder. Raises ValueError for a path that leaves it."""
    for name, content in files.items():
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"the file {name!r} leaves its folder")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by path."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def run_stage(work: StageWork) -> StageDone:
    """Run a stage in a process and return what it made."""
    from distributed import get_worker

    worker = get_worker()
    worker.log_event(work.topic, {"started": worker.name})
    with temporary_folder("stage") as folder:
        for source, files in work.files.items():
            take_files(files, folder / "in" / source)
        (folder / OUT).mkdir()
        (folder / REQUEST).write_text(work.request, encoding="utf-8")
        last = _run_process(folder, lambda event: worker.log_event(work.topic, event))
        log = (folder / LOG).read_bytes()[-_MOST_LOG:].decode("utf-8", "replace")
        if "facts" in last:
            return StageDone(read_files(folder / OUT), last["facts"], log=log)
        if "error" in last:
            return StageDone(error=last["error"], log=log)
    lines = "".join(f"\n    | {line[:200]}" for line in [one for one in log.splitlines() if one.strip()][-5:])
    died = StageCrashedError(
        f"{work.what} died on a Dask worker ({last['exit']})" + "".join(f"\n    | {x[:200]}" for x in lines),
        "the stage to finish with a result",
        "read the log of the stage",
    )
    return StageDone(error=died.to_json(), log=log)


def _run_process(folder: Path, tell: Callable[[Any], None]) -> dict[str, Any]:
    """Run the process of a stage, which leaves its outputs in the folder; return its last message, or how it ended."""
    reader, writer = os.pipe()
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", own_module("tasks.stage_elsewhere"), str(folder), str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
        )
    os.close(writer)
    try:
        last = _listen(reader, tell)
        code = process.wait() if last is not None else 0
    finally:
        os.close(reader)  # before the kill: the process may have left its group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if last is None:
        return {"exit": "nobody waits for it"}
    return last or {"exit": f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"}


def _listen(reader: int, tell: Callable[[Any], None]) -> dict[str, Any] | None:
    """Forward progress until the process closes its end; return its last message, None if the work was given up."""
    from distributed import secede

    last, rest, is_slot = dict[str, Any](), b"", True
    while True:
        if not select.select([reader], [], [], _LOOK_S)[0]:
            if _is_given_up():
                return None
            continue
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return last
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "progress" in event:
                tell(event)
            elif "paused" in event:
                tell(event)
                if event["paused"] and is_slot:  # it waits for a measurement here, which may wait for this thread
                    secede()
                    is_slot = False
            else:
                last = event


def _is_given_up() -> bool:
    """Return whether whoever asked for the work of this thread does not want it any more."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state in ("cancelled", "resumed")


_threads, _writing = threading.local(), threading.Lock()


def build_kernel(work: BuildWork) -> BuildDone:
    """Build a kernel in the process of this thread."""
    try:
        check_tools(work.tools, work.request["target"])
        with temporary_folder("build") as folder:
            library = folder / Path(work.request["path"]).name
            request = {**work.request, "function": str(_function_file(work.function)), "path": str(library)}
            reply = _build_process().ask(request, work.timeout_s)
            return BuildDone(reply, read_files(folder))
    except TvmflowError as error:
        return BuildDone(error=error.to_json())


def _function_file(text: str) -> Path:
    """Return the file of a function: the same for all of its candidates, since a build process keeps what it read."""
    path = _functions() / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    with _writing:
        if not path.exists():
            write_atomic(path, text)
    return path


@functools.cache
def _functions() -> Path:
    return make_folder("functions")  # the next process removes it


def _build_process() -> BuildProcess:
    process: BuildProcess | None = getattr(_threads, "process", None)
    if process is None or not process.alive:
        process = _threads.process = BuildProcess()
    return process
