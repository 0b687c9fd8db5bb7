"""Re-tune one cell: run its stages, judge the new library beside the champion, then promote it, propose it or leave it.

In:  a champion that was made by another recipe than the present one
Out: a RetuneResult; an error of any kind is part of it, so that the other cells go on
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flows.faults import explain_in_cell
from flows.recording import record_one
from flows.release_model import champion_of, evidence_of, name_of, release
from flows.walk import COMPILE_STAGES, EVALUATE_STAGES, walk
from tasks.table import STAGES
from tasks.tune import TOOLS
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.pipeline.results import CellResult, RetuneResult, Verdict
from tvmflow.pipeline.store import Store
from tvmflow.shipping.gates.candidate import Candidate
from tvmflow.shipping.retune_plan import champion_changes, up_to_date
from tvmflow.support.errors import StoreError
from tvmflow.support.files import digest_of
from tvmflow.toolchain.versions import versions
from tvmflow.tracking.mlflow.proposals import Judgement, judged_before, keep_proposal, keep_refusal
from tvmflow.tracking.mlflow.registry import CHAMPION, PROPOSAL, version_by_alias
from tvmflow.tracking.mlflow.releases import releases

_STAGES = (*COMPILE_STAGES, *EVALUATE_STAGES)


def retune_cell(workspace: Workspace, name: str, force: bool) -> RetuneResult:
    """Re-tune one cell with the installed toolchain."""
    walked = CellResult(name)
    result = RetuneResult(name, outcomes=walked.outcomes)
    try:
        cell = workspace.params.cell(name)
        champion = version_by_alias(workspace, cell, CHAMPION)
        before = {tool: champion.tags.get(f"toolchain_{tool}", "?") for tool in TOOLS} if champion else None
        result = replace(result, before=before, now=versions(TOOLS))
        changes, _ = champion_changes(workspace, cell, champion, STAGES)
        if not changes and not force:
            return replace(result, verdict=up_to_date(champion))
        result = replace(result, changes=changes)
        walk(workspace, cell, _STAGES, result=walked)
        record_one(workspace, cell, _STAGES)
        result = replace(result, tuning=_tuning(workspace, cell))
        verdict = judge(workspace, cell)
    except Exception as error:
        known = explain_in_cell(error, workspace.root, f"re-tuning {name}")
        return replace(result, verdict=f"failed, the champion stays: {known.found}", error=known)
    return replace(
        result,
        verdict=verdict.text,
        promoted=verdict.promoted,
        proposed=verdict.proposed,
        comparison=verdict.comparison,
    )


def judge(workspace: Workspace, cell: Cell) -> Verdict:
    """Judge a cell's newest library for a re-tune; promote or propose it if it passes.

    What was refused or proposed is not measured again while its recipe, its champion and the rules are the same, so
    that noise does not decide after enough weeks. What a person took back stays so.
    """
    candidate = Candidate(workspace, cell)
    name = name_of(candidate)
    if candidate.is_champion:
        return Verdict(passed=True, promoted=False, reasons=(), text=f"{name} is the champion already")
    if _was_taken_back(workspace, cell, candidate.version.version):
        text = (
            f"{name} was taken back by a rollback, {champion_of(candidate)} stays: only 'tvmflow promote' releases it"
        )
        return Verdict(passed=False, promoted=False, reasons=(text,), text=text)
    build_key = read_record(workspace.folder("build", cell) / RECORD_NAME).key
    basis = digest_of({"build": build_key, "rules": workspace.params.release.model_dump()})
    known = judged_before(candidate.version, candidate.champion, basis)
    if known is not None:
        return _as_before(cell, *known)
    reasons, comparison = candidate.judge()
    beside = candidate.champion.version if candidate.champion else ""
    evidence = evidence_of(workspace, candidate, comparison)
    if not reasons and workspace.params.retune.promote == "never":
        ratio = f"; latency ratio to it {comparison}" if comparison else ""
        text = f"{name} passes the gate (champion: {champion_of(candidate)}{ratio})"
        evidence.pop("scorecard")  # the version's measurement has it
        keep_proposal(workspace, candidate.version, Judgement(beside, basis, text, evidence=evidence))
        text = f"{text}; it waits: 'tvmflow promote {cell} --proposal' accepts it"
        return Verdict(True, False, (), text, comparison, proposed=True)
    verdict = release(workspace, candidate, reasons, comparison)
    if reasons and candidate.is_comparable:
        keep_refusal(workspace, candidate.version, Judgement(beside, basis, "; ".join(reasons)))
    return verdict


def _was_taken_back(workspace: Workspace, cell: Cell, version: str) -> bool:
    last = releases(workspace, cell)[-1:]
    return any(change.what == "rollback" and change.before == version for change in last)


def _as_before(cell: Cell, what: str, known: Judgement) -> Verdict:
    """Return the verdict of an earlier re-tune, which still holds."""
    day = known.when[:10]
    if what == PROPOSAL:
        text = f"proposed on {day}, waits: {known.text}; 'tvmflow promote {cell} --proposal' accepts it"
        return Verdict(True, False, (), text, proposed=True)
    text = (
        f"refused on {day}, not judged again until its recipe, its champion or release: changes: {known.text}; "
        f"'tvmflow promote {cell}' judges it now"
    )
    return Verdict(False, False, (known.text,), text)


def _tuning(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    try:
        facts = Store(workspace, STAGES).record_of("tune", cell).facts
    except StoreError:
        return {}
    counts = {name: facts.get(name) for name in ("replayed", "lost", "slower", "searched", "measured")}
    return counts | {"kernels": facts.get("kernels", {})}
