"""Show what a run would do with each stage of a cell, and what failed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tvmflow.errors import TvmflowError
from tvmflow.report.console import show_json

if TYPE_CHECKING:
    from tvmflow.params import Cell
    from tvmflow.workspace import Workspace


def show_plans(workspace: Workspace, cells: list[Cell], as_json: bool, look: bool = False) -> None:
    """Print a table per cell; `look` into the model files too. Raises what refuses a cell, after the plans of the others."""
    from tasks.table import STAGES
    from tvmflow.report.plans import plan_cells, show_plan

    plans, refused = plan_cells(workspace, cells, STAGES, look)
    if as_json:
        show_json(plans)
    for name, rows in plans.items():
        if not as_json:
            show_plan(name, rows)
    if refused:
        raise_failures([{"cell": c, "failed_stage": "plan", "error": e.to_json()} for c, e in refused.items()])


def raise_failures(failed: list[dict[str, Any]]) -> None:
    """Name the cells that failed and raise their errors as one."""
    from tvmflow.errors import from_json

    for result in failed:
        print(f"failed: {result['cell']} in {result['failed_stage']}", file=sys.stderr)
    if len(failed) == 1:
        raise from_json(failed[0]["error"])
    raise TvmflowError("\n".join(f"{r['cell']} ({r['failed_stage']}): {from_json(r['error'])}" for r in failed))
