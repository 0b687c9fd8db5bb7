"""Print what a run would do with each stage of a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.stage import AnyStage
from tvmflow.pipeline.store import Store, Undecided
from tvmflow.pipeline.unmeasured import NOT_MEASURED as NOT_MEASURED
from tvmflow.report.console import Grid, grid, show_table
from tvmflow.setup.preflight import check_cell, why_no_device
from tvmflow.support.errors import TvmflowError

Rows = list[dict[str, str]]


def plan_rows(workspace: Workspace, cell: Cell, stages: Mapping[str, AnyStage]) -> Rows:
    """Return a row per stage: hit, restore, miss or waits, and why. Raises the error of a cell that cannot be run."""
    rows = []
    for plan in Store(workspace, stages).foresee(cell):
        if isinstance(plan, Undecided):
            row = {"state": "waits", "why": f"decided when {plan.waits_for} is done", "key": ""}
        elif plan.restorable is not None:
            row = {"state": "restore", "why": f"made before; {plan.reason}", "key": plan.key[:12]}
        else:
            row = {"state": "hit" if plan.is_hit else "miss", "why": plan.reason, "key": plan.key[:12]}
        rows.append({"stage": plan.stage.name, **row})
    return rows


class Planned(NamedTuple):
    """cell -> its rows; cell -> error of those that cannot be run, which have one row; cell -> why its device cannot be
    used.
    """

    rows: dict[str, Rows]
    errors: dict[str, TvmflowError]
    no_device: dict[str, TvmflowError]


def plan_cells(workspace: Workspace, cells: list[Cell], stages: Mapping[str, AnyStage], look: bool = False) -> Planned:
    """Plan every stage of cells.

    look: also check what the pending stages need: packages, files, the model's header, compiler, device, disk.
    """
    planned = Planned({}, {}, {})
    rows, errors, _ = planned
    devices: dict[str, TvmflowError | None] = {}
    workspace, fine = workspace.at_once(), set[str]()
    for cell in cells:
        try:
            rows[str(cell)] = plan_rows(workspace, cell, stages)
            if look:
                todo = [stages[row["stage"]] for row in rows[str(cell)] if row["state"] not in ("hit", "restore")]
                check_cell(workspace, cell, todo, fine)
                if error := why_no_device(workspace, cell, todo, devices):
                    planned.no_device[str(cell)] = error
        except TvmflowError as error:
            errors[str(cell)] = error
            rows[str(cell)] = [{"stage": "-", "state": "refused", "why": error.found, "key": ""}]
    return planned


_FEW = 3  # stages that are named one by one
PLAN_COLUMNS = ("stage", "state", "key", "why")


def show_plan(name: str, rows: Rows) -> None:
    """Print the rows of one cell."""
    show_table(name, PLAN_COLUMNS, ([row[column] for column in PLAN_COLUMNS] for row in rows))


class ListedCell(Protocol):
    """The progress of a cell under `cells:`: the stages to do, and what is wrong with it."""

    @property
    def name(self) -> str: ...
    @property
    def cell(self) -> str: ...
    @property
    def todo(self) -> tuple[str, ...]: ...
    @property
    def error(self) -> str | None: ...
    @property
    def warnings(self) -> tuple[str, ...]: ...
    @property
    def off(self) -> str | None: ...
    @property
    def next_step(self) -> str: ...
    @property
    def built(self) -> bool: ...


def status_table(root: Path, cells: Sequence[ListedCell]) -> Grid:
    """Return the progress of each cell as a table."""
    rows = []
    for cell in cells:
        todo, error = cell.todo, cell.error
        few = len(todo) <= _FEW
        state = (
            f"to do: {', '.join(todo) if few else f'{len(todo)} stages from {todo[0]} on'}" if todo else "up to date"
        )
        if cell.built:
            state = f"{NOT_MEASURED}; {state}"
        if cell.off is not None:
            state = f"off, needs {cell.off}" if cell.off else "off"
        shown = [f"cannot be run: {error}" if error else state, *cell.warnings]
        rows.append((cell.name, cell.cell, ", ".join(shown), cell.next_step))
    columns = ("name", "cell", "state", "next")
    return grid(f"cells of {root}", columns, rows, columns)
