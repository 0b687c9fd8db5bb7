"""Test the tables of execution times, and of the start and the outputs of GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.scorecards import scorecard
from tvmflow.evaluation.scorecard import GpuNumbers, Scorecard
from tvmflow.report.execution import execution_of, execution_tables, start_of


def _card(cell: str, median_ms: float, gpu: GpuNumbers | None = None, is_time: bool = True) -> Scorecard:
    card: Any = scorecard()
    compute = replace(
        card.latency.compute,
        mean_ms=median_ms + 1,
        median_ms=median_ms,
        max_ms=median_ms + 3,
        min_ms=median_ms - 1,
        std_ms=0.5,
        is_time=is_time,
    )
    return replace(
        card, cell=cell, gpu=gpu, first_run_ms=(30.0, 12.0, 12.0), latency=replace(card.latency, compute=compute)
    )


def test_times_of_cells_stand_side_by_side() -> None:
    [table] = execution_tables([_card("m@cpu:float32", 10.0), _card("m@emulated:float32", 20.0, is_time=False)])
    assert table.columns == ("cell", "mean (ms)", "median (ms)", "max (ms)", "min (ms)", "std (ms)")
    assert table.rows == (("m@cpu:float32", "11", "10", "13", "9", "0.5"), ("m@emulated:float32", *"-----"))


def test_a_gpu_has_its_start_and_its_outputs_apart() -> None:
    gpu = GpuNumbers(compile_ms=988.0, open_ms=88.0, copy_in_ms=1.0, copy_out_ms=4.0)
    card = _card("m@gpu:float32", 10.0, gpu)
    start = start_of(card)
    assert start is not None and (start.empty_ms, start.filled_ms, start.get_output_ms) == (1000.0, 100.0, 4.0)
    assert execution_of(card)["start"]["filled_runs"] == pytest.approx(10)
    assert start_of(_card("m@cpu:float32", 10.0)) is None
    _, table = execution_tables([_card("m@cpu:float32", 10.0), card])
    assert table.rows == (("m@gpu:float32", "1000 ms = 100 runs", "100 ms = 10 runs", "10", "4"),)
