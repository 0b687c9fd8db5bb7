"""Release a cell: compare its newest library with the champion, apply the gate, promote it."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Failed

from flows.prefect_posts import post_within
from flows.run_page import begin_run, run_name, show_cell
from flows.stage_tasks import workspace_of
from flows.stopping import cancels_flow
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.results import Verdict
from tvmflow.shipping.gates.candidate import Candidate
from tvmflow.support.json_values import from_json, to_json
from tvmflow.tracking.mlflow.releases import promote


def decide(workspace: Workspace, cell: Cell, dry_run: bool = False) -> Verdict:
    """Apply the gate to a cell's newest library and promote it if it passes. Returns the verdict."""
    candidate = Candidate(workspace, cell)
    name = f"{candidate.version.name} version {candidate.version.version}"
    if candidate.is_champion:
        return Verdict(passed=True, promoted=False, reasons=(), text=f"{name} is the champion already")
    reasons, comparison = candidate.judge()
    before = f"version {candidate.champion.version}" if candidate.champion else "no champion"
    ratio = f"; latency ratio to it {comparison}" if comparison else ""
    if reasons:
        text = f"{name} is refused, {before} stays: {'; '.join(reasons)}"
    else:
        text = f"{name} {'would be' if dry_run else 'is'} the champion now (was {before}{ratio})"
        if not dry_run:
            evidence = {"comparison": to_json(comparison), "scorecard": to_json(candidate.card)}
            promote(workspace, candidate.version, text, {**evidence, "rules": workspace.params.release.model_dump()})
    return Verdict(not reasons, not reasons and not dry_run, reasons, text, comparison)


@flow(name="release_model", flow_run_name=run_name)
def release_model(cell: str, root: str = "", dry_run: bool = False) -> Any:
    """Release the newest library of a cell if the gate passes; otherwise the run fails with state Refused."""
    workspace = workspace_of(root)
    wanted = workspace.params.cell(cell)
    begin_run(workspace, [str(wanted)])
    verdict = decide(workspace, wanted, dry_run)
    post_within(lambda: create_markdown_artifact(verdict.text, key="release", description=f"release of {wanted}"))
    show_cell(workspace, wanted)
    data = verdict.to_json()
    return data if verdict.passed else Failed(name="Refused", message=verdict.text[:500], data=data)


def run_release(workspace: Workspace, cell: Cell, dry_run: bool) -> Verdict:
    """Run the flow. Returns the verdict, also if the gate refused."""
    with cancels_flow():
        state: Any = release_model(str(cell), str(workspace.root), dry_run, return_state=True)
        result = state.result(raise_on_failure=False)
        return from_json(Verdict, result if isinstance(result, dict) else state.result())
