"""Observe the machine during a measurement: distance of the cores, clock, and waiting threads.

Each turn of a measurement lies between two observations. They give the state of the turn, which decides with which
other turns it is compared (`number_states`), and whether it was disturbed (`disturbance`).
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tvmflow.evaluation.machine_load import CpuReading, foreign_share, process_tree, read_cpu
from tvmflow.support.paths import RUNTIME
from tvmflow.support.temporary import temporary_folder

SOURCE = RUNTIME / "measure" / "machine_state.c"
_COMPILE = ("-x", "c", "-std=c11", "-O2", "-fPIC", "-shared", "-pthread")
_LIMIT_US = 20_000  # limit of probing one CPU, if others keep it busy
_MOST_CPUS = 64
_COMPUTES = 0.2  # share of a turn: a thread that uses less of a CPU does not compute
# Least ratio of round trips of two states: within a state it is below 1.3, between two states above 2.
APART = 1.5
_FEWEST_TURNS = 3  # fewer turns are a transition between two states
# Share of a turn that a computing thread waited for a CPU. A small share counts only if it affected many of the runs,
# since otherwise it does not change their median.
_WAITED, _WAITED_MUCH, _RUNS_HIT = 0.02, 0.2, 0.05
_SLOWER = 1.06  # times the usual time of the loop


@dataclass(frozen=True)
class TurnState:
    """The machine during one turn; None: unknown.

    round_trip_ns: of a cache line between the computing cores; was_ns: the same before the turn. loop_ns: of a
    calibration loop on the slowest of these cores, before and after the turn. waited: largest share of the turn in
    which a computing thread waited for a CPU; switches: involuntary context switches of these threads. foreign: share
    of all processors used by others; own_s: CPU seconds of the model's processes. khz: lowest clock, celsius: highest
    temperature, if reported.
    """

    round_trip_ns: float | None = None
    was_ns: float | None = None
    loop_ns: float | None = None
    waited: float | None = None
    switches: int | None = None
    foreign: float | None = None
    own_s: float | None = None
    khz: float | None = None
    celsius: float | None = None

    @property
    def has_changed(self) -> bool:
        """Return whether the threads moved to other cores during the turn."""
        return (
            self.round_trip_ns is not None and self.was_ns is not None and not _is_same(self.round_trip_ns, self.was_ns)
        )


class Watch(Protocol):
    """Observes the machine around each turn."""

    def begin(self) -> None:
        """Observe the machine before a turn."""

    def end(self, group: int | None) -> TurnState:
        """Return the state of the turn since `begin`. group: the leader of the model's process group, None for all of
        our processes.
        """


def number_states(round_trips_ns: Sequence[float | None]) -> list[int | None]:
    """Return the state number of each turn, 0 for the nearest cores; None for a turn between two states.

    States are clusters of round trips. Without known round trips, all turns have state 0.
    """
    known = sorted(number for number in round_trips_ns if number is not None)
    if not known:
        return [0] * len(round_trips_ns)
    groups = [[known[0]]]
    for number in known[1:]:
        if number / groups[-1][-1] > APART:
            groups.append([])
        groups[-1].append(number)
    large = [group for group in groups if len(group) >= _FEWEST_TURNS] or groups
    bounds = [(group[0], group[-1]) for group in large]

    def state_of(number: float | None) -> int | None:
        return next((at for at, (low, high) in enumerate(bounds) if number is not None and low <= number <= high), None)

    return [state_of(number) for number in round_trips_ns]


def is_same_state(a_ns: float | None, b_ns: float | None) -> bool:
    """Return whether two measurements were in one machine state, by their round trips; None matches any."""
    return a_ns is None or b_ns is None or _is_same(a_ns, b_ns)


def _is_same(a_ns: float, b_ns: float) -> bool:
    return max(a_ns, b_ns) <= APART * min(a_ns, b_ns)


def disturbance(state: TurnState, usual_loop_ns: float | None, runs: int = 1) -> str | None:
    """Return what disturbed a turn of this many runs: `waited`, `moved` or `slowed`; None if nothing was detected.

    usual_loop_ns: time of the loop at the highest clock.
    """
    if state.waited is not None and state.waited > _WAITED:
        hit = runs if state.switches is None else state.switches
        if state.waited > _WAITED_MUCH or hit > _RUNS_HIT * runs:
            return "waited"
    if state.has_changed:
        return "moved"
    if state.loop_ns is not None and usual_loop_ns is not None and state.loop_ns > _SLOWER * usual_loop_ns:
        return "slowed"
    return None


def usual_loop_ns(states: Sequence[TurnState]) -> float | None:
    """Return the time of the loop at the highest clock on an idle core: the fastest tenth of the observations."""
    loops = sorted(state.loop_ns for state in states if state.loop_ns is not None)
    return loops[len(loops) // 10] if loops else None


@dataclass(frozen=True)
class Probe:
    """The compiled runtime/measure/machine_state.c."""

    library: ctypes.CDLL

    def probe_cpus(self, cpus: Sequence[int]) -> tuple[float | None, float | None]:
        """Return the slowest loop and the longest round trip between the first of these CPUs and the others, in
        nanoseconds.
        """
        count = min(len(cpus), _MOST_CPUS)
        numbers, loops, trips = (
            (ctypes.c_int * count)(*cpus[:count]),
            (ctypes.c_double * count)(),
            (ctypes.c_double * count)(),
        )
        self.library.machine_state(numbers, count, _LIMIT_US, loops, trips)
        known_loops, known_trips = [one for one in loops if one > 0], [one for one in trips[1:] if one > 0]
        return max(known_loops, default=None), max(known_trips, default=None)


@functools.cache
def host_probe() -> Probe | None:
    """Return the probe of this machine's CPU; None without a C compiler."""
    with temporary_folder("probe") as folder:
        path = Path(folder) / "machine_state.so"
        for compiler in ("cc", "gcc", "clang", "g++"):
            try:
                subprocess.run(
                    [compiler, *_COMPILE, "-o", str(path), str(SOURCE)], capture_output=True, timeout=60, check=True
                )
                return Probe(ctypes.CDLL(str(path)))
            except (OSError, subprocess.SubprocessError):
                continue
    return None


class HostWatch:
    """Observes this machine, for models that compute on `threads` threads in child processes."""

    def __init__(self, threads: int, read: Callable[[], CpuReading] | None = None, probe: Probe | None = None) -> None:
        self.threads = threads
        self._read = read or functools.partial(read_cpu, with_threads=True)
        self._probe = probe
        self._before: CpuReading | None = None
        # CPUs with their loop and round trip after the previous turn
        self._last: tuple[tuple[int, ...], float | None, float | None] = ((), None, None)

    def begin(self) -> None:
        self._before = self._read()

    def end(self, group: int | None) -> TurnState:
        before, after = self._before, self._read()
        assert before is not None
        wall_s = after.wall_s - before.wall_s
        computing = _computing(before, after, self.threads)
        own_s = None if group is None else after.used_since(before, process_tree(group))
        cpus = self._cpus(after, computing)
        loop_ns, round_trip_ns = self._probe.probe_cpus(cpus) if self._probe and cpus else (None, None)
        loop_before_ns, was_ns = self._last[1:] if self._last[0] == cpus else (None, None)
        self._last = (cpus, loop_ns, round_trip_ns)
        return TurnState(
            round_trip_ns,
            was_ns,
            _slower(loop_before_ns, loop_ns),
            _waiting_share(before, after, computing, wall_s),
            _switches(before, after, computing),
            foreign_share(before, after),
            own_s,
            _clock_khz(cpus),
            None,
        )

    def _cpus(self, after: CpuReading, computing: Sequence[int]) -> tuple[int, ...]:
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) <= self.threads:
            return tuple(allowed)
        return tuple(sorted({after.threads[thread].cpu for thread in computing}))


class ReportsState(Protocol):
    """Reports the state of a process on a device, as RemoteModel does."""

    def state(self, threads: int, look: bool) -> dict[str, float] | None: ...


class DeviceWatch:
    """Observes a device through the process in which a network computes on `threads` threads.

    A device that does not report its state gives unknown states. Raises DeviceLostError for a lost device.
    """

    def __init__(self, model: ReportsState, threads: int) -> None:
        self.model, self.threads = model, threads
        self._before: Mapping[str, float] = {}
        self._last: tuple[float | None, float | None] = (None, None)  # loop and round trip after the previous turn

    def begin(self) -> None:
        self._before = self.model.state(self.threads, look=False) or {}

    def end(self, group: int | None) -> TurnState:
        before, after = self._before, self.model.state(self.threads, look=True) or {}
        wall_s, waited_s, switches = (_since(before, after, name) for name in ("wall_s", "waited_s", "switches"))
        (loop_before_ns, was_ns), self._last = self._last, (after.get("loop_ns"), after.get("round_trip_ns"))
        return TurnState(
            self._last[1],
            was_ns,
            _slower(loop_before_ns, self._last[0]),
            waited_s / (self.threads * wall_s) if waited_s is not None and wall_s else None,
            None if switches is None else round(switches),
            _foreign_share(before, after),
            _since(before, after, "own_s"),
            after.get("khz"),
            after.get("celsius"),
        )


def _slower(a_ns: float | None, b_ns: float | None) -> float | None:
    return max((one for one in (a_ns, b_ns) if one is not None), default=None)


def _since(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float | None:
    """Return the increase of a counter; None if it is not reported or was reset."""
    grown = after[name] - before[name] if name in before and name in after else -1.0
    return grown if grown >= 0 else None


def _foreign_share(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    if not {"wall_s", "busy_s", "own_s", "processors"} <= before.keys() & after.keys():
        return None
    first, last = (CpuReading(report["wall_s"], report["busy_s"], {0: report["own_s"]}) for report in (before, after))
    return foreign_share(first, last, round(after["processors"]))


def _computing(before: CpuReading, after: CpuReading, threads: int) -> list[int]:
    """Return the threads that computed between two readings, at most `threads`, the busiest first."""
    wall_s = after.wall_s - before.wall_s
    used = {
        thread: now.used_s - before.threads[thread].used_s
        for thread, now in after.threads.items()
        if thread in before.threads
    }
    busy = [thread for thread, seconds in used.items() if seconds > _COMPUTES * wall_s]
    return sorted(busy, key=lambda thread: -used[thread])[:threads]


def _waiting_share(before: CpuReading, after: CpuReading, computing: Sequence[int], wall_s: float) -> float | None:
    waits = [after.threads[thread].waited_s - before.threads[thread].waited_s for thread in computing]
    return max(waits) / wall_s if waits and wall_s > 0 else None


def _switches(before: CpuReading, after: CpuReading, computing: Sequence[int]) -> int | None:
    return sum(after.threads[one].switches - before.threads[one].switches for one in computing) if computing else None


def _clock_khz(cpus: Sequence[int]) -> float | None:
    """Return the lowest clock of some CPUs, if the system reports it."""
    found = []
    for cpu in cpus:
        try:
            text = Path(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq").read_text(encoding="ascii")
            found.append(float(text))
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def host_watch(threads: int) -> HostWatch:
    """Return a watch of this machine, with a probe if one can be compiled."""
    return HostWatch(threads, probe=host_probe())


def drop_round_trips(state: TurnState) -> TurnState:
    """Return the state without round trips, for one thread, to which the distance of the cores does not matter."""
    return replace(state, round_trip_ns=None, was_ns=None)
