"""Keep the tables of results in git: update, check, quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.api.workspace import CellName, Where, cell_of, open_workspace
from tvmflow.support.errors import StoreError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from tvmflow.config.workspace import Workspace
    from tvmflow.tracking.result_check import Finding
    from tvmflow.tracking.result_tables import ResultRow


def update_results(*models: str, workspace: Where = None) -> tuple[Path, ...]:
    """Write results/MODEL.yaml of these models (default: all that were measured). Returns the files that changed.
    Raises StoreError if nothing was measured.
    """
    from tvmflow.tracking.result_check import updated
    from tvmflow.tracking.result_tables import read_table, table_path, target_of, write_table

    where = open_workspace(workspace)
    drop, changed = where.params.release.max_accuracy_drop, []
    for model, rows in _measured(where, models).items():
        path = table_path(where, model)
        before = path.read_bytes() if path.exists() else b""
        table = updated(read_table(where, model), rows, drop)
        listed = tuple(row for row in table.rows if target_of(row.cell) in where.params.targets)
        write_table(where, table.model_copy(update={"rows": listed}))
        if path.read_bytes() != before:
            changed.append(path)
    return tuple(changed)


def check_results(*models: str, workspace: Where = None) -> tuple[Finding, ...]:
    """Return what differs between results/ and the measurements in MLflow; see `fails`. Raises StoreError without
    measurements.
    """
    from tvmflow.tracking.result_check import check_table
    from tvmflow.tracking.result_tables import read_table

    where = open_workspace(workspace)
    drop = where.params.release.max_accuracy_drop
    return tuple(
        found
        for model, rows in _measured(where, models).items()
        for found in check_table(read_table(where, model), rows, drop)
    )


def quarantine_cell(cell: CellName, reason: str, issue: str, until: date | str, workspace: Where = None) -> None:
    """Let no gate pass a cell until a day is over. issue: where it is worked on. Raises UsageError."""
    from tvmflow.tracking.result_tables import Held, hold

    where = open_workspace(workspace)
    try:
        day = date.fromisoformat(until) if isinstance(until, str) else until
        held = Held(cell=str(cell_of(where, cell)), reason=reason, issue=issue, until=day)
    except ValueError as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(f"no entry of a quarantine: {said}", "one line each, and a day as 2026-12-31") from None
    if held.is_over():
        raise UsageError(f"a quarantine until {day}, which is over", "today or a later day")
    hold(where, held)


def lift_quarantine(cell: CellName, workspace: Where = None) -> None:
    """End the quarantine of a cell. Raises StoreError if it is in none."""
    from tvmflow.tracking.result_tables import lift

    where = open_workspace(workspace)
    lift(where, cell_of(where, cell))


def _measured(workspace: Workspace, models: Sequence[str]) -> dict[str, list[ResultRow]]:
    from tvmflow.tracking.mlflow.history import overview
    from tvmflow.tracking.result_tables import NEWEST, rows_of

    for model in models:
        if model not in workspace.params.models:
            raise UnknownNameError(f"no model {model!r}", legal=sorted(workspace.params.models))
    rows: list[dict[str, Any]] = []
    for one in models or (None,):
        rows += overview(workspace, one, newest=NEWEST)
    found = {model: of_model for model, of_model in rows_of(rows).items() if model in workspace.params.models}
    missing = [model for model in models if model not in found]
    if missing or not found:
        raise StoreError(
            f"nothing of {', '.join(missing) or 'this workspace'} was measured yet",
            "a measurement in MLflow",
            "run 'tvmflow run CELL'; in another clone set MLFLOW_TRACKING_URI or run 'tvmflow init --rebuild'",
        )
    return found
