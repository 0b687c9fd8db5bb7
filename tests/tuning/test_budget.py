"""Test the time limit of tuning: nothing is started that would end after it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.faults.here import here
from tests.search_rules import QUICK_RULES, changed
from tests.tuning.test_device_pool import RULES, World
from tvmflow.backends.cpu import host_backend
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.progress import silent
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.measure.device_pool import DevicePool
from tvmflow.tuning.measure.jobs import Job, Measured
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import TuneReport
from tvmflow.tuning.search.stopping import MAX_SECONDS, NOTHING_LEFT
from tvmflow.tuning.tune_network import _comparison_s, _has_time


class _Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_budget_has_what_ends_within_it() -> None:
    clock = _Clock()
    budget, none = Budget(40.0, clock), Budget(0.0, clock)
    clock.seconds += 30.0
    assert budget.left_s() == 10.0 and budget.has(10.0) and not budget.has(10.1)
    clock.seconds += 30.0
    assert budget.left_s() == 0.0 and not budget.has(0.0)
    assert none.left_s() == math.inf and none.has(1e9)


def test_what_waits_for_a_device_comes_back_at_the_end(tmp_path: Path) -> None:
    world, found = World(tmp_path), list[Measured]()
    budget = Budget(45.0, lambda: 10.0 * world.loads)  # each kernel that a device loads takes 10 s, each canary too
    with DevicePool(world.open, changed(RULES, devices=1, canary_every=1), _canary(world), budget) as device_pool:
        work = Workload("work", "work", 1, None)
        for key in ("canary", "work"):
            device_pool.references.arrays[key] = [np.zeros(1), np.zeros(1)]
            device_pool.references.outputs[key] = np.ones(1)
        device_pool.measure([Job(work, world.library(f"k{at}"), math.inf) for at in range(8)], found.append)
    assert sorted(one.status for one in found) == [""] * 6 + ["ok"] * 2 and not device_pool.counts.given_up


def _canary(world: World) -> tuple[Workload, Path]:
    return Workload("canary", "canary", 1, None), world.library("canary", canary=True)


@pytest.mark.parametrize(("limit_s", "most", "why"), [(25.0, 4, MAX_SECONDS), (1000.0, 8, NOTHING_LEFT)])
def test_a_search_of_several_kernels_ends_with_its_time(tmp_path: Path, limit_s: float, most: int, why: str) -> None:
    tuning_log = TuningLog(tmp_path / "log.jsonl", "here", {"tvm": "1"})
    kernels = [Workload(name, name, 1, canary_workload().function) for name in "abcd"]
    budget = Budget(limit_s, lambda: 10.0 * len(tuning_log.known()))  # each measurement takes 10 s
    report = tune(kernels, here, host_backend(), QUICK_RULES, tuning_log, tmp_path, silent, budget=budget)
    assert report.stopped == why and 1 <= report.measured <= most
    assert (report.measured == most) == (why == NOTHING_LEFT) or why == MAX_SECONDS


def test_a_search_leaves_the_time_for_what_comes_later(tmp_path: Path) -> None:
    tuning_log = TuningLog(tmp_path / "log.jsonl", "here", {"tvm": "1"})
    clock = _Clock()
    report = tune(
        [canary_workload()],
        here,
        host_backend(),
        QUICK_RULES,
        tuning_log,
        tmp_path,
        silent,
        budget=Budget(40.0, clock),
        later=lambda _searches: 39.9,
    )
    assert report.stopped == MAX_SECONDS and report.measured == 0


def test_networks_are_compared_while_the_next_one_ends_in_time() -> None:
    clock, comparison = _Clock(), SimpleNamespace(took_s=0.0)
    any_comparison: Any = comparison
    budget = Budget(40.0, clock)
    has_time, small = (
        _has_time(any_comparison, TuneReport({}), budget, 2.0, 20.0, is_small) for is_small in (False, True)
    )
    assert has_time() and small()
    clock.seconds += 25.0
    assert not has_time(), "by what kernels took to build, it would end after 47 s"
    comparison.took_s = 10.0
    assert has_time(), "by what the first one took, after 37 s"
    assert not small(), "its kernels find in the caches what they find there alone"
    clock.seconds += 10.0
    assert not has_time()


def test_the_first_comparison_takes_what_two_networks_take_to_build() -> None:
    search = SimpleNamespace(measured=4, build_s=2.0)
    searches: Any = [search]
    assert _comparison_s(searches, 30) == pytest.approx(2 * (2.0 + 30 * 0.5))
