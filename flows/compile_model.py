"""Compile a model to a library: fetch, import_model, quantize, graph_pack, tune, build."""

from __future__ import annotations

from prefect import flow

from flows.recording import record_one
from flows.run_page import begin_run, run_name
from flows.stage_tasks import workspace_of
from flows.walk import COMPILE_STAGES, walk


@flow(name="compile_model", flow_run_name=run_name)
def compile_model(cell: str, root: str = "") -> dict[str, str]:
    """Compile one cell and record its outputs with DVC. Returns stage -> hit, restored or made."""
    workspace = workspace_of(root)
    wanted = workspace.params.cell(cell)
    begin_run(workspace, [str(wanted)])
    outcomes = walk(workspace, wanted, COMPILE_STAGES)
    record_one(workspace, wanted, COMPILE_STAGES)
    return outcomes
