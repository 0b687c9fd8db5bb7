"""Add up what measurements cost and what reuse saved, by model, kind of device and month.

From the measurements in MLflow: every stage of a measurement has its seconds and its recipe key. A key that was seen
before was not made again. Runs that failed left no measurement and are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from tvmflow.config.params import STAGE_NAMES
from tvmflow.tracking.mlflow.notes import notes_of

NOTES = ("cell", "device.kind", *(f"recipe.{stage}" for stage in STAGE_NAMES))
METRICS = ("tuning.device_hours", "tuning.saved_s", *(f"stage_s.{stage}" for stage in STAGE_NAMES))
_ON_DEVICE = ("deploy", "evaluate")  # run for every measurement
_HOUR_S = 3600.0


@dataclass
class Cost:
    """Hours, added up. device: that a device was held; tuning: of the tune stage; other: of the remaining stages on a
    machine. saved_by_reuse: tuning with schedules that were known; saved_by_cache: stages that were not made again.
    """

    measurements: int = 0
    device_hours: float = 0.0
    tuning_hours: float = 0.0
    other_hours: float = 0.0
    saved_by_reuse_hours: float = 0.0
    saved_by_cache_hours: float = 0.0

    def add(self, other: Cost) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


def costs_of(runs: Iterable[Any]) -> dict[tuple[str, str, str], Cost]:
    """Return (model, device, month) -> cost, sorted. runs: of MLflow, oldest first, with NOTES and METRICS."""
    made: set[tuple[str, str]] = set()
    found: dict[tuple[str, str, str], Cost] = {}
    for run in runs:
        tags, month = run.data.tags, datetime.fromtimestamp(run.info.start_time / 1000, UTC).strftime("%Y-%m")
        group = (tags["cell"].partition("@")[0], tags["device.kind"], month)
        found.setdefault(group, Cost()).add(_cost(run, made))
    return {group: found[group] for group in sorted(found)}


def _cost(run: Any, made: set[tuple[str, str]]) -> Cost:
    notes, numbers, cost = notes_of(run.data), run.data.metrics, Cost(measurements=1)
    for stage in STAGE_NAMES:
        hours = numbers.get(f"stage_s.{stage}", 0.0) / _HOUR_S
        key = (stage, notes.get(f"recipe.{stage}", run.info.run_id))
        if stage in _ON_DEVICE:
            cost.device_hours += hours
        elif key in made:
            cost.saved_by_cache_hours += hours
        elif stage == "tune":
            cost.tuning_hours += hours
            cost.device_hours += numbers.get("tuning.device_hours", 0.0)
            cost.saved_by_reuse_hours += numbers.get("tuning.saved_s", 0.0) / _HOUR_S
        else:
            cost.other_hours += hours
        made.add(key)
    return cost
