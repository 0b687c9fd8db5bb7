"""Define the cells of params.yaml: those that are run, and those that are switched off."""

from __future__ import annotations

from typing import Any

from tvmflow.config.stage_params import Frozen, Precision
from tvmflow.config.value_types import Line, Name


class Cell(Frozen):
    """One model x target x precision."""

    model: Name
    target: Name
    precision: Precision

    def __str__(self) -> str:
        return f"{self.model}@{self.target}:{self.precision}"

    @property
    def slug(self) -> str:
        """Return the cell as a folder name; unique because names contain no dot."""
        return f"{self.model}.{self.target}.{self.precision}"


class SwitchedOff(Frozen):
    """A cell under `cells:` with `enabled: false`, which only commands that name it run. needs: what it waits for."""

    model: Name
    target: Name
    precision: Precision
    needs: Line = ""

    @property
    def cell(self) -> Cell:
        return Cell(model=self.model, target=self.target, precision=self.precision)


def split_cells(cells: Any) -> tuple[Any, dict[str, Any]]:
    """Return the entries of `cells:` that are enabled, and those that are not, without `enabled`."""
    if not isinstance(cells, dict):
        return cells, {}
    enabled, off = {}, {}
    for name, cell in cells.items():
        if not isinstance(cell, dict) or not isinstance(cell.get("enabled", True), bool):
            enabled[name] = cell
            continue
        kept = {key: value for key, value in cell.items() if key != "enabled"}
        if cell.get("enabled", True):
            enabled[name] = {key: value for key, value in kept.items() if key != "needs"}
        else:
            off[name] = kept
    return enabled, off
