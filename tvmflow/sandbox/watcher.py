"""Watch the processes of a sandbox from outside of it: end them all with the first, with the parent, or above a limit.

Runs as the parent of the sandboxed process, reads no untrusted data, and adopts whatever leaves its own parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from tvmflow.sandbox import syscalls

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_TICK_S = 0.25
SIGNALLED = 128  # added to the number of the signal that ended a process, in exit codes


def start_watched(tell: Callable[[dict[str, Any]], None], policy: dict[str, Any], parent: int) -> None:
    """Return in a new process; this one watches it, and all that it starts, and ends with its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    syscalls.signal_when_parent_dies(parent, signal.SIGTERM)
    syscalls.adopt_descendants()
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # of here, where all can be seen
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(0)
        os.close(reader)
        tell({"group": child})
        os.write(writer, b"g")
        _watch(child, processes, policy["memory_bytes"], tell)
    os.close(writer)
    os.close(processes)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.setpgid(0, 0)
    syscalls.signal_when_parent_dies(None, signal.SIGKILL)
    if os.read(reader, 1) != b"g":
        os._exit(1)
    os.close(reader)


def run_below_init() -> None:
    """Return in a new process; this one, the first of its namespace, waits for it and ends with its exit code."""
    child = os.fork()
    if not child:
        syscalls.signal_when_parent_dies(None, signal.SIGKILL)
        return
    os.close(0)
    while True:
        ended, status = os.wait()
        if ended == child:
            os._exit(_exit_code(status))


def _exit_code(status: int) -> int:
    return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _watch(child: int, processes: int, memory_bytes: int, tell: Callable[[dict[str, Any]], None]) -> NoReturn:
    code = 1
    try:
        while True:
            arrived = signal.sigtimedwait(_SIGNALS, _TICK_S)
            if arrived is not None and arrived.si_signo == signal.SIGTERM:
                break
            if (status := _status_of(child)) is not None:
                code = _exit_code(status)
                break
            below = _descendants(processes, os.getpid())
            if (used := sum(_memory_of(processes, pid) for pid in below)) > memory_bytes:
                tell({"broke": f"MemoryError: {used >> 20} MiB in {len(below)} processes", "at": "the sandbox"})
                break
    finally:
        _end_all(processes)
        os._exit(code)


def _status_of(child: int) -> int | None:
    """Return the status of the child if it ended; reap everything else that did."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                return ended[1]
    return None


def _end_all(processes: int) -> None:
    """Kill all descendants; those whose parents ended became children of this process."""
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _descendants(processes, os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _descendants(processes: int, pid: int) -> list[int]:
    found = [int(word) for word in _children_of(processes, pid)]
    return [*found, *(below for one in found for below in _descendants(processes, one))]


def _children_of(processes: int, pid: int) -> list[str]:
    """Return the children of all threads of a process, as the kernel lists them."""
    words: list[str] = []
    with contextlib.suppress(OSError):
        threads = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=processes)
        try:
            for thread in os.listdir(threads):
                words += _read(threads, f"{thread}/children").split()
        finally:
            os.close(threads)
    return words


def _memory_of(processes: int, pid: int) -> int:
    """Return the bytes of a process that files on disk do not back, shared ones included."""
    lines = (line.split() for line in _read(processes, f"{pid}/status").splitlines())
    return sum(int(words[1]) << 10 for words in lines if words and words[0] in ("RssAnon:", "RssShmem:", "VmSwap:"))


def _read(folder: int, name: str) -> str:
    try:
        file = os.open(name, os.O_RDONLY, dir_fd=folder)
    except OSError:
        return ""
    try:
        return os.read(file, 1 << 16).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(file)
