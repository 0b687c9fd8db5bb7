"""compile_model: from a model's name to a library: fetch, import_model, quantize, graph_pack, tune, build."""

from __future__ import annotations

from prefect import flow

from flows.stage_tasks import workspace_of
from flows.walk import COMPILE_STAGES, walk
from tvmflow.ledger.dvc import publish


@flow(name="compile_model")
def compile_model(cell: str, root: str) -> dict[str, str]:
    """Compile one cell and record with DVC what was made. Returns stage -> hit, restored or made."""
    workspace = workspace_of(root)
    found = workspace.params.cell(cell)
    outcomes = walk(workspace, found, COMPILE_STAGES)
    publish(workspace, [found], COMPILE_STAGES)
    return outcomes
