"""Test how plans of cells are printed."""

from __future__ import annotations

from typing import Literal

import pytest

from tvmflow.api import CellPlan, StagePlan
from tvmflow.cli.plans import show_plans


def _plan(number: int, state: Literal["hit", "miss"]) -> CellPlan:
    return CellPlan(f"m{number:03}@t:float32", (StagePlan("fetch", state, "", "0" * 12),))


def test_of_many_cells_those_with_nothing_to_do_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    many = [_plan(number, "hit") for number in range(30)]
    show_plans([*many, _plan(99, "miss")], as_json=False)
    text = capsys.readouterr().out
    assert "up to date: 30 of 31 cells" in text and "m099@t:float32" in text and "m000@t:float32" not in text
    show_plans(many[:3], as_json=False)
    text = capsys.readouterr().out
    assert "m000@t:float32" in text and "up to date" not in text
