"""Test the progress output of tuning, and the origin of each kernel's schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tvmflow.ir.tir.workloads import Workload
from tvmflow.tuning.records.origins import LOST, NEW, ORIGINS, REMEASURED, RETUNED, REUSED
from tvmflow.tuning.results import summarize_cost, write_kernels
from tvmflow.tuning.search.display import best_so_far, describe_stop, task_line
from tvmflow.tuning.search.state import TuneReport, WorkloadSearch


class _NoTuner:
    def tell(self, _index: int, _seconds: float) -> None:
        pass


def _search(name: str, extents: tuple[int, ...] = (100, 10), calls: int = 1) -> WorkloadSearch:
    tuner: Any = _NoTuner()
    return WorkloadSearch(Workload(name, name, calls, None), "dot", [{"at": 0}, {"at": 1}, {"at": 2}], tuner, extents)


def test_a_line_has_the_task_the_current_and_the_best_speed_and_the_trial() -> None:
    searches = [_search("dense"), _search("relu", ())]
    searches[0].learn(0, 2e-6)
    searches[0].learn(1, 1e-6)
    assert task_line(searches, searches[0], 2e-6, 24) == "[Task 1/2] 1.00 / 2.00 GFLOP/s, trial 2 of 3, dense"
    searches[1].learn(0, float("inf"))
    line = task_line(searches, searches[1], float("inf"), 2, "error -5\nof the driver")
    assert line == "[Task 2/2] failed / none so far, trial 1 of 2, relu: error -5"
    line = task_line(searches, searches[0], None, 24, "given up: no device")
    assert line == "[Task 1/2] not measured / 2.00 GFLOP/s, trial 2 of 3, dense: given up: no device"
    searches[1].learn(1, 1e-5)
    assert task_line(searches, searches[1], 1e-5, 2) == "[Task 2/2] 0.01 / 0.01 ms, trial 2 of 2, relu"


def test_the_best_so_far_is_the_time_of_all_calls_beside_the_default() -> None:
    searches = [_search("dense", calls=3), _search("relu")]
    assert best_so_far(searches) == "no kernel measured yet"
    searches[0].learn(0, 2e-3)
    searches[0].learn(1, 1e-3)
    assert best_so_far(searches) == "best 3 ms in 1 of 2 kernels, 2.00x the default"
    searches[1].learn(1, 1e-3)  # its default schedule failed
    assert best_so_far(searches) == "best 4 ms in 2 of 2 kernels"
    report = TuneReport({}, searches=searches, stopped="max_seconds", promised=0.031)
    assert (
        describe_stop(report)
        == "best 4 ms in 2 of 2 kernels; the search ended (max_seconds), another minute would save about 3.1%"
    )


@pytest.mark.parametrize(
    ("measured", "replayed", "origin"),
    [
        (0, "", REUSED),
        (0, LOST, REUSED),
        (3, "", NEW),
        (1, REMEASURED, REMEASURED),
        (4, RETUNED, RETUNED),
        (4, LOST, LOST),
    ],
)
def test_each_kernel_says_where_its_schedule_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: int, replayed: str, origin: str
) -> None:
    search = _search("dense")
    search.learn(0, 1e-3)
    search.measured, search.replayed, search.before_s = measured, replayed, 2e-3
    monkeypatch.setattr("tvmflow.tuning.results.least_bytes", lambda _function: 4000)
    monkeypatch.setattr("tvmflow.tuning.results.multiplied", lambda _function: "float32")
    report = TuneReport({}, searches=[search])
    counts = write_kernels(tmp_path / "workloads.json", [search.workload], report)
    assert counts == {name: int(name == origin) for name in ORIGINS}
    [row] = json.loads((tmp_path / "workloads.json").read_text())
    assert (row["origin"], row["before_ms"], row["flops"], row["nbytes"]) == (origin, 2.0, 2000.0, 4000)
    assert row["dtype"] == "float32"
    assert summarize_cost(report)["measured"] == 0
