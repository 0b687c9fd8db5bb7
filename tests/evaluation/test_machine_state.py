"""Test the machine state sampled during measurements: the C programs that sample it, users of its processors, the
report of a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tvmflow.devices.session import STATE, Array, Arrays, RemoteModel, decode_state
from tvmflow.evaluation.machine_load import process_tree, read_cpu
from tvmflow.evaluation.machine_state import DeviceWatch, Probe, TurnState
from tvmflow.support.errors import DeviceLostError
from tvmflow.support.paths import RUNTIME

CPUS = sorted(os.sched_getaffinity(0))
NO_CPU = 4000
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measure") / "measure.so"
    sources = [str(source) for source in sorted((RUNTIME / "measure").glob("*.c"))]
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    subprocess.run(["gcc", *options, *sources, "-o", str(path)], check=True)
    return path


@contextlib.contextmanager
def busy(cpus: Sequence[int]) -> Iterator[list[int]]:
    """Keep CPUs busy; gives the ids of the processes that do."""
    spinning = [
        subprocess.Popen([sys.executable, "-S", "-c", SPIN, str(cpu)], stdout=subprocess.PIPE, bufsize=0)
        for cpu in cpus
    ]
    try:
        for process in spinning:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
        yield [process.pid for process in spinning]
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


# -- the look at the processor --


def looked_at(library: Path, cpus: Sequence[int]) -> tuple[int, list[float], list[float]]:
    count = len(cpus)
    loops, round_trips = (ctypes.c_double * count)(), (ctypes.c_double * count)()
    measured = ctypes.CDLL(str(library)).machine_state((ctypes.c_int * count)(*cpus), count, 20_000, loops, round_trips)
    return measured, list(loops), list(round_trips)


def test_a_cpu_that_is_not_there_is_unknown(library: Path) -> None:
    measured, loops, round_trips = looked_at(library, [CPUS[0], NO_CPU])
    assert measured == 1 and loops[0] > 0 and loops[1] == -1 and round_trips == [0, -1]
    measured, loops, round_trips = looked_at(library, [NO_CPU, -1])
    assert measured == 0 and loops == [-1, -1] and round_trips == [-1, -1]
    assert Probe(ctypes.CDLL(str(library))).probe_cpus([NO_CPU]) == (None, None)
    assert os.sched_getaffinity(0) == set(CPUS), "the threads that look have CPUs of their own"


@needs_two_cpus
def test_cpus_that_others_keep_busy_are_looked_at_within_the_limit(library: Path) -> None:
    with busy(CPUS[:2]):
        begin = time.monotonic()
        looked = [looked_at(library, CPUS[:2]) for _ in range(5)]
        took_s = (time.monotonic() - begin) / 5
    assert took_s < 0.5, "20 ms, and what the system lets a thread wait before it runs"
    assert all(loops[0] > 0 and loops[1] > 0 for _, loops, _ in looked)
    assert all(0 < round_trips[1] < 1e7 or round_trips[1] == -1 for _, _, round_trips in looked)


# -- the state of a process --

TELL = """
import ctypes, json, os, sys, time
def state(threads, look):
    found = (ctypes.c_double * 9)()
    library.read_process_state(threads, look, found)
    return list(found)
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2]: os.sched_setaffinity(0, {int(sys.argv[2])})
before = state(1, 0)
end = time.monotonic() + 0.4
while time.monotonic() < end: pass
print(json.dumps([before, state(1, 0), state(1, 1), state(2, 1)]))
"""


def told(library: Path, cpu: int | None = None) -> list[dict[str, float]]:
    """Return what a process tells: before and after it computed for 0.4 s, after a look for one thread, and for two."""
    command = [sys.executable, "-S", "-c", TELL, str(library), "" if cpu is None else str(cpu)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [dict(zip(STATE, numbers, strict=True)) for numbers in json.loads(done.stdout)]


def test_the_numbers_are_those_of_the_header() -> None:
    header = (RUNTIME / "measure" / "process_state.h").read_text()
    assert [line.split()[1].rstrip(";") for line in header.splitlines() if line.startswith("  double ")] == list(STATE)


def test_counters_of_a_process_grow_and_look_costs_none(library: Path) -> None:
    before, after, one, two = told(library)
    assert 0.4 <= after["wall_s"] - before["wall_s"] < 10
    assert 0.05 < after["own_s"] - before["own_s"] < 0.6
    assert after["busy_s"] > before["busy_s"] > 0 and after["processors"] == os.cpu_count()
    assert after["waited_s"] >= before["waited_s"] >= 0 and after["switches"] >= before["switches"] >= 0
    assert {after[name] for name in ("khz", "loop_ns", "round_trip_ns")} == {-1}, "nobody looked"
    assert 0 < one["loop_ns"] < 1e7 and two["loop_ns"] > 0
    has_clock = Path(f"/sys/devices/system/cpu/cpu{CPUS[0]}/cpufreq/scaling_cur_freq").exists()
    assert (two["khz"] > 0) == has_clock
    if len(CPUS) > 1:
        assert one["round_trip_ns"] == -1, "one thread computes on one CPU"
    if len(CPUS) == 2:
        assert two["round_trip_ns"] > 0


def test_a_process_beside_a_busy_one_waits(library: Path) -> None:
    with busy([CPUS[0]]):
        before, after, _, two = told(library, CPUS[0])
    assert after["waited_s"] - before["waited_s"] > 0.05 and after["switches"] > before["switches"]
    assert after["own_s"] - before["own_s"] < 0.38, "it had a part of the processor"
    assert two["round_trip_ns"] == -1, "it may use one CPU only"


# -- who uses the processors --


def test_children_and_their_threads_are_found() -> None:
    with busy([CPUS[0]]) as [child]:
        assert {os.getpid(), child} <= process_tree(os.getpid())
        before = read_cpu(with_threads=True)
        time.sleep(0.3)
        after = read_cpu(with_threads=True)
    assert not read_cpu().threads, "they are read where they are asked for"
    assert child not in process_tree(os.getpid()), "it has ended"
    first, last = before.threads[child], after.threads[child]
    assert last.used_s > first.used_s and last.cpu == CPUS[0]
    assert last.waited_s >= first.waited_s and last.switches >= first.switches
    assert after.used_since(before, {child}) > 0 and os.getpid() in after.threads


# -- what a device tells --


class Telling(RemoteModel):
    """A device that tells these states, one after the other."""

    def __init__(self, *states: dict[str, float] | None) -> None:
        self.states = list(states)
        self.looks: list[bool] = []

    def state(self, threads: int, look: bool) -> dict[str, float] | None:
        self.looks.append(look)
        return self.states.pop(0)

    def set_inputs(self, *inputs: Array) -> None: ...

    def invoke(self) -> None: ...

    def outputs(self) -> Arrays:
        return (np.zeros(1),)

    def time_runs(self, repeat: int) -> list[float]:
        return [1.0] * repeat


def watched(model: RemoteModel, turns: int = 1) -> TurnState:
    """Return the state of the last turn."""
    watch = DeviceWatch(model, 2)
    for _ in range(turns):
        watch.begin()
        state = watch.end(None)
    return state


def test_the_state_of_a_turn_is_what_counters_grew_by() -> None:
    before = decode_state([100.0, 5.0, 2.0, 7.0, 50.0, 4.0, -1.0, -1.0, -1.0])
    after = decode_state([102.0, 8.0, 2.4, 9.0, 55.0, 4.0, 1.8e6, 9000.0, 80.0]) | {"celsius": 41.5}
    model = Telling(before, after, before, {**after, "round_trip_ns": 320.0})
    watch = DeviceWatch(model, 2)
    watch.begin()
    near = watch.end(None)
    assert (near.waited, near.foreign, near.own_s) == pytest.approx((0.4 / 4, (5 - 3) / 8, 3.0))
    assert near == TurnState(80.0, None, 9000.0, near.waited, 2, near.foreign, 3.0, 1.8e6, 41.5)
    watch.begin()
    assert (moved := watch.end(None)).has_changed and (moved.was_ns, moved.round_trip_ns) == (80.0, 320.0)
    assert model.looks == [False, True, False, True]


def test_what_a_device_does_not_tell_is_unknown() -> None:
    assert watched(Telling(None, None)) == TurnState() and watched(Telling({}, {"wall_s": 1.0})) == TurnState()
    assert decode_state([float("nan"), -1, 0, 1, float("inf"), -1, -1, -1, -1]) == {"waited_s": 0, "switches": 1}
    android = decode_state([1.0, 1.0, -1.0, 0.0, -1.0, -1.0, -1.0, -1.0, -1.0])
    assert watched(Telling(android, {**android, "wall_s": 2.0})) == TurnState(switches=0, own_s=0.0)
    anew = {**android, "own_s": 0.5}
    assert watched(Telling(android, anew)).own_s is None, "another process than before"


def test_a_device_that_is_gone_is_lost() -> None:
    class Gone(Telling):
        def state(self, threads: int, look: bool) -> dict[str, float] | None:
            raise DeviceLostError("device 'x' failed", "a device")

    with pytest.raises(DeviceLostError):
        watched(Gone())
