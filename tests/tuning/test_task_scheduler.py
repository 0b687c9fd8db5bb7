"""Test the expected gain of further candidates, and that a search ends when it is too small."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.faults.here import here
from tests.search_rules import QUICK_RULES, changed
from tvmflow.backends.cpu import host_backend
from tvmflow.ir.tir.workloads import Workload
from tvmflow.support.progress import silent
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import WorkloadSearch
from tvmflow.tuning.search.stopping import MIN_GAIN, NOTHING_LEFT, TOTAL_TRIALS
from tvmflow.tuning.search.task_scheduler import Gains, TaskScheduler
from tvmflow.tuning.winograd_choice import Alternative


class _NoTuner:
    def tell(self, _index: int, _seconds: float) -> None:
        pass


def _search(name: str, *seconds: float, calls: int = 1, template: str = "conv") -> WorkloadSearch:
    tuner: Any = _NoTuner()
    search = WorkloadSearch(Workload(name, name, calls, None), template, [{"at": at} for at in range(32)], tuner, ())
    for at, value in enumerate(seconds):
        search.learn(at, value)
    return search


def _prospects(*searches: WorkloadSearch, alternatives: tuple[Alternative, ...] = ()) -> TaskScheduler:
    return TaskScheduler(searches, alternatives, most_trials=24, workers=1)


def _record(seconds: float, workload: str = "a", canary_s: float = 0.0) -> TuningRecord:
    return TuningRecord(workload, workload, "conv", {}, None, (seconds,), OK, "device", {}, "now", canary_s=canary_s)


def test_kernels_promise_by_their_share_and_less_the_longer_nothing_came() -> None:
    large, small, tired, new = _search("l", 4.0, calls=2), _search("s", 4.0), _search("t", 4.0, 4.0, 4.0), _search("n")
    scheduler = _prospects(large, small, tired, new)
    promised = [scheduler.gain_per_minute(one) for one in (large, small, tired)]
    assert scheduler.network_s() == 16.0
    assert promised[0] == pytest.approx(2 * promised[1]) and promised[1] > promised[2] > 0
    assert scheduler.gain_per_minute(new) == math.inf, "every kernel is measured once"
    assert scheduler.gain_per_minute(_search("whose every candidate failed", math.inf)) == 0.0


def test_what_costs_twice_as_much_promises_half() -> None:
    quick, slow = _search("q", 1.0), _search("s", 1.0)
    quick.measured, quick.spent_s, quick.build_s = 1, 0.5, 0.5
    slow.measured, slow.spent_s, slow.build_s = 1, 1.0, 1.0
    scheduler = _prospects(quick, slow)
    assert scheduler.gain_per_minute(quick) == pytest.approx(2 * scheduler.gain_per_minute(slow))


def test_another_algorithm_promises_only_what_it_wins_beyond_the_one_it_replaces() -> None:
    direct, near, far = _search("direct", 1.0), _search("f2", 1.02), _search("f4", 3.0)
    added = [Alternative("key", m, (direct.workload,), (one.workload,)) for m, one in ((2, near), (4, far))]
    scheduler = _prospects(direct, near, far, alternatives=tuple(added))
    assert scheduler.network_s() == 1.0
    assert scheduler.gain_per_minute(direct) > scheduler.gain_per_minute(near) > 0
    assert scheduler.gain_per_minute(far) == 0.0
    near.learn(1, 0.5)
    assert scheduler.network_s() == 0.5


def test_gains_of_other_kernels_of_a_template_are_expected_again() -> None:
    usual, gains = Gains().expected("conv", 4), Gains()
    for kernel in range(40):
        for seconds in (1.0, 1.0, 1.0, 1.0, 0.8):
            gains.learn(_record(seconds, f"kernel {kernel}"))
    assert gains.expected("conv", 4) > 5 * usual and gains.expected("norm", 4) == usual
    assert gains.expected("conv", 1) < Gains().expected("conv", 1)
    of_clocks = Gains()
    for at in range(4):  # the device became twice as fast, and its canary too
        of_clocks.learn(_record(1.0, f"kernel {at}", canary_s=2.0))
        of_clocks.learn(_record(0.5, f"kernel {at}", canary_s=1.0))
    assert of_clocks.expected("conv", 1) < Gains().expected("conv", 1)


@pytest.mark.parametrize(
    ("limits", "stopped", "measured"),
    [
        ({"min_gain_per_minute": 1e9}, MIN_GAIN, 1),  # the first of each kernel is always measured
        ({}, NOTHING_LEFT, 3),
        ({"total_trials": 1}, TOTAL_TRIALS, 1),
    ],
)
def test_a_search_says_why_it_ended(tmp_path: Path, limits: dict[str, Any], stopped: str, measured: int) -> None:
    tuning_log = TuningLog(tmp_path / "log.jsonl", "here", {"test": "1"})
    rules = changed(QUICK_RULES, trials_per_workload=3, **limits)
    report = tune([canary_workload()], here, host_backend(), rules, tuning_log, tmp_path, silent)
    assert (report.stopped, len(tuning_log.known())) == (stopped, measured)
    assert report.promised > 0 or stopped == NOTHING_LEFT
