"""The processes of stages. A server, `python -m tasks.server`, has TVM imported and forks one for each stage: importing
TVM takes longer than most stages do.

It ends with the process that started it; a server that died is replaced when the next stage begins.
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
from tvmflow.support.paths import CODE_ROOT


class StageProcess:
    """The process of a stage, which leads a process group. events: the end of the pipe on which it tells what
    happens.
    """

    def __init__(self, pid: int, events: int, end: IO[bytes]) -> None:
        self.pid = pid
        self.events = events
        self._end = end

    def wait(self) -> int:
        """Return its exit code, negative for a signal, when it has ended; SIGKILL's where its server died before."""
        with self._end:
            return int(self._end.readline().partition(b" ")[2] or -signal.SIGKILL)

    def kill(self) -> None:
        """Kill it and all that it started, if anything of that still runs."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class StageServer:
    """A server that forks the processes of stages."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tasks.server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
            )
        self._starting = threading.Lock()

    def start(self, request: bytes, output: IO[bytes]) -> StageProcess | None:
        """Return the process of a stage; None where the server has died. request: a line of JSON; output: for what the
        process prints.
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
        """Let it end when no stage of it runs any more."""
        self._socket.close()
        threading.Thread(target=self.process.wait, daemon=True).start()  # so that no zombie is left


_lock = threading.Lock()
_server: StageServer | None = None


@contextlib.contextmanager
def stage_server() -> Iterator[None]:
    """Within, one server forks the processes of all stages."""
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
    """Start `python -m tasks ARGUMENTS` and return its process. Raises StageCrashedError where none can be started.

    known: digests of files, as Digests.to_json has them. output: the open file for what the process prints. prepare:
    whether the server may import meanwhile what the stage after this one needs.
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
            server.close()  # it was for this stage alone, or another has taken its place
        if process is not None:
            return process
    raise StageCrashedError(
        f"the server of stages did not start {' '.join(arguments[:2])}: {_how_it_goes(server.process)}",
        "a process for the stage",
        "run 'tvmflow doctor', and look at the system's log for processes that were killed for want of memory",
    )


def _how_it_goes(server: subprocess.Popen[bytes]) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return how_it_ended(server.wait(timeout=1.0))
    return "it runs, and does not respond"


def how_it_ended(code: int) -> str:
    """Return what an exit code, as subprocess has it, says."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
