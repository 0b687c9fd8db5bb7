"""Re-tune champions whose recipe changed, and release libraries that are not worse.

After an upgrade of a tool the recipe keys make stages miss; tune replays the schedules of the old version and searches
only for those that are lost or slower; then the new library is compared with the champion on the same device. Cells of
one device run one after the other, those of several devices in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.runtime import deployment
from prefect.states import Cancelled

from flows.dask_runner import task_runner
from flows.faults import explains_faults
from flows.notify import as_rows, as_text, notify
from flows.outcomes import final_state, results_of
from flows.prefect_posts import post_within
from flows.recording import bring_made
from flows.retune_cell import retune_cell
from flows.run_page import begin_run, run_name
from flows.server_away import keeps_result, run_flow
from flows.stage_tasks import workspace_of
from flows.stopping import cancels_flow, is_stopping, stops_on_signals
from tvmflow.config.workspace import Workspace
from tvmflow.devices.probe_driver import ask_drivers
from tvmflow.pipeline.results import RetuneResult
from tvmflow.report.retune_tables import retune_table
from tvmflow.shipping.retune_plan import Choice, choose, device_group
from tvmflow.support.errors import StageError, TvmflowError
from tvmflow.support.json_values import from_json, to_json
from tvmflow.tracking.dvc.commit_branch import changed_files, commit_to_branch, how_to_commit
from tvmflow.tracking.mlflow.registry import CHAMPION
from tvmflow.tracking.moments import NOW
from tvmflow.tracking.regressions import regressions_between


@task(name="retune_device", task_run_name="re-tune on {device}", cache_policy=NO_CACHE, persist_result=False)
def retune_device(device: str, cells: list[str], root: str, force: bool) -> list[Any]:
    """Re-tune the cells of one device one after the other, since measurements would disturb each other."""
    workspace = workspace_of(root)
    return [to_json(retune_cell(workspace, cell, force)) for cell in cells if not is_stopping()]


@flow(name="retune", flow_run_name=run_name)
@keeps_result
def retune(cells: list[str] | None = None, root: str = "", force: bool = False) -> Any:
    """Re-tune cells: by default those under `cells:` of params.yaml; all other champions are in the table too.

    A run of a deployment, such as the scheduled one, sends its table to flows.notify.
    """
    workspace = workspace_of(root)
    choices = choose(workspace, [workspace.params.cell(cell) for cell in cells] if cells else None)
    begin_run(workspace, wanted := [choice.name for choice in choices if not choice.idle])
    asked = [choice.cell.target for choice in choices if choice.cell and not choice.idle]
    ask_drivers(workspace.root, workspace.params, asked)
    bring_made(workspace, wanted)
    with stops_on_signals():
        done = _run_devices(workspace, _by_device(workspace, choices), force)
    if is_stopping():
        return Cancelled(message="interrupted by the user")
    results = [done[one.name] if one.name in done else _idle(one) for one in choices]
    rows = as_rows(retune_table(results))
    post_within(lambda: create_table_artifact(key="retune", table=rows, description="re-tune after an upgrade"))
    said, wrong = _commit(workspace, results)
    sent = _send_table(workspace, results, said)
    return final_state(results, "; ".join(filter(None, (wrong, sent))))


def _run_devices(workspace: Workspace, groups: dict[str, list[str]], force: bool) -> dict[str, RetuneResult]:
    """Re-tune the cells of each device, flows.workers devices at a time. Returns cell -> result."""
    waiting, running = list(groups.items()), dict[Any, list[str]]()
    done: dict[str, RetuneResult] = {}
    while waiting or running:
        while waiting and len(running) < workspace.params.flows.workers:
            device, names = waiting.pop(0)
            running[retune_device.submit(device, names, str(workspace.root), force)] = names
        future = next(iter(as_completed(list(running))))
        names, returned = running.pop(future), future.result(raise_on_failure=False)
        if isinstance(returned, list):
            done |= {result.cell: result for result in (from_json(RetuneResult, one) for one in returned)}
        else:  # the process or machine that ran the task is gone
            lost = StageError(f"the worker that re-tuned it was lost: {returned}"[:500], hint="run the command again")
            verdict = f"failed, the champion stays: {lost.found}"
            done |= {name: RetuneResult(name, verdict=verdict, error=lost) for name in names}
    return done


def _by_device(workspace: Workspace, choices: Sequence[Choice]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for choice in choices:
        if choice.cell is not None and not choice.idle:
            groups.setdefault(device_group(workspace, choice.cell), []).append(choice.name)
    return groups


def _idle(choice: Choice) -> RetuneResult:
    tags = choice.champion.tags if choice.champion else {}
    before = {"tvm": tags.get("toolchain_tvm", "?")} if choice.champion else None
    return RetuneResult(choice.name, verdict=choice.idle, before=before)


def _commit(workspace: Workspace, results: Sequence[RetuneResult]) -> tuple[str, str]:
    """Commit the DVC files if retune.commit_branch names a branch. Returns what was done or is to be done, and an
    error message; both may be ''.
    """
    rules = workspace.params.retune
    if rules.commit_branch is None:
        files = changed_files(workspace)
        return how_to_commit(files) if files else "", ""
    worked = [result.cell for result in results if result.outcomes and result.error is None]
    names = "\n".join(worked)
    message = f"Record a re-tune of {len(worked)} cells" + (f"\n\n{names}" if names else "")
    try:
        return commit_to_branch(workspace, rules.commit_branch, rules.commit_remote, message), ""
    except TvmflowError as error:
        return "", f"not committed: {error.found}"


def _send_table(workspace: Workspace, results: list[RetuneResult], said: str) -> str:
    """Send the table if this run belongs to a deployment. Returns an error message, '' for success."""
    name = workspace.params.flows.notify
    if name is None or deployment.id is None:
        return ""
    promoted, failed = sum(r.promoted for r in results), sum(r.error is not None for r in results)
    proposed = [result.cell for result in results if result.proposed]
    waiting = f"{len(proposed)} proposed, " if proposed else ""
    subject = f"tvmflow re-tune: {len(results)} cells, {promoted} promoted, {waiting}{failed} failed"
    try:
        found = regressions_between(workspace, CHAMPION, NOW)
        subject += f", {len(found.worse)} worse than their champions" if found.worse else ""
        fleet = [found.text]
    except TvmflowError as error:  # such as: no champion yet
        fleet = [f"the fleet was not compared: {error.found}"]
    lines = [f"{cell} waits for 'tvmflow promote {cell} --proposal'" for cell in proposed]
    try:
        notify(name, subject, "\n".join([as_text(retune_table(results)), *fleet, *lines, *([said] if said else [])]))
    except TvmflowError as error:
        return error.found
    return ""


def run_retune(workspace: Workspace, cells: list[str] | None, force: bool) -> list[RetuneResult]:
    """Run the flow with the task runner of params.yaml. cells: None for all."""
    runner = task_runner(workspace.params.flows)
    with explains_faults(workspace.root), cancels_flow(workspace.root):
        state = run_flow(retune.with_options(task_runner=runner), cells, str(workspace.root), force)
        return results_of(state, RetuneResult)
