"""Record history runs, one per cell and device unit, with a step per measurement, for charts over time.

They are in a separate experiment, so that the runs of a model's experiment are measurements only and can be compared.
Select the history runs of several cells or devices there and chart `latency_ms.median`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.store import experiment_id

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
    """One measurement: its digest, tags and numbers, and when it was made, in milliseconds since 1970."""

    digest: str
    tags: Mapping[str, str]
    numbers: Mapping[str, float]
    measured_ms: int


def add_step(client: MlflowClient, workspace: Workspace, step: Step) -> None:
    """Add a measurement to the history run of its cell and device, once."""
    from mlflow.entities import Metric

    run = _history_run(client, workspace, step.tags)
    run_id, tags = run.info.run_id, run.data.tags
    if tags.get("tvmflow.last") != step.digest:
        number = int(tags.get("tvmflow.steps", "0")) + 1
        metrics = [Metric(k, v, step.measured_ms, number) for k, v in step.numbers.items() if k in _SHOWN]
        client.log_batch(run_id, metrics)
        client.set_tag(run_id, "tvmflow.steps", str(number))
        client.set_tag(run_id, "tvmflow.last", step.digest)
    client.set_terminated(run_id)


def _history_run(client: MlflowClient, workspace: Workspace, tags: Mapping[str, str]) -> Any:
    """Return the history run of a cell and device, made where it is missing."""
    experiment = experiment_id(client, workspace, EXPERIMENT)
    where = "tags.`tvmflow.kind` = 'history' and tags.cell = '{cell}' and tags.`device.kind` = '{device.kind}'"
    kind = where.replace("{cell}", tags["cell"]).replace("{device.kind}", tags["device.kind"])
    runs = client.search_runs([experiment], f"{kind} and tags.`device.unit` = '{tags['device.unit']}'")
    if runs:
        return runs[0]
    kept = {name: tags[name] for name in _KEPT}
    name = f"{tags['cell']} on {tags['device.kind']}, {tags['device.unit']}"
    run = client.create_run(experiment, tags={**kept, "tvmflow.kind": "history"}, run_name=name)
    _take_over(client, workspace, kind, run.info.run_id)
    return client.get_run(run.info.run_id)


def _take_over(client: MlflowClient, workspace: Workspace, where: str, run_id: str) -> None:
    """Move the steps of an older version's history run, which did not distinguish units, to the first measured unit."""
    for old in client.search_runs([e.experiment_id for e in client.search_experiments()], where):
        if old.info.run_id == run_id or "device.unit" in old.data.tags:
            continue
        steps = [m for name in _SHOWN for m in client.get_metric_history(old.info.run_id, name)]
        for start in range(0, len(steps), 800):
            client.log_batch(run_id, steps[start : start + 800])
        for tag in ("tvmflow.steps", "tvmflow.last"):
            if tag in old.data.tags:
                client.set_tag(run_id, tag, old.data.tags[tag])
        client.delete_run(old.info.run_id)
