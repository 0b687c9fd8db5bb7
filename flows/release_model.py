"""Release a cell: compare its newest library with the champion, apply the gate, promote it."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Failed

from flows.faults import explains_faults
from flows.prefect_posts import post_within
from flows.run_page import begin_run, run_name, show_cell
from flows.server_away import keeps_result, run_flow
from flows.stage_tasks import workspace_of
from flows.stopping import cancels_flow
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.pipeline.results import Verdict
from tvmflow.shipping.gates.candidate import Candidate
from tvmflow.support.json_values import from_json, to_json
from tvmflow.tracking.mlflow.releases import promote


def decide(workspace: Workspace, cell: Cell, dry_run: bool = False, replace_missing: str = "") -> Verdict:
    """Apply the gate to a cell's newest library and promote it if it passes. Returns the verdict.

    replace_missing: why a champion is replaced that cannot be compared.
    """
    candidate = Candidate(workspace, cell)
    if candidate.is_champion:
        return Verdict(passed=True, promoted=False, reasons=(), text=f"{name_of(candidate)} is the champion already")
    reasons, comparison = candidate.judge(replace_missing=bool(replace_missing))
    why = f"; the champion is missing: {replace_missing}" if not candidate.is_comparable and replace_missing else ""
    return release(workspace, candidate, reasons, comparison, dry_run, why)


def name_of(candidate: Candidate) -> str:
    """Return the name and version of a candidate."""
    return f"{candidate.version.name} version {candidate.version.version}"


def release(
    workspace: Workspace,
    candidate: Candidate,
    reasons: tuple[str, ...],
    comparison: Comparison | None,
    dry_run: bool = False,
    why: str = "",
) -> Verdict:
    """Promote a judged candidate unless there are reasons against it. Returns the verdict. why: more of its text."""
    name, before = name_of(candidate), champion_of(candidate)
    ratio = f"; latency ratio to it {comparison}" if comparison else ""
    if reasons:
        text = f"{name} is refused, {before} stays: {'; '.join(reasons)}"
    else:
        text = f"{name} {'would be' if dry_run else 'is'} the champion now (was {before}{ratio}{why})"
        if not dry_run:
            promote(workspace, candidate.version, text, evidence_of(workspace, candidate, comparison))
    return Verdict(not reasons, not reasons and not dry_run, reasons, text, comparison)


def champion_of(candidate: Candidate) -> str:
    """Return the version that a candidate would replace."""
    return f"version {candidate.champion.version}" if candidate.champion else "no champion"


def evidence_of(workspace: Workspace, candidate: Candidate, comparison: Comparison | None) -> dict[str, Any]:
    """Return what a verdict rests on, as JSON."""
    evidence = {"comparison": to_json(comparison), "scorecard": to_json(candidate.card)}
    return {**evidence, "rules": workspace.params.release.model_dump()}


@flow(name="release_model", flow_run_name=run_name)
@keeps_result
def release_model(cell: str, root: str = "", dry_run: bool = False, replace_missing: str = "") -> Any:
    """Release the newest library of a cell if the gate passes; otherwise the run fails with state Refused.

    replace_missing: why a champion is replaced whose library is gone or runs no more.
    """
    workspace = workspace_of(root)
    wanted = workspace.params.cell(cell)
    begin_run(workspace, [str(wanted)])
    verdict = decide(workspace, wanted, dry_run, replace_missing)
    post_within(lambda: create_markdown_artifact(verdict.text, key="release", description=f"release of {wanted}"))
    show_cell(workspace, wanted)
    data = verdict.to_json()
    return data if verdict.passed else Failed(name="Refused", message=verdict.text[:500], data=data)


def run_release(workspace: Workspace, cell: Cell, dry_run: bool, replace_missing: str = "") -> Verdict:
    """Run the flow. Returns the verdict, also if the gate refused."""
    with explains_faults(workspace.root), cancels_flow(workspace.root):
        state: Any = run_flow(release_model, str(cell), str(workspace.root), dry_run, replace_missing)
        result = state.result(raise_on_failure=False)
        return from_json(Verdict, result if isinstance(result, dict) else state.result())
