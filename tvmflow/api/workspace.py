"""Resolve the workspace and the cells of an API call."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace

# A workspace, its folder, or None for the nearest one above the current folder.
Where = Workspace | Path | str | None
# `model@target:precision`, a name under `cells:`, or a Cell.
CellName = Cell | str

__all__ = ["CellName", "Where", "cell_of", "cells_of", "find_workspace", "names", "open_workspace"]


def located(workspace: Where = None) -> Workspace:
    """Return the workspace without that validation, which needs TVM. Raises UsageError."""
    return workspace if isinstance(workspace, Workspace) else find_workspace(Path(workspace) if workspace else None)


def open_workspace(workspace: Where = None) -> Workspace:
    """Return the workspace after validating its params.yaml against the registries. Raises UsageError."""
    from tvmflow.pipeline.check_params import check_rows

    where = located(workspace)
    check_rows(where.params)
    where.digests.keep_in(where.common / ".digests.json")
    return where


def cell_of(workspace: Workspace, cell: CellName) -> Cell:
    """Return the cell by name. Raises UnknownNameError with the legal names."""
    return cell if isinstance(cell, Cell) else workspace.params.cell(cell)


def cells_of(workspace: Workspace, cells: Iterable[CellName]) -> list[Cell]:
    """Return cells by name; by default all cells of params.yaml."""
    return [cell_of(workspace, cell) for cell in cells] or list(workspace.params.cells.values())


def names(workspace: Where = None) -> dict[str, list[str]]:
    """Return all names that a user may type: cell (those under `cells:`, then every model@target:precision), target,
    precision. Raises UsageError without a workspace.
    """
    from tvmflow.config.params import PRECISIONS

    params = located(workspace).params
    every = [
        f"{model}@{target}:{precision}"
        for model in params.models
        for target in params.targets
        for precision in PRECISIONS
    ]
    return {"cell": [*params.cells, *every], "target": list(params.targets), "precision": list(PRECISIONS)}
