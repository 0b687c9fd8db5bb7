"""Print what a run would do with each stage of a cell, and which cells failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvmflow.report.console import show_json

if TYPE_CHECKING:
    from tvmflow.api import CellPlan, RunResult

_MOST_DONE = 20  # cells with nothing to do that are shown one by one


def show_plans(plans: Sequence[CellPlan], as_json: bool) -> None:
    """Print a table per cell, then raise the errors of cells that cannot be planned.

    Of many cells those with nothing to do are only counted.
    """
    from tvmflow.api import RunResult
    from tvmflow.report.plans import show_plan

    if as_json:
        show_json({plan.cell: plan.to_json() for plan in plans})
    else:
        pending = [plan for plan in plans if plan.error or plan.todo]
        shown = pending if len(plans) - len(pending) > _MOST_DONE else plans
        for plan in shown:
            show_plan(plan.cell, plan.to_json())
        if len(shown) < len(plans):
            print(f"up to date: {len(plans) - len(pending)} of {len(plans)} cells")
    raise_failures([RunResult(plan.cell, {}, plan.error, "plan") for plan in plans if plan.error])


def raise_failures(results: Sequence[RunResult]) -> None:
    """Name the failed cells on stderr and raise their errors as one; do nothing if none failed."""
    from tvmflow.api.runs import raise_failures

    for result in results:
        if result.error:
            print(f"failed: {result.cell} in {result.failed_stage}", file=sys.stderr)
    raise_failures(results)
