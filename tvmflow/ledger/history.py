"""Read measurements back from MLflow: for the command line and the report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tvmflow.errors import StoreError, first_line
from tvmflow.ledger.registry import all_aliases, registry_name
from tvmflow.ledger.store_paths import REBUILD, open_mlflow
from tvmflow.params import Cell
from tvmflow.workspace import Workspace


def all_measurements(workspace: Workspace) -> dict[str, list[dict[str, Any]]]:
    """Return cell -> its measurements, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(workspace, ""):
        found.setdefault(row["cell"], []).append(row)
    return found


def measurements(workspace: Workspace, cell: Cell) -> list[dict[str, Any]]:
    """Return the measurements of one cell, oldest first."""
    return _rows(workspace, f" and tags.cell = '{cell}'")


def champion_accuracy(workspace: Workspace, run_id: str) -> float | None:
    """Return the accuracy that a registered library was measured with, None where its model has no data set."""
    from mlflow.exceptions import MlflowException

    try:
        value = open_mlflow(workspace).get_run(run_id).data.metrics.get("accuracy")
    except MlflowException as error:
        raise StoreError(
            f"the measurement of the champion is gone from MLflow: {first_line(error)}", hint=REBUILD
        ) from None
    return None if value is None else float(value)


def _rows(workspace: Workspace, where: str) -> list[dict[str, Any]]:
    client = open_mlflow(workspace)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    aliases = all_aliases(workspace)
    versions: dict[tuple[str, str], str] = {}
    for name in aliases:
        for version in client.search_model_versions(f"name = '{name}'"):
            versions[name, version.tags.get("library_sha256", "")] = str(version.version)
    runs = _runs(client, experiments, f"tags.`tvmflow.kind` = 'measurement'{where}") if experiments else []
    rows = [_row(run, aliases, versions) for run in runs if run.data.tags.get("tvmflow.complete") == "true"]
    return sorted(rows, key=lambda row: row["time_ms"])


def _runs(client: Any, experiments: list[str], where: str) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = client.search_runs(experiments, where, max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _row(run: Any, aliases: dict[str, dict[str, str]], versions: dict[tuple[str, str], str]) -> dict[str, Any]:
    tags, metrics = run.data.tags, run.data.metrics
    name = registry_name(Cell(model=tags["model"], target=tags["target"], precision=tags["precision"]))
    number = versions.get((name, tags["library.sha256"]), "")
    roles = [alias for alias, version in aliases.get(name, {}).items() if version == number and number]
    median = metrics.get("latency_ms.median")
    return {
        "cell": tags["cell"],
        "run_id": run.info.run_id,
        "time_ms": run.info.start_time,
        "when": datetime.fromtimestamp(run.info.start_time / 1000, UTC).strftime("%Y-%m-%d %H:%M"),
        "tvm": tags.get("toolchain.tvm", "?"),
        "device": tags["device.kind"],
        "accuracy": f"{metrics['accuracy']:.2%}" if "accuracy" in metrics else "-",
        "latency": "unsteady" if median is None else f"{median:.3g} ms",
        "latency_ms": median,
        "library": tags["library.sha256"][:12],
        "version": f"{number} {' '.join(roles)}".strip(),
    }
