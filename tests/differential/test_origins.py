"""Test the origins of schedules in real searches: one search after another, under one toolchain after another."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.here import here
from tests.search_rules import QUICK_RULES
from tvmflow.backends.cpu import CpuBackend
from tvmflow.ir.tir.workloads import Workload
from tvmflow.targets.resolve import host_target
from tvmflow.tuning.measure.canary import canary_workload
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.origins import LOST, NEW, REMEASURED, RETUNED, REUSED
from tvmflow.tuning.records.record import ILLEGAL_SCHEDULE, OK, append_record, failures, read_records
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import WorkloadSearch

RULES = QUICK_RULES


def _search(folder: Path, tvm: str, said: list[str]) -> WorkloadSearch:
    work = Workload("work", "work", 1, canary_workload().function)
    tuning_log = TuningLog(folder / "log.jsonl", "here", {"tvm": tvm})
    (folder / "scratch").mkdir(exist_ok=True)
    report = tune(
        [work],
        here,
        CpuBackend(host_target()),
        RULES,
        tuning_log,
        folder / "scratch",
        lambda text, *_: said.append(text),
    )
    [search] = report.searches
    return search


def _rewrite(log: Path, **change: Any) -> None:
    records = read_records(log)
    log.unlink()
    for record in records:
        append_record(log, replace(record, **change))


def test_each_way_to_a_schedule_is_told(tmp_path: Path) -> None:
    log, said = tmp_path / "log.jsonl", list[str]()
    first = _search(tmp_path, "1", said)
    assert (first.origin, first.measured, first.before_s) == (NEW, RULES.trials, 0.0)
    assert [text.split("]")[0] for text in said if text.startswith("[Task")] == ["[Task 1/1"] * RULES.trials
    assert said[-1].startswith("best ") and "1 of 1 kernels" in said[-1]
    again = _search(tmp_path, "1", said)
    assert (again.origin, again.measured) == (REUSED, 0)
    times = [seconds for record in read_records(log) for seconds in record.seconds]
    held = _search(tmp_path, "2", said)
    assert (held.origin, held.measured) == (REMEASURED, 1)
    assert min(times) <= held.before_s <= max(times)
    _rewrite(log, seconds=(1e-20,), canary_s=0.0)
    slower = _search(tmp_path, "3", said)
    assert slower.origin == RETUNED and slower.measured > 1 and slower.before_s == 1e-20
    _rewrite(log, trace=[[["GetSBlock", [], ["gone", "main"], ["b0"]]], []])
    lost = _search(tmp_path, "4", said)
    assert lost.origin == LOST and math.isfinite(lost.best_s)
    [failed] = failures(read_records(log))
    assert failed["status"] == ILLEGAL_SCHEDULE and "Cannot find a block" in failed["error"]
    assert {record.error for record in read_records(log) if record.status == OK} == {""}
