"""Test what measurements cost: each stage counts once per recipe key, each measurement holds its device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tvmflow.config.params import STAGE_NAMES
from tvmflow.tracking.costs import METRICS, NOTES, Cost, costs_of
from tvmflow.tracking.mlflow.notes import split

HOUR_S = 3600.0


def _run(number: int, cell: str, month: int, keys: str, **given: float) -> Any:
    """Return a run each of whose stages took an hour. keys: a letter per version of its recipes."""
    notes = {"cell": cell, "device.kind": "phone"} | {f"recipe.{stage}": f"{keys} {stage}" for stage in STAGE_NAMES}
    metrics = {f"stage_s.{stage}": HOUR_S for stage in STAGE_NAMES} | {"tuning.device_hours": 0.5}
    info = SimpleNamespace(run_id=str(number), start_time=1000 * (1_767_225_600 + 86_400 * 31 * (month - 1) + number))
    metrics |= {name.replace("_", ".", 1): value for name, value in given.items()}
    assert set(metrics) <= set(METRICS) and set(notes) == set(NOTES)
    tags, params = split(notes)
    return SimpleNamespace(info=info, data=SimpleNamespace(tags=tags, params=params, metrics=metrics))


def test_a_stage_counts_once_and_is_saved_afterwards() -> None:
    first = _run(1, "a@t:float32", 1, "x", tuning_saved_s=2 * HOUR_S)
    again, twin, new = _run(2, "a@t:float32", 1, "x"), _run(3, "b@t:float32", 1, "x"), _run(4, "a@t:float32", 2, "y")
    found = costs_of([first, again, twin, new])
    others = float(len(STAGE_NAMES) - 3)  # but tune, deploy, evaluate
    assert found == {
        ("a", "phone", "2026-01"): Cost(2, 2 + 2.5, 1.0, others, 2.0, others + 1),
        ("a", "phone", "2026-02"): Cost(1, 2.5, 1.0, others, 0.0, 0.0),
        ("b", "phone", "2026-01"): Cost(1, 2.0, 0.0, 0.0, 0.0, others + 1),
    }
    assert found["a", "phone", "2026-01"].to_json()["device_hours"] == pytest.approx(4.5)


def test_a_run_of_an_older_version_without_keys_counts_by_itself() -> None:
    runs = [_run(number, "a@t:float32", 1, "x") for number in (1, 2)]
    for run in runs:
        run.data.params = {}
    assert costs_of(runs)["a", "phone", "2026-01"].saved_by_cache_hours == 0.0
