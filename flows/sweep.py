"""Run many cells, several at a time, with one summary. A failed cell does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from httpx import HTTPError
from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Cancelled, Failed

from flows.dask_runner import task_runner
from flows.faults import explain_in_cell, explains_faults
from flows.outcomes import final_state, results_of
from flows.prefect_posts import post_within
from flows.preflight import preflight
from flows.project_pipeline import refresh
from flows.recording import bring_made, record
from flows.run_page import begin_run, run_name, show_cell
from flows.server_away import keeps_result, run_flow
from flows.stage_tasks import cells_of, workspace_of
from flows.stopping import cancels_flow, is_stopping, stops_on_signals
from flows.walk import COMPILE_STAGES, EVALUATE_STAGES, walk, walk_units
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.devices.probe_driver import ask_drivers
from tvmflow.pipeline.results import CellResult
from tvmflow.pipeline.unmeasured import NOT_MEASURED, place_without_device, stages_in_workspace
from tvmflow.setup.preflight import ask_processors
from tvmflow.support.errors import TvmflowError
from tvmflow.support.json_values import from_json, to_json
from tvmflow.tracking.mlflow.recorded import record_kept


@task(name="run_cell", task_run_name="{cell}", cache_policy=NO_CACHE, persist_result=False)
def run_cell(
    cell: str,
    root: str,
    stages: tuple[str, ...],
    again: tuple[str, ...],
    units: tuple[str, ...] = (),
    refused: dict[str, Any] | None = None,
    unmeasured: str = "",
) -> Any:
    """Run one cell; a failure is part of the result. refused: the result of a cell that cannot be run. unmeasured: why
    it is built without its device, and not measured.
    """
    if refused is not None:
        return _failed_state(from_json(CellResult, refused))
    workspace = workspace_of(root)
    result, wanted = CellResult(cell, unmeasured=unmeasured), workspace.params.cell(cell)
    try:
        if unmeasured:
            walk(place_without_device(workspace, wanted, STAGES), wanted, COMPILE_STAGES, (), result)
        else:
            walk_units(workspace, wanted, units, stages, again, result)
    except HTTPError:  # Prefect's server is away, which ends the flow
        raise
    except Exception as error:
        what = f"{result.failed_stage or 'reading params.yaml'} of {cell}"
        result.error = explain_in_cell(error, workspace.root, what)
        return _failed_state(result)
    if not unmeasured:
        show_cell(workspace, wanted)
    return to_json(result)


def _failed_state(result: CellResult) -> Any:
    found = result.error.found[:500] if result.error else ""
    return Failed(message=f"{result.failed_stage}: {found}", data=to_json(result))


@flow(name="sweep", flow_run_name=run_name)
@keeps_result
def sweep(
    cells: list[str] | None = None,
    root: str = "",
    again: tuple[str, ...] = (),
    units: tuple[str, ...] = (),
    refused: dict[str, dict[str, Any]] | None = None,
    unmeasured: dict[str, str] | None = None,
) -> Any:
    """Run every stage of the cells (default: all of params.yaml) in the workspace `root` (default: the nearest).

    Returns one CellResult per cell, as JSON, in the order of `cells`. again: stages to run even when nothing
    changed. units: of the devices to measure on again, all for each; by default any. refused: results of cells that
    cannot be run, which are skipped. unmeasured: cell -> why it is built without its device, and not measured.
    """
    workspace = workspace_of(root)
    cells = cells_of(workspace, cells)
    begin_run(workspace, cells)
    if refused is None:  # a deployment's run: 'tvmflow run' did it before it checked the cells
        ask_drivers(workspace.root, workspace.params, [workspace.params.cell(cell).target for cell in cells])
        bring_made(workspace, cells)
        wanted = [workspace.params.cell(cell) for cell in cells]
        unknown = ask_processors(workspace, wanted)
        found, missing = preflight(workspace, wanted, unknown, show_progress=True, measure=bool(again or units))
        refused, unmeasured = to_json(found), missing if unmeasured is None else unmeasured
    stages = (*COMPILE_STAGES, *EVALUATE_STAGES)
    with stops_on_signals():
        work = {"stages": stages, "again": again, "units": units}
        returned = _run_cells(workspace, cells, work, refused or {}, unmeasured or {})
    if is_stopping():
        return Cancelled(message="interrupted by the user")
    record_kept(workspace)  # what MLflow's server missed while it restarted
    results = [from_json(CellResult, one) for one in returned]
    ended = [result for result in results if result.error is None and not result.unmeasured]
    done = {workspace.params.cell(result.cell): result for result in ended}
    try:
        failed: dict[Cell, TvmflowError] = {**record(workspace, list(done), stages)}
    except TvmflowError as error:
        failed = dict.fromkeys(done, error)
    failed |= _record_unmeasured(workspace, [one for one in results if one.error is None and one.unmeasured], done)
    for cell, reason in failed.items():
        done[cell].error, done[cell].failed_stage = reason, "publish"
    rows = [_row(result) for result in results]
    post_within(lambda: create_table_artifact(key="sweep", table=rows, description="cells and stages"))
    return final_state(results)


def _record_unmeasured(
    workspace: Workspace, results: Sequence[CellResult], done: dict[Cell, CellResult]
) -> dict[Cell, TvmflowError]:
    """Record what was built without a device, but for what lies in a variant of the workspace; add the results to
    `done`. Returns cell -> why it was not recorded.
    """
    failed: dict[Cell, TvmflowError] = {}
    for result in results:
        cell = workspace.params.cell(result.cell)
        done[cell] = result
        try:
            failed |= record(workspace, [cell], stages_in_workspace(workspace, cell, STAGES))
        except TvmflowError as error:
            failed[cell] = error
    return failed


def _run_cells(
    workspace: Workspace,
    cells: list[str],
    work: dict[str, tuple[str, ...]],
    refused: dict[str, dict[str, Any]],
    unmeasured: dict[str, str],
) -> list[Any]:
    """Run the cells by the task runner of params.yaml, also where a worker started the flow. Returns their results.
    work: what to do with each.
    """

    def request(cell: str) -> dict[str, Any]:
        own = {"refused": refused.get(cell), "unmeasured": unmeasured.get(cell, "")}
        return {"cell": cell, "root": str(workspace.root), **work, **own}

    with task_runner(workspace.params.flows) as runner:
        running = [runner.submit(run_cell, request(cell)) for cell in cells]
        return [future.result(raise_on_failure=False) for future in running]


def run_sweep(
    workspace: Workspace,
    cells: list[str],
    again: tuple[str, ...] = (),
    units: tuple[str, ...] = (),
    refused: dict[str, CellResult] | None = None,
    unmeasured: dict[str, str] | None = None,
) -> list[CellResult]:
    """Run the sweep flow."""
    task_runner(workspace.params.flows)  # what it lacks is said before anything starts
    refresh(workspace)  # DVC must know the cells to record them
    with explains_faults(workspace.root), cancels_flow(workspace.root):
        state = run_flow(sweep, cells, str(workspace.root), again, units, to_json(refused or {}), unmeasured or {})
        return results_of(state, CellResult)


def _row(result: CellResult) -> dict[str, str]:
    well = f"{NOT_MEASURED}: {result.unmeasured[:200]}" if result.unmeasured else "ok"
    end = well if result.error is None else f"{result.failed_stage}: {result.error.found[:200]}"
    return {"cell": result.cell, **result.outcomes, "end": end}
