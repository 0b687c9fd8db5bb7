"""Record what flows made with DVC."""

from __future__ import annotations

from flows.project_pipeline import refresh
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.dvc.repository import publish


def record(workspace: Workspace, cells: list[Cell], stages: tuple[str, ...]) -> dict[Cell, StoreError]:
    """Record the folders of cells with DVC. Returns cell -> why it was not recorded; the others were."""
    refresh(workspace, cells)
    return publish(workspace, cells, stages)


def record_one(workspace: Workspace, cell: Cell, stages: tuple[str, ...]) -> None:
    """Record the folders of a cell with DVC. Raises StoreError."""
    for error in record(workspace, [cell], stages).values():
        raise error
