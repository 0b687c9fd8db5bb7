"""The walk of one cell: its stages one after the other, each only when it is needed."""

from __future__ import annotations

from dataclasses import dataclass, field

from flows.stage_tasks import run_stage_task
from tasks.table import STAGES
from tvmflow.ledger.measurements import ensure_recorded
from tvmflow.params import Cell
from tvmflow.store import Plan, Store
from tvmflow.workspace import Workspace

COMPILE_STAGES = ("fetch", "import_model", "quantize", "graph_pack", "tune", "build")
EVALUATE_STAGES = ("deploy", "evaluate")


@dataclass
class WalkResult:
    """What happened to one cell: stage -> hit, restored, made; error in words where it failed."""

    cell: str
    outcomes: dict[str, str] = field(default_factory=dict)
    error: dict[str, str] | None = None
    failed_stage: str | None = None


def walk(workspace: Workspace, cell: Cell, stages: tuple[str, ...], again: tuple[str, ...] = ()) -> dict[str, str]:
    """Run the stages of a cell in order. deploy runs only when evaluate will. Raises the error of the first that fails."""
    outcomes: dict[str, str] = {}
    for stage in stages:
        if not STAGES[stage].is_cached and "evaluate" in stages and _is_hit(workspace, "evaluate", cell) and not again:
            continue
        outcomes[stage] = run_stage_task(workspace, stage, cell, again=stage in again)
    if "evaluate" in stages:
        ensure_recorded(workspace, cell)
    return outcomes


def _is_hit(workspace: Workspace, stage: str, cell: Cell) -> bool:
    plan = Store(workspace, STAGES).plan(stage, cell)
    return isinstance(plan, Plan) and plan.is_hit
