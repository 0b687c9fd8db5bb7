"""Re-tune cells after an upgrade of TVM or of code generation, and release libraries that are not worse.

The recipe keys make every stage miss; tune replays the schedules of the old version and searches only for those that
are lost or slower; then the new library is compared with the champion on the same device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.runtime import deployment
from prefect.states import Cancelled

from flows.notify import as_rows, as_text, notify
from flows.outcomes import final_state, results_of
from flows.prefect_posts import post_within
from flows.recording import record_one
from flows.release_model import decide
from flows.run_page import begin_run, run_name
from flows.stage_tasks import cells_of, workspace_of
from flows.stopping import cancels_flow, is_stopping, stops_on_signals
from flows.walk import COMPILE_STAGES, EVALUATE_STAGES, walk
from tasks.tune import TOOLS
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.results import CellResult, RetuneResult
from tvmflow.report.tables import retune_table
from tvmflow.support.errors import StoreError, TvmflowError
from tvmflow.toolchain.versions import versions
from tvmflow.tracking.mlflow.registry import CHAMPION, version_by_alias


def toolchain_before(workspace: Workspace, cell: Cell) -> dict[str, str] | None:
    """Return the toolchain of the champion, None without a release."""
    champion = version_by_alias(workspace, cell, CHAMPION)
    return None if champion is None else {tool: champion.tags.get(f"toolchain_{tool}", "?") for tool in TOOLS}


def retune_cell(workspace: Workspace, name: str, force: bool) -> RetuneResult:
    """Re-tune one cell with the installed toolchain."""
    walked = CellResult(name)
    result = RetuneResult(name, outcomes=walked.outcomes)
    try:
        cell = workspace.params.cell(name)
        before, now = toolchain_before(workspace, cell), versions(TOOLS)
        result = replace(result, before=before, now=now)
        if before == now and not force:
            verdict = f"the champion was built with this toolchain (TVM {now['tvm']}): nothing to do"
            return replace(result, verdict=verdict)
        stages = (*COMPILE_STAGES, *EVALUATE_STAGES)
        walk(workspace, cell, stages, result=walked)
        record_one(workspace, cell, stages)
        result = replace(result, tuning=_tuning(workspace, cell))
        decision = decide(workspace, cell)
    except TvmflowError as error:
        return replace(result, verdict=f"failed, the champion stays: {error.found}", error=error)
    return replace(result, verdict=decision.text, promoted=decision.promoted, comparison=decision.comparison)


def _tuning(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    from tasks.table import STAGES
    from tvmflow.pipeline.store import Store

    try:
        facts = Store(workspace, STAGES).record_of("tune", cell).facts
    except StoreError:
        return {}
    counts = {name: facts.get(name) for name in ("replayed", "lost", "slower", "searched", "measured")}
    return counts | {"kernels": facts.get("kernels", {})}


@flow(name="retune", flow_run_name=run_name)
def retune(cells: list[str] | None = None, root: str = "", force: bool = False) -> Any:
    """Re-tune the cells (default: all of params.yaml) one after the other, since measurements would disturb each other.

    A run of a deployment, such as the scheduled one, sends its table to flows.notify.
    """
    workspace = workspace_of(root)
    cells = cells_of(workspace, cells)
    begin_run(workspace, cells)
    with stops_on_signals():
        results = [retune_cell(workspace, text, force) for text in cells]
    if is_stopping():
        return Cancelled(message="interrupted by the user")
    rows = as_rows(retune_table(results))
    post_within(lambda: create_table_artifact(key="retune", table=rows, description="re-tune after an upgrade"))
    return final_state(results, _send_table(workspace, results))


def _send_table(workspace: Workspace, results: list[RetuneResult]) -> str:
    """Send the table if this run belongs to a deployment. Returns an error message, '' for success."""
    name = workspace.params.flows.notify
    if name is None or deployment.id is None:
        return ""
    failed, promoted = sum(r.error is not None for r in results), sum(r.promoted for r in results)
    subject = f"tvmflow re-tune: {len(results)} cells, {promoted} promoted, {failed} failed"
    try:
        notify(name, subject, as_text(retune_table(results)))
    except TvmflowError as error:
        return error.found
    return ""


def run_retune(workspace: Workspace, cells: list[str], force: bool) -> list[RetuneResult]:
    with cancels_flow():
        return results_of(retune(cells, str(workspace.root), force, return_state=True), RetuneResult)
