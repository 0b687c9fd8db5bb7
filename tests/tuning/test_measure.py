"""Rank candidates on a device whose speed moves: by times in turns with the fastest one so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvmflow.ir.tir.workloads import Workload
from tvmflow.tuning.measure.kernel_bench import KernelBench, MeasureRules
from tvmflow.tuning.records.record import OK, TuningRecord, best_of
from tvmflow.tuning.search.candidates import is_slower

_WORKLOAD = Workload("kernel", "kernel", 1, None)


class Device:
    """A device of two speeds: kernels of known times take 1.7 times as long in its slow state, which lasts some
    turns.
    """

    name = "device"

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.turns, self.factor, self.left = 0, 1.0, 0

    def bench(self, arrays: Any) -> Device:
        return self

    def load(self, library: Path) -> Kernel:
        return Kernel(self, float(library.name))

    def time_of(self, seconds: float) -> float:
        if not self.left:
            self.factor, self.left = float(self.draw.choice([1.0, 1.7])), int(self.draw.integers(1, 12))
        self.left, self.turns = self.left - 1, self.turns + 1
        return seconds * self.factor * float(np.exp(0.01 * self.draw.standard_normal()))


class Counter(Device):
    """A device that counts: it takes the same each time."""

    def time_of(self, seconds: float) -> float:
        self.turns += 1
        return seconds


class Kernel:
    def __init__(self, device: Device, seconds: float) -> None:
        self.device, self.seconds = device, seconds

    def output(self) -> Any:
        return np.zeros(4, np.float32)

    def time(self, repeat: int, min_repeat_ms: float) -> list[float]:
        return [self.device.time_of(self.seconds) for _ in range(repeat)]


def bench_on(device: Device) -> KernelBench:
    arrays = [np.zeros(4, np.float32)]
    session: Any = device
    return KernelBench(_WORKLOAD, session, MeasureRules(3, 10.0), arrays, np.zeros(4, np.float32), None)


@pytest.mark.parametrize(("first", "second"), [("0.00100", "0.00105"), ("0.00105", "0.00100")])
def test_two_candidates_a_twentieth_apart_are_ranked_right(first: str, second: str) -> None:
    right = 0
    for seed in range(100):
        bench = bench_on(Device(seed))
        medians: dict[str, float] = {}
        for name in (first, second):
            status, seconds, _ = bench.measure(Path(name), min(medians.values(), default=float("inf")))
            assert status == OK and seconds
            medians[name] = float(np.median(seconds))
        right += medians["0.00100"] < medians["0.00105"]
    assert right >= 90


def test_slower_candidates_take_few_turns() -> None:
    device = Device(3)
    bench = bench_on(device)
    bench.measure(Path("0.001"))
    before = device.turns
    _, seconds, _ = bench.measure(Path("0.0012"), 0.001)
    assert device.turns - before <= 8 and len(seconds) >= 2
    before = device.turns
    bench.measure(Path("0.009"), 0.001)
    assert device.turns - before == 1


@pytest.mark.parametrize("name", ["0.00095", "0.001", "0.00105", "0.0012"])
def test_a_device_that_counts_is_asked_three_times(name: str) -> None:
    device = Counter(0)
    bench = bench_on(device)
    bench.measure(Path("0.001"))
    before = device.turns
    _, seconds, _ = bench.measure(Path(name), 0.001)
    assert device.turns - before == 3 and seconds == pytest.approx((float(name),))


def test_a_gain_of_a_twentieth_is_believed_after_few_pairs() -> None:
    turns = []
    for seed in range(100):
        device = Device(seed)
        bench = bench_on(device)
        _, seconds, _ = bench.measure(Path("0.00105"))
        before = device.turns
        bench.measure(Path("0.001"), float(np.median(seconds)))
        turns.append(device.turns - before)
    assert np.mean(turns) < 10


def test_a_canary_shows_the_speed_that_the_device_has_now() -> None:
    device = Device(0)
    bench = bench_on(device)
    found = []
    for factor in (1.0, 1.7):
        device.factor, device.left = factor, 1000
        found.append(float(np.median(bench.measure_alone(Path("0.001")))))
    assert found[1] / found[0] == pytest.approx(1.7, rel=0.03)


def _record(seconds: tuple[float, ...], canary_s: float, unit: str) -> TuningRecord:
    device = {"device_kind": "fake", "toolchain": {}, "unit": unit, "build": "1"}
    schedule: dict[str, Any] = {"workload": "w", "name": "n", "template": "t", "knobs": {}, "trace": None, "status": OK}
    return TuningRecord(seconds=seconds, created="", canary_s=canary_s, **schedule, **device)


def _replay(seed: int, factor: float, unit: str, in_turns: bool = True) -> bool:
    """Return whether a kernel that takes `factor` times as long after an upgrade is searched again.

    Before the upgrade: the fastest of four records of one schedule, as a search keeps the fastest.
    """
    device = Device(seed)
    canary, kernel = bench_on(device), "0.001"
    old = []
    for _ in range(4):
        canary_s = float(np.median(canary.measure_alone(Path("0.002"))))
        old.append(_record(bench_on(device).measure(Path(kernel))[1], canary_s, "board-1"))
    before = best_of(old)["w"]
    now = str(float(kernel) * factor)
    canary_s = float(np.median(canary.measure_alone(Path("0.002"))))
    found = _record(bench_on(device).measure(Path(now))[1], canary_s, unit)
    if not is_slower(found, before, 0.1) or not in_turns:
        return is_slower(found, before, 0.1)
    _, seconds, _, canary_s = bench_on(device).measure_beside(Path(now), canary, Path("0.002"))
    return is_slower(_record(seconds, canary_s, unit), before, 0.1)


def test_a_replayed_schedule_is_not_searched_again_by_noise() -> None:
    """A slower one mostly is: not where the old time itself was of the slow state."""
    assert sum(_replay(seed, 1.0, "board-1") for seed in range(100)) <= 2
    assert sum(_replay(seed, 1.0, "board-1", in_turns=False) for seed in range(100)) >= 8, "the noise is there"
    assert sum(_replay(seed, 1.4, "board-1") for seed in range(100)) >= 60
