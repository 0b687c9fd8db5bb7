"""Run the stages of one cell in order, each only when it is needed."""

from __future__ import annotations

import itertools

from flows.stage_tasks import run_stage_task
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.results import CellResult
from tvmflow.pipeline.store import Plan, Store
from tvmflow.tracking.mlflow.recorded import record_or_keep

# A device is needed from the first stage on that is never cached.
COMPILE_STAGES = tuple(itertools.takewhile(lambda name: STAGES[name].is_cached, STAGES))
EVALUATE_STAGES = tuple(name for name in STAGES if name not in COMPILE_STAGES)


def walk(
    workspace: Workspace,
    cell: Cell,
    stages: tuple[str, ...],
    again: tuple[str, ...] = (),
    result: CellResult | None = None,
) -> dict[str, str]:
    """Run the stages of a cell in order. Raises the first error; `result` records the progress.

    A stage that is never cached runs only if a later one runs, or if it is the last.
    """
    result, store = result or CellResult(str(cell)), Store(workspace, STAGES)
    for at, stage in enumerate(stages):
        result.failed_stage = stage
        later = [name for name in stages[at + 1 :] if STAGES[name].is_cached]
        if not STAGES[stage].is_cached and later and not again and _are_found(store, cell, later):
            continue
        result.outcomes[stage] = run_stage_task(workspace, stage, cell, again=stage in again)
    if any(STAGES[stage].has_metrics for stage in stages):
        result.failed_stage = "record"
        record_or_keep(workspace, cell)
    result.failed_stage = None
    return result.outcomes


def _are_found(store: Store, cell: Cell, stages: list[str]) -> bool:
    """Return whether the outputs of these stages exist, here or where they are restored from."""
    plans = {plan.stage.name: plan for plan in store.foresee(cell) if isinstance(plan, Plan)}
    return all(name in plans and (plans[name].is_hit or plans[name].restorable is not None) for name in stages)
