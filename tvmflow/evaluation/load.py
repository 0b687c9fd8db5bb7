"""How much of this machine's processor time others took while something was measured. Knows nothing of what is measured."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")  # steal: other machines on the same processor


@dataclass(frozen=True)
class CpuReading:
    """wall_s: a monotonic clock; busy_s: processor seconds of everything on this machine; own_s: those of our processes by id."""

    wall_s: float
    busy_s: float
    own_s: Mapping[int, float] = field(default_factory=dict)

    def used_since(self, before: CpuReading, processes: set[int] | None = None) -> float:
        """Return the processor seconds of our processes (or some of them) since an earlier reading."""
        return sum(
            max(0.0, now - before.own_s.get(process, 0.0))
            for process, now in self.own_s.items()
            if processes is None or process in processes
        )


def read_cpu() -> CpuReading:
    """Read the clocks of this machine, of this process and of all that it started."""
    times = psutil.cpu_times()
    busy = sum(getattr(times, name, 0.0) for name in _BUSY)
    own = {process.pid: seconds for process in _tree(os.getpid()) if (seconds := _seconds(process)) is not None}
    return CpuReading(time.monotonic(), busy, own)


def process_tree(pid: int) -> set[int]:
    """Return the ids of a process and of all below it."""
    return {process.pid for process in _tree(pid)}


def foreign_share(before: CpuReading, after: CpuReading, processors: int | None = None) -> float | None:
    """Return the share of all processors' time that processes other than ours took, 0 to 1; None where it cannot be seen.

    A kernel that hides the machine's times from us counts less than what we used ourselves.
    """
    wall, busy, own = after.wall_s - before.wall_s, after.busy_s - before.busy_s, after.used_since(before)
    if wall <= 0 or busy < 0.5 * own:
        return None
    return min(1.0, max(0.0, busy - own) / (wall * (processors or os.cpu_count() or 1)))


def _tree(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _seconds(process: psutil.Process) -> float | None:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return None
