"""Test the device pool with simulated devices that die, hang, slow down and return wrong values."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search_rules import QUICK_RULES, changed
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.errors import DeviceError, DeviceHotError, DeviceLostError, StageError
from tvmflow.tuning.measure.device_pool import DevicePool
from tvmflow.tuning.measure.jobs import Job, Measured
from tvmflow.tuning.records.record import COMPILE_ERROR, KERNEL_TIMEOUT, OK, WRONG_OUTPUT
from tvmflow.tuning.rules import SearchRules

RULES = changed(
    QUICK_RULES,
    on_this_host=False,
    devices=3,
    kernel_timeout_s=0.8,
    max_drift=0.2,
    give_up_s=2.0,
    measure_repeats=2,
    measure_min_ms=1.0,
)
CANARY, WORK = Workload("canary", "canary", 1, None), Workload("work", "work", 1, None)


class Kernel:
    """What a library file says: seconds, output, and what it does to its device."""

    def __init__(self, world: World, file: Path, unwritten: Any) -> None:
        self.world, self.says, self.unwritten = world, json.loads(file.read_text()), unwritten

    def output(self) -> Any:
        if self.says.get("hangs") or (self.world.canary_hangs and self.says.get("canary")):
            time.sleep(3)
            raise DeviceLostError("closed")
        if self.says.get("refused") or (self.world.refuses_all and self.world.loads > 3):
            raise StageError("the library cannot be used: CL_OUT_OF_RESOURCES")
        if self.says.get("kills"):
            raise DeviceLostError("connection reset")
        found = np.array(self.unwritten)
        if not self.says.get("forgets"):
            found[...] = self.says.get("output", 1.0)
        return found

    def time(self, repeat: int, _min_repeat_ms: float) -> list[float]:
        return [self.says["seconds"] * self.world.clock] * repeat


class Session:
    name = "fake"

    def __init__(self, world: World) -> None:
        self.world = world
        self.unit, self.build = f"unit-{world.sessions}", "fake 1"
        self.loads = 0

    def rest(self) -> None:
        if self.world.hot:
            self.world.hot -= 1
            raise DeviceHotError("81 degrees")

    def bench(self, arrays: Any) -> Any:
        return Bench(self, arrays)


class Bench:
    def __init__(self, session: Session, arrays: Any) -> None:
        self.session, self.arrays = session, arrays

    def load(self, file: Path) -> Kernel:
        world = self.session.world
        with world.lock:
            world.loads += 1
            self.session.loads += 1
            if world.loads in world.dies_at:
                raise DeviceLostError("connection reset by peer")
            if world.loads == world.bug_at:
                raise ZeroDivisionError
            if world.restless and file.name == "canary":
                world.clock *= 2.0
            if world.loads == world.slows_at:
                world.clock = 2.0
        return Kernel(world, file, self.arrays[-1])


class World:
    """dies_at: counted loads at which a device goes away; slows_at: the load from which all is twice as slow."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.loads = self.sessions = 0
        self.dies_at: set[int] = set()
        self.slows_at = -1
        self.clock = 1.0
        self.hot = 0
        self.gone_after = 10**9
        self.bug_at = -1
        self.restless = self.canary_hangs = self.refuses_all = False

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        with self.lock:
            self.sessions += 1
            if self.sessions > self.gone_after:
                raise DeviceLostError("no device responds")
        yield Session(self)

    def library(self, name: str, **says: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps({"seconds": 0.001, **says}))
        return path

    def measure(
        self, libraries: list[Path], rules: SearchRules = RULES, in_turns: bool = False
    ) -> tuple[list[Measured], DevicePool]:
        found: list[Measured] = []
        with DevicePool(self.open, rules, (CANARY, self.library("canary", canary=True))) as pool:
            for workload in (CANARY, WORK):
                pool.references.arrays[workload.key] = [np.zeros(1), np.zeros(1)]
                pool.references.outputs[workload.key] = np.ones(1)
            jobs = [Job(WORK, library, float("inf"), beside_canary=in_turns) for library in libraries]
            pool.measure(jobs, found.append)
        return found, pool


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _names(found: list[Measured]) -> dict[str, str]:
    return {measured.job.library.name: measured.status for measured in found}


def test_every_job_is_measured_once_by_many_devices(world: World) -> None:
    found, pool = world.measure([world.library(f"k{at}", seconds=0.001 * (at + 1)) for at in range(40)])
    assert Counter(m.job.library.name for m in found) == Counter(f"k{at}" for at in range(40))
    assert {m.status for m in found} == {OK} and world.sessions == 3
    for measured in found:
        seconds = 0.001 * (int(measured.job.library.name[1:]) + 1)
        assert measured.seconds[0] == pytest.approx(seconds) and measured.canary_s == 0.001
    assert pool.counts.lost == 0
    assert {m.unit for m in found} <= {"unit-1", "unit-2", "unit-3"} and {m.build for m in found} == {"fake 1"}


def test_a_replayed_kernel_is_timed_in_turns_with_the_canary(world: World) -> None:
    world.clock = 3.0
    kernels = [world.library("right", seconds=0.002), world.library("wrong", output=2.0)]
    found, _ = world.measure([*kernels, world.library("refused", refused=True)], in_turns=True)
    assert _names(found) == {"right": OK, "wrong": WRONG_OUTPUT, "refused": COMPILE_ERROR}
    [right] = [measured for measured in found if measured.status == OK]
    assert right.seconds == pytest.approx([0.006] * 9) and right.canary_s == pytest.approx(0.003)


def test_a_lost_device_loses_no_job_and_writes_nothing_slow(world: World) -> None:
    world.dies_at = {6, 13, 20}
    found, pool = world.measure([world.library(f"k{at}") for at in range(20)])
    assert len(_names(found)) == len(found) == 20
    assert {m.status for m in found} == {OK} and all(set(m.seconds) == {0.001} for m in found)
    assert pool.counts.lost == 3 and pool.counts.retried >= 1 and world.sessions >= 4


def test_a_wrong_output_is_a_result(world: World) -> None:
    found, _ = world.measure(
        [world.library("good"), world.library("bad", output=2.0), world.library("nan", output=float("nan"))]
    )
    assert _names(found) == {"good": OK, "bad": WRONG_OUTPUT, "nan": WRONG_OUTPUT}


def test_what_the_device_refuses_is_a_result_while_it_runs_others(world: World) -> None:
    found, pool = world.measure([world.library("good"), world.library("bad", refused=True), world.library("fine")])
    assert _names(found) == {"good": OK, "bad": COMPILE_ERROR, "fine": OK} and pool.counts.lost == 0
    assert [m.error for m in found if m.status != OK] == ["the library cannot be used: CL_OUT_OF_RESOURCES"]


def test_a_device_that_refuses_everything_blames_no_kernel(world: World) -> None:
    world.refuses_all = True
    with pytest.raises(DeviceError, match="rejects a kernel that is known to be correct"):
        world.measure([world.library(f"k{at}") for at in range(4)], changed(RULES, devices=1, give_up_s=0.5))


def test_what_a_kernel_does_not_write_is_not_taken_from_the_one_before(world: World) -> None:
    kernels = [world.library("good"), world.library("forgets", forgets=True), world.library("fine")]
    found, _ = world.measure(kernels, changed(RULES, devices=1))
    assert _names(found) == {"good": OK, "forgets": WRONG_OUTPUT, "fine": OK}


def test_a_silent_kernel_is_blamed_when_its_device_answers_again(world: World) -> None:
    found, pool = world.measure([world.library("good"), world.library("silent", hangs=True), world.library("fine")])
    assert _names(found) == {"good": OK, "fine": OK, "silent": KERNEL_TIMEOUT}
    assert pool.counts.given_up == 0


def test_a_kernel_that_ends_every_session_is_given_up_and_not_recorded(world: World) -> None:
    found, pool = world.measure([world.library("killer", kills=True), world.library("good")])
    assert _names(found) == {"killer": "", "good": OK}
    assert pool.counts.given_up == 1 and pool.counts.lost >= 2


@pytest.mark.parametrize("killers", [1, 3])
def test_kernels_that_end_every_session_cost_no_other_kernel_its_time(world: World, killers: int) -> None:
    """What was measured before a session ended waits for a canary, is measured again, and is never given up for it."""
    libraries = [world.library(f"good{at}") for at in range(9)]
    libraries[4:4] = [world.library(f"killer{at}", kills=True) for at in range(killers)]
    found, pool = world.measure(libraries, changed(RULES, devices=1, canary_every=16))
    assert Counter(_names(found).values()) == {OK: 9, "": killers}
    assert pool.counts.given_up == killers
    assert any("killer0 was given up" in note and "connection reset" in note for note in pool.counts.notes)


def test_a_clock_that_never_rests_is_said(world: World) -> None:
    world.restless = True
    found, pool = world.measure([world.library(f"k{at}") for at in range(4)], changed(RULES, devices=1))
    assert {m.status for m in found} == {""} and pool.counts.given_up == 4
    assert any("was given up" in note and "canary" in note for note in pool.counts.notes)


def test_a_device_that_is_silent_from_the_start_ends_the_search(world: World) -> None:
    """The canary itself never returns: no kernel is at fault, and nobody waits for ever."""
    world.canary_hangs = True
    with pytest.raises(DeviceError, match="silent"):
        world.measure([world.library("k")], changed(RULES, devices=1, kernel_timeout_s=0.3, give_up_s=0.5))


def test_what_was_measured_is_kept_when_the_search_ends(world: World) -> None:
    """By a fault of ours, in the middle."""
    seen: list[Measured] = []
    rules = changed(RULES, devices=1, canary_every=2)
    jobs = [world.library(f"k{at}") for at in range(8)]
    world.bug_at = 9
    with pytest.raises(ZeroDivisionError):
        with DevicePool(world.open, rules, (CANARY, world.library("canary"))) as pool:
            for workload in (CANARY, WORK):
                pool.references.arrays[workload.key] = [np.zeros(1), np.zeros(1)]
                pool.references.outputs[workload.key] = np.ones(1)
            slow = lambda found: (time.sleep(0.3), seen.append(found))  # noqa: E731  the fault comes first
            pool.measure([Job(WORK, library, float("inf")) for library in jobs], slow)
    assert len(seen) >= 2 and {m.status for m in seen} == {OK}


def test_without_any_device_the_search_ends_with_the_reason(world: World) -> None:
    world.dies_at, world.gone_after = {5}, 1
    rules = changed(RULES, devices=1, give_up_s=0.5)
    with pytest.raises(DeviceError, match="no device responds"):
        world.measure([world.library(f"k{at}") for at in range(8)], rules)


def test_when_nobody_is_there_from_the_start_it_is_said_at_once(world: World) -> None:
    world.gone_after = 0
    started = time.monotonic()
    with pytest.raises(DeviceError, match="no device responds"):
        world.measure([world.library("k")], changed(RULES, give_up_s=600.0))
    assert time.monotonic() - started < 300


def test_a_silent_device_blames_no_kernel(world: World) -> None:
    world.gone_after = 1
    with pytest.raises(DeviceError):
        world.measure([world.library("silent", hangs=True)], changed(RULES, devices=1, give_up_s=0.5))


def test_what_was_measured_while_the_clock_moved_is_measured_again(world: World) -> None:
    world.slows_at = 8
    found, pool = world.measure([world.library(f"k{at}") for at in range(12)], changed(RULES, devices=1))
    assert pool.counts.drifts == 1 and pool.counts.discarded >= 1
    assert len(found) == 12 and {m.status for m in found} == {OK}
    assert {round(m.seconds[0] / m.canary_s, 6) for m in found} == {1.0}, "time and canary are of the same clock"
    assert "canary" in pool.counts.notes[0]


def test_a_device_that_stays_hot_costs_no_kernel_anything(world: World) -> None:
    world.hot = 2
    found, pool = world.measure([world.library(f"k{at}") for at in range(8)], changed(RULES, give_up_s=600.0))
    assert {m.status for m in found} == {OK} and len(found) == 8
    assert pool.counts.lost == 0, "it is busy with cooling down, and nobody lost it"
    assert pool.counts.retried >= 2
