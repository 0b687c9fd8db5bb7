"""Run one stage in a process of its own, with a time limit and a classified result.

A compiler crash ends only that process, and a timeout really ends the work.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.stage_server import StageProcess, describe_exit, start_stage
from flows.stopping import is_stopping, when_stopping
from tasks.table import STAGES
from tvmflow.config.workspace import workspace_at
from tvmflow.support import errors
from tvmflow.support.digests import Digests
from tvmflow.support.progress import Progress

_running: set[StageProcess] = set()
_running_lock = threading.RLock()  # a signal may arrive in the thread that holds it


@dataclass(frozen=True)
class StageRequest:
    """A stage of a cell, its workspace and time limit in seconds. preview: run only its preview. unit: of the device to
    use, "" for any. dask: the address of a cluster, "" for that of params.yaml.
    """

    stage: str
    cell: str
    root: str
    timeout_s: float
    again: bool = False
    preview: bool = False
    unit: str = ""
    dask: str = ""


def run_stage(request: StageRequest, progress: Progress, digests: Digests | None = None) -> str:
    """Run the stage and return its outcome: hit, restored or made. Raises the stage's own error, or a StageError.

    digests: file digests known to this run; the process gets them and adds its own.
    """
    digests = digests or Digests()
    workspace = workspace_at(Path(request.root))
    cell = workspace.params.cell(request.cell)
    log = workspace.log_path(request.stage, cell)
    log.parent.mkdir(parents=True, exist_ok=True)
    is_quiet = STAGES[request.stage].measures_device and STAGES[request.stage].needs_quiet
    with log.open("wb") as output:
        _refuse_when_stopping(request)
        process = start_stage(_arguments(request), digests.to_json(), output, prepare=not is_quiet)
        with _running_lock:
            _running.add(process)
        limit = _TimeLimit(request.timeout_s, process.kill)
        try:
            last = _listen(process.events, progress, limit)
            code = process.wait()
        finally:
            limit.pause(True)
            process.kill()
            with _running_lock:
                _running.discard(process)
    if "outcome" in last:
        digests.learn(last["digests"])
        return str(last["outcome"])
    if "error" in last:
        raise errors.from_json(last["error"])
    _refuse_when_stopping(request)
    if limit.is_over:
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
        *(["--unit", request.unit] if request.unit else []),
        *(["--dask", request.dask] if request.dask else []),
    ]


class _TimeLimit:
    """Ends a stage after its time limit, which stands still while the stage waits for a device."""

    def __init__(self, limit_s: float, end: Callable[[], None]) -> None:
        self.left_s, self.end, self.is_over = limit_s, end, False
        self._since: float | None = None
        self._timer = threading.Timer(0, end)
        self.pause(False)

    def pause(self, is_paused: bool) -> None:
        """Stop the clock, or let it run."""
        self._timer.cancel()
        now = time.monotonic()
        if self._since is not None:
            self.left_s -= now - self._since
        self._since = None if is_paused else now
        if not is_paused:
            self._timer = threading.Timer(self.left_s, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self.is_over = True
        self.end()


def _listen(reader: int, progress: Progress, limit: _TimeLimit) -> dict[str, Any]:
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
            elif "paused" in event:
                limit.pause(event["paused"])
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
