"""Read the CPU use of the machine, our processes and their threads from /proc."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (
    3,
    4,
)  # idle and iowait in /proc/stat; the fields after the eighth are included in the first two
_COUNTED = 8
_LOOK_S = 1.0
_PART = 1 << 16  # bytes that are read at once from a file of /proc
_USER, _SYSTEM, _LAST_CPU = 11, 12, 36  # fields of /proc/PID/stat after the name


@dataclass(frozen=True)
class ThreadReading:
    """used_s: CPU seconds; waited_s: run-queue seconds; switches: involuntary context switches; cpu: the last CPU."""

    used_s: float
    waited_s: float
    switches: int
    cpu: int


@dataclass(frozen=True)
class CpuReading:
    """wall_s: monotonic clock; busy_s: CPU seconds of the whole machine; own_s: those of our processes by id.

    threads: of our processes by id, if requested.
    """

    wall_s: float
    busy_s: float
    own_s: Mapping[int, float] = field(default_factory=dict)
    threads: Mapping[int, ThreadReading] = field(default_factory=dict)

    def used_since(self, before: CpuReading, processes: set[int] | None = None) -> float:
        """Return the CPU seconds of our processes (or some of them) since an earlier reading."""
        return sum(
            max(0.0, now - before.own_s.get(process, 0.0))
            for process, now in self.own_s.items()
            if processes is None or process in processes
        )


def read_cpu(with_threads: bool = False) -> CpuReading:
    """Read the CPU times of the machine, of this process and of its descendants."""
    own: dict[int, float] = {}
    threads: dict[int, ThreadReading] = {}
    for process in process_tree(os.getpid()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            numbers = _stat(f"/proc/{process}/stat")
            own[process] = (int(numbers[_USER]) + int(numbers[_SYSTEM])) / _TICKS
            if with_threads:
                threads.update(_threads(process))
    return CpuReading(time.monotonic(), _busy_s(), own, threads)


def process_tree(pid: int) -> set[int]:
    """Return the ids of a process and its descendants."""
    found = {pid}
    todo = [pid]
    while todo:
        below = set(_children(todo.pop())) - found
        found |= below
        todo += below
    return found


def foreign_share(before: CpuReading, after: CpuReading, processors: int | None = None) -> float | None:
    """Return the share (0 to 1) of all processors that other processes used; None if unknown.

    Detects a kernel that hides the machine's times by a total below our own use.
    """
    wall, busy, own = after.wall_s - before.wall_s, after.busy_s - before.busy_s, after.used_since(before)
    if wall <= 0 or busy < 0.5 * own:
        return None
    return min(1.0, max(0.0, busy - own) / (wall * (processors or os.cpu_count() or 1)))


def _busy_s() -> float:
    """Return the busy CPU seconds of the machine, including time stolen by other virtual machines."""
    with contextlib.suppress(OSError, ValueError), Path("/proc/stat").open("rb") as file:
        numbers = [int(word) for word in file.readline().split()[1 : _COUNTED + 1]]
        return sum(number for at, number in enumerate(numbers) if at not in _IDLE) / _TICKS
    return 0.0


def _children(pid: int) -> Iterator[int]:
    """Yield the running child processes of a process."""
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError):
                yield from map(int, _read(f"/proc/{pid}/task/{thread}/children").split())


def _stat(path: str) -> list[bytes]:
    """Return the fields of a stat file after the name, which may contain any characters."""
    return _read(path).rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    """Return the contents of a file of /proc with few system calls, since reading takes time from what is measured."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, _PART):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _threads(pid: int) -> Iterable[tuple[int, ThreadReading]]:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = f"/proc/{pid}/task/{thread}"
            used, waited = (int(word) / 1e9 for word in _read(f"{folder}/schedstat").split()[:2])
            status = _read(f"{folder}/status").rpartition(b"nonvoluntary_ctxt_switches:")[2]
            switches = int(status.split()[0])
            yield int(thread), ThreadReading(used, waited, switches, int(_stat(f"{folder}/stat")[_LAST_CPU]))


def wait_until_quiet(
    limit_s: float,
    max_foreign_load: float,
    report: Callable[[float | None], None] = lambda _: None,
    read: Callable[[], CpuReading] = read_cpu,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until others use at most a share of this machine's processors, up to a limit; return whether they do.

    report: called with the share every second, None if unknown.
    """
    first = before = read()
    while True:
        sleep(_LOOK_S)
        now = read()
        share = foreign_share(before, now)
        if share is not None and share <= max_foreign_load:
            return True
        if now.wall_s - first.wall_s >= limit_s:
            return False
        report(share)
        before = now
