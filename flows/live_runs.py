"""Mark flow runs as Crashed whose process died without a word, such as by `kill -9` or a power cut.

The process of a run holds the lock of a file of this workspace, which the kernel releases with the process. The next
command on this machine finds the files that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.settings import server_name
from tvmflow.config.workspace import Workspace

_MESSAGE = "its process ended without a word (killed, or the machine lost power); run the same command again to resume"
_ENDS = ("COMPLETED", "FAILED", "CANCELLED")
_LATE = "its server was away when it ended"
_held: dict[str, IO[str]] = {}  # until this process ends


def _folder(workspace: Workspace) -> Path:
    # of this machine: locks on a network drive say nothing about processes elsewhere
    return workspace.root / ".prefect" / "live" / (socket.gethostname() or "host")


def hold_run(workspace: Workspace, run: UUID | str) -> None:
    """Show that the process of a run lives, until it ends. A full disk or the like must not fail the run."""
    with contextlib.suppress(OSError):
        folder = _folder(workspace)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{run}"
        file = part.open("w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(f"{server_name()}\n")
        file.flush()
        part.rename(folder / str(run))  # never seen without its lock
        _held[str(run)] = file


def tell_later(run: UUID | str, state: str) -> None:
    """Let a later command tell the server the type of the final state of a run, since it is away now."""
    file = _held.get(str(run))
    if file is not None:
        with contextlib.suppress(OSError):
            file.write(f"{state}\n")
            file.flush()


def mark_dead_runs(workspace: Workspace) -> int:
    """Set the runs of dead processes to Crashed, or to how they ended without their server. Returns how many. Without
    the server nothing changes.
    """
    marked = 0
    with contextlib.suppress(Exception):
        known = {path: _end_of(path) for path in sorted(_folder(workspace).glob("[!.]*"))}
        dead = {path: end for path, end in known.items() if end is not None}
        if not dead:
            return 0
        with get_client(sync_client=True, httpx_settings={"timeout": 5.0}) as client:
            for path, end in dead.items():
                marked += _mark(client, UUID(path.name), end)
                path.unlink(missing_ok=True)
    return marked


def _end_of(path: Path) -> str | None:
    """Return the type of the state that the run of an ended process has to get, '' if it said none, None for a run that
    lives or is on another server.
    """
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        server, end, *_ = [*file.read().split("\n"), "", ""]
        return end if server == server_name() else None


def _mark(client: Any, run: UUID, end: str) -> bool:
    try:
        state = client.read_flow_run(run).state
    except ObjectNotFound:
        return False
    if state is not None and state.is_final() and not (end and state.is_crashed()):  # by an automation
        return False
    if end in _ENDS:
        new = State(type=StateType(end), name=end.title(), message=_LATE)
    else:
        new = Crashed(message=f"{_MESSAGE} (found by process {os.getpid()})")
    client.set_flow_run_state(run, new, force=True)
    return True
