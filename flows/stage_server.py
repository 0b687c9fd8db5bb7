"""Fork stage processes from a server with TVM imported, `python -m tasks.server`.

Importing TVM takes longer than most stages. The server ends with its parent; one that died is replaced at the next
stage.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from tvmflow.support.errors import StageCrashedError
from tvmflow.support.own_packages import own_module
from tvmflow.support.paths import CODE_ROOT


class StageProcess:
    """The process of a stage, the leader of a process group. events: the read end of its event pipe."""

    def __init__(self, pid: int, events: int, end: IO[bytes]) -> None:
        self.pid = pid
        self.events = events
        self._end = end

    def wait(self) -> int:
        """Return its exit code when it has ended, negative for a signal; SIGKILL's if its server died before."""
        with self._end:
            return int(self._end.readline().partition(b" ")[2] or -signal.SIGKILL)

    def kill(self) -> None:
        """Kill its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class StageServer:
    """A server that forks the processes of stages."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", own_module("tasks.server"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
            )
        self._starting = threading.Lock()

    def start(self, request: bytes, output: IO[bytes]) -> StageProcess | None:
        """Return the process of a stage; None if the server has died. request: a line of JSON; output: the process's
        standard output.
        """
        events, writes_events = os.pipe()
        end, writes_end = os.pipe()
        words = os.fdopen(end, "rb")
        with self._starting:
            try:
                socket.send_fds(self._socket, [request[:1]], [writes_events, writes_end, output.fileno()])
                self._socket.sendall(request[1:])
            except OSError:
                pass
            finally:
                os.close(writes_events)
                os.close(writes_end)
            what, _, number = words.readline().partition(b" ")
        if what == b"pid":
            return StageProcess(int(number), events, words)
        os.close(events)
        words.close()
        return None

    def close(self) -> None:
        """Let the server end when none of its stages is running."""
        self._socket.close()
        threading.Thread(target=self.process.wait, daemon=True).start()  # so that no zombie is left


_lock = threading.Lock()
_server: StageServer | None = None


@contextlib.contextmanager
def stage_server() -> Iterator[None]:
    """Use one server for all stages within a context."""
    global _server
    with _lock:
        _server = StageServer()
    try:
        yield
    finally:
        with _lock:
            server, _server = _server, None
        if server is not None:
            server.close()


def start_stage(arguments: list[str], known: list[list[Any]], output: IO[bytes], prepare: bool = False) -> StageProcess:
    """Start `python -m tasks ARGUMENTS` and return its process. Raises StageCrashedError if it cannot be started.

    known: digests of files, as in Digests.to_json. output: the file for the process's output. prepare: let the server
    import the next stage's modules meanwhile.
    """
    global _server
    request = json.dumps({"arguments": arguments, "known": known, "prepare": prepare}).encode() + b"\n"
    for _attempt in range(2):
        with _lock:
            if _server is not None and _server.process.poll() is not None:
                _server = StageServer()
            server = _server or StageServer()
        process = server.start(request, output)
        if server is not _server:
            server.close()  # it was for this stage only, or was replaced
        if process is not None:
            return process
    raise StageCrashedError(
        f"the stage server did not start {' '.join(arguments[:2])}: {_server_state(server.process)}",
        "a process for the stage",
        "run 'tvmflow doctor', and check the system log for processes killed for lack of memory",
    )


def _server_state(server: subprocess.Popen[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return describe_exit(server.wait(timeout=1.0))
    return "it runs, and does not respond"


def describe_exit(code: int) -> str:
    """Return the meaning of a subprocess exit code."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
