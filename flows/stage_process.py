"""Run one stage in a process of its own, with a time limit and a classified result.

A compiler crash ends only that process, and a timeout really ends the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.stage_server import StageProcess, describe_exit, start_stage
from flows.stopping import is_stopping, wait_unless_stopping, when_stopping
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import transport_of
from tvmflow.support import errors
from tvmflow.support.digests import Digests
from tvmflow.support.progress import Progress

_running: set[StageProcess] = set()
_running_lock = threading.RLock()  # a signal may arrive in the thread that holds it


@dataclass(frozen=True)
class StageRequest:
    """A stage of a cell, its workspace and time limit in seconds. preview: run only its preview."""

    stage: str
    cell: str
    root: str
    timeout_s: float
    again: bool = False
    preview: bool = False


def run_stage(request: StageRequest, progress: Progress, digests: Digests | None = None) -> str:
    """Run the stage and return its outcome: hit, restored or made. Raises the stage's own error, or a StageError.

    digests: file digests known to this run; the process gets them and adds its own.
    """
    digests = digests or Digests()
    workspace = Workspace(Path(request.root))
    cell = workspace.params.cell(request.cell)
    log = workspace.log_path(request.stage, cell)
    log.parent.mkdir(parents=True, exist_ok=True)
    is_quiet = STAGES[request.stage].measures_device and STAGES[request.stage].needs_quiet
    with host_lock(workspace, request.stage, cell), log.open("wb") as output:
        _refuse_when_stopping(request)
        started = time.monotonic()
        process = start_stage(_arguments(request), digests.to_json(), output, prepare=not is_quiet)
        with _running_lock:
            _running.add(process)
        killer = threading.Timer(request.timeout_s, process.kill)
        killer.start()
        try:
            last = _listen(process.events, progress)
            code = process.wait()
        finally:
            killer.cancel()
            process.kill()
            with _running_lock:
                _running.discard(process)
    if "outcome" in last:
        digests.learn(last["digests"])
        return str(last["outcome"])
    if "error" in last:
        raise errors.from_json(last["error"])
    _refuse_when_stopping(request)
    if time.monotonic() - started >= request.timeout_s:
        raise errors.StageTimeoutError(
            f"{request.stage} of {request.cell} was killed after {request.timeout_s:g} s",
            f"the stage to finish within flows.timeout_s.{request.stage}",
            f"raise that limit, or read {log}; measurements so far are kept",
        )
    raise errors.StageCrashedError(
        f"{request.stage} of {request.cell} died: {describe_exit(code)}{_tail(log)}",
        "the stage to finish with a result",
        f"read {log}",
    )


def _arguments(request: StageRequest) -> list[str]:
    return [
        request.stage,
        request.cell,
        "--root",
        request.root,
        *(["--again"] if request.again else []),
        *(["--preview"] if request.preview else []),
    ]


def _listen(reader: int, progress: Progress) -> dict[str, Any]:
    """Forward progress until the process closes its end; return its last message."""
    last: dict[str, Any] = {}
    with os.fdopen(reader, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if "progress" in event:
                progress(*event["progress"])
            else:
                last = event
    return last


def kill_all() -> bool:
    """Kill all running stages; each can resume later from its records. Returns whether any was running."""
    with _running_lock:
        for process in _running:
            process.kill()
        return bool(_running)


when_stopping(kill_all)


def _refuse_when_stopping(request: StageRequest) -> None:
    if is_stopping():
        raise errors.InterruptedStageError(f"{request.stage} of {request.cell} was interrupted")


def _tail(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return "".join(f"\n    | {line[:200]}" for line in lines[-5:])


@contextlib.contextmanager
def host_lock(workspace: Workspace, stage: str, cell: Cell) -> Iterator[None]:
    """Let many stages run on this machine, but a measurement of its CPU alone.

    Uses a lock that ends with its process; waiting does not count against the stage's timeout.
    """
    device = workspace.params.targets[cell.target].device
    measures_here = STAGES[stage].measures_device and transport_of(device).is_this_host
    path = Path.home() / ".cache" / "tvmflow" / "locks" / "host"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:  # no blocking call, so that Ctrl-C works
            try:
                fcntl.flock(file, (fcntl.LOCK_EX if measures_here else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait_unless_stopping(0.1):
                    break
        yield
