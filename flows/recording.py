"""Record what flows made with DVC, and bring what colleagues made."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.logging import get_run_logger

from flows.project_pipeline import refresh
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.dvc.remote_recipes import bring
from tvmflow.tracking.dvc.repository import publish


def bring_made(workspace: Workspace, cells: Sequence[str]) -> None:
    """Bring the outputs of cells that colleagues made from the DVC remote."""
    bring(workspace, [workspace.params.cell(cell) for cell in cells], STAGES, get_run_logger().info)


def record(workspace: Workspace, cells: list[Cell], stages: tuple[str, ...]) -> dict[Cell, StoreError]:
    """Record the folders of cells with DVC. Returns cell -> why it was not recorded; the others were."""
    refresh(workspace, cells)
    return publish(workspace, cells, stages)


def record_one(workspace: Workspace, cell: Cell, stages: tuple[str, ...]) -> None:
    """Record the folders of a cell with DVC. Raises StoreError."""
    for error in record(workspace, [cell], stages).values():
        raise error
