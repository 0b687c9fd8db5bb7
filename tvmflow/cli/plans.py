"""Print what a run would do with each stage of a cell, and which cells failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvmflow.report.console import show_json

if TYPE_CHECKING:
    from tvmflow.api import CellPlan, RunResult


def show_plans(plans: Sequence[CellPlan], as_json: bool) -> None:
    """Print a table per cell, then raise the errors of cells that cannot be planned."""
    from tvmflow.api import RunResult
    from tvmflow.report.plans import show_plan

    if as_json:
        show_json({plan.cell: plan.to_json() for plan in plans})
    else:
        for plan in plans:
            show_plan(plan.cell, plan.to_json())
    raise_failures([RunResult(plan.cell, {}, plan.error, "plan") for plan in plans if plan.error])


def raise_failures(results: Sequence[RunResult]) -> None:
    """Name the failed cells on stderr and raise their errors as one; do nothing if none failed."""
    from tvmflow.api.runs import raise_failures

    for result in results:
        if result.error:
            print(f"failed: {result.cell} in {result.failed_stage}", file=sys.stderr)
    raise_failures(results)
