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
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.settings import server_name
from tvmflow.config.workspace import Workspace

_MESSAGE = "its process ended without a word (killed, or the machine lost power); run the same command again to resume"
_held: list[IO[str]] = []  # until this process ends


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
        file.write(server_name())
        file.flush()
        part.rename(folder / str(run))  # never seen without its lock
        _held.append(file)


def mark_dead_runs(workspace: Workspace) -> int:
    """Set the runs of dead processes to Crashed. Returns how many. Without its server nothing changes."""
    marked = 0
    with contextlib.suppress(Exception):
        dead = [path for path in sorted(_folder(workspace).glob("[!.]*")) if _is_dead(path)]
        if not dead:
            return 0
        with get_client(sync_client=True, httpx_settings={"timeout": 5.0}) as client:
            for path in dead:
                marked += _mark(client, UUID(path.name))
                path.unlink(missing_ok=True)
    return marked


def _is_dead(path: Path) -> bool:
    """Return whether the process of a run on the current server has ended."""
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return file.read() == server_name()


def _mark(client: Any, run: UUID) -> bool:
    try:
        state = client.read_flow_run(run).state
    except ObjectNotFound:
        return False
    if state is not None and state.is_final():
        return False
    client.set_flow_run_state(run, Crashed(message=f"{_MESSAGE} (found by process {os.getpid()})"), force=True)
    return True
