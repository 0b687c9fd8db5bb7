"""Record history runs, one per cell and device unit, with a step per measurement, for charts over time.

The step of a point is the second of its measurement, so that two machines that record one measurement add one point.
They are in a separate experiment, so that the runs of a model's experiment are measurements only and can be compared.
Select the history runs of several cells or devices there and chart `latency_ms.median`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.experiments import SOURCE, experiment_id

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "history of cells"  # no model can have this name
_SHOWN = (
    "accuracy",
    "latency_ms.median",
    "library_bytes",
    "cold_start_ms",
    "agreement.max_relative_error",
    "agreement.sqnr_db",
)
_KEPT = ("cell", "model", "target", "precision", "device.key", "device.kind", "device.unit")


@dataclass(frozen=True)
class Step:
    """One measurement: its digest, notes and numbers, and when it was made, in milliseconds since 1970."""

    digest: str
    notes: Mapping[str, str]
    numbers: Mapping[str, float]
    measured_ms: int


def add_step(client: MlflowClient, workspace: Workspace, step: Step) -> None:
    """Add a measurement to the history run of its cell and device. Adding it twice changes nothing."""
    from mlflow.entities import Metric

    points = [Metric(k, v, step.measured_ms, step.measured_ms // 1000) for k, v in step.numbers.items() if k in _SHOWN]
    run_id = ""
    while not run_id or client.get_run(run_id).info.lifecycle_stage != "active":  # merged into another meanwhile
        run_id = _history_run(client, workspace, step.notes)
        client.log_batch(run_id, points)
    client.set_terminated(run_id)


def _history_run(client: MlflowClient, workspace: Workspace, notes: Mapping[str, str]) -> str:
    """Return the history run of a cell and device, made where it is missing."""
    experiment = experiment_id(client, workspace, EXPERIMENT)
    where = "tags.`tvmflow.kind` = 'history' and tags.cell = '{cell}' and tags.`device.kind` = '{device.kind}'"
    kind = where.replace("{cell}", notes["cell"]).replace("{device.kind}", notes["device.kind"])
    of_unit = f"{kind} and tags.`device.unit` = '{notes['device.unit']}'"
    if not client.search_runs([experiment], of_unit):
        kept = {name: notes[name] for name in _KEPT}
        name = f"{notes['cell']} on {notes['device.kind']}, {notes['device.unit']}"
        run = client.create_run(experiment, tags={**kept, **SOURCE, "tvmflow.kind": "history"}, run_name=name)
        _take_over(client, kind, run.info.run_id)
    first, *others = sorted(str(run.info.run_id) for run in client.search_runs([experiment], of_unit))
    for other in others:  # two machines made one each
        _move_points(client, other, first)
        client.delete_run(other)
        _move_points(client, other, first)  # what its maker added meanwhile
    return first


def _move_points(client: MlflowClient, source: str, target: str) -> None:
    points = [m for name in _SHOWN for m in client.get_metric_history(source, name)]
    for start in range(0, len(points), 800):
        client.log_batch(target, points[start : start + 800])


def _take_over(client: MlflowClient, where: str, run_id: str) -> None:
    """Move the points of an older version's history run, which did not distinguish units, to the first measured
    unit.
    """
    for old in client.search_runs([e.experiment_id for e in client.search_experiments()], where):
        if old.info.run_id != run_id and "device.unit" not in old.data.tags:
            _move_points(client, old.info.run_id, run_id)
            client.delete_run(old.info.run_id)
