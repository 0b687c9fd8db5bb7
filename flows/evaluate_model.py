"""Deploy a built library on its device, measure it, and record the scorecard."""

from __future__ import annotations

from prefect import flow

from flows.recording import record_one
from flows.run_page import begin_run, run_name, show_cell
from flows.stage_tasks import workspace_of
from flows.walk import EVALUATE_STAGES, walk


@flow(name="evaluate_model", flow_run_name=run_name)
def evaluate_model(cell: str, root: str = "", again: bool = False) -> dict[str, str]:
    """Deploy and evaluate one built cell. again: measure even when nothing changed."""
    workspace = workspace_of(root)
    wanted = workspace.params.cell(cell)
    begin_run(workspace, [str(wanted)])
    outcomes = walk(workspace, wanted, EVALUATE_STAGES, again=("evaluate",) if again else ())
    show_cell(workspace, wanted)
    record_one(workspace, wanted, EVALUATE_STAGES)
    return outcomes
