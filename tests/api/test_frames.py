"""Test what notebooks show of results: DataFrames, tables, the report."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.report_data import HOSTILE, card
from tvmflow import api
from tvmflow.api.frames import ReportView
from tvmflow.api.results import CellPlan, CellStatus, RunResult, Scorecard, StagePlan, Status
from tvmflow.evaluation.scorecard import Scorecard as Card
from tvmflow.report.plans import status_table
from tvmflow.support.errors import UsageError

CARD = Scorecard.of(Card.from_json(card("digits@local-cpu:int8", 2.0, (HOSTILE,))))
CELLS = (
    CellStatus("a", "m@t:float32", ("tune", "build"), False, None),
    CellStatus("b", "m@t:int8", (), True, None, champion=False),
    CellStatus("c", "m@t:float16", (), True, None, champion=False, disturbed=True),
    CellStatus("d", "m@t:bfloat16", (), True, None, champion=True, disturbed=True),
    CellStatus("e", "m@t:vta_int8", (), False, "no compiler"),
    CellStatus("f", "m@u:int8", (), False, None, (), "a board"),
)
STATUS = Status(("m",), ("t",), CELLS)
NEXT = [
    "tvmflow run a",
    "tvmflow promote b",
    "tvmflow run c --again --wait-quiet 600",
    "tvmflow bundle d",
    "tvmflow why e",
    "tvmflow run f",
]


def test_status_says_the_next_step_of_each_cell() -> None:
    assert [cell.next_step for cell in CELLS] == NEXT
    assert [row[-1] for row in status_table(Path(), CELLS).rows] == NEXT


def test_results_become_frames() -> None:
    assert api.to_frame(STATUS)["next"].tolist() == NEXT
    plan = CellPlan("m@t:int8", (StagePlan("fetch", "hit", "", "ab"), StagePlan("tune", "miss", "new", "")))
    assert api.to_frame((plan, plan)).shape == (4, 5) and set(api.to_frame(plan)["cell"]) == {"m@t:int8"}
    results = [RunResult("digits@local-cpu:int8", {"fetch": "hit"}, scorecard=CARD), RunResult("x@y:int8", {})]
    frame = api.to_frame(results)
    assert frame["latency_ms"].tolist()[0] == 2.0 and frame["accuracy.built"][0] == 0.9925
    assert frame["times_faster.onnxruntime"][0] == 1.3 and frame["cell"].tolist() == [one.cell for one in results]
    assert api.to_frame(CARD)["badges"][0] == HOSTILE
    for other in (3, "text", [object()]):
        with pytest.raises(UsageError, match="has no rows"):
            api.to_frame(other)


@pytest.mark.parametrize("value", [CARD, RunResult("a", {"fetch": "hit"}, scorecard=CARD), STATUS, CELLS[0]])
def test_values_are_tables_whose_contents_are_text(value: Any) -> None:
    shown = value._repr_html_()
    assert shown.startswith("<table>") and len(re.findall("<tr>", shown)) > 2
    assert "<img" not in shown and "<script" not in shown
    if value is CARD:
        assert "tvmflow, ms" in shown and "<td>2</td>" in shown


def test_the_report_is_shown_in_a_frame_of_its_own() -> None:
    page = f"<!doctype html><p>{HOSTILE}</p>"
    shown = ReportView(page)._repr_html_()
    [inner] = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(inner) == page and 'sandbox="allow-scripts"' in shown
