"""Run all stages of cells: run, retune, serve."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tvmflow.api.quiet import wait_for_quiet
from tvmflow.api.results import RunResult
from tvmflow.api.workspace import CellName, Where, cell_of, cells_of, open_workspace
from tvmflow.pipeline.results import CellResult, RetunePlan, RetuneResult
from tvmflow.support.errors import TvmflowError, UsageError

if TYPE_CHECKING:
    from tvmflow.config.params import Cell
    from tvmflow.config.workspace import Workspace


ASKED = "asked for without a device"


def run(
    *cells: CellName,
    workspace: Where = None,
    again: bool = False,
    units: Sequence[str] = (),
    wait_quiet_s: float = 0.0,
    without_device: bool = False,
    check: bool = True,
    show_progress: bool = False,
    tuning_lines: bool = False,
) -> tuple[RunResult, ...]:
    """Run all stages of cells (default: all of params.yaml), from fetch to record.

    again: measure even when nothing changed. units: measure again on these units of the devices, ("all",) for each one;
    the scorecard is of the last. wait_quiet_s: longest wait for an idle machine before the run. without_device: build
    only, with schedules of the static model; a cell whose device is not there is built in this way, too, unless again
    or units ask for a measurement. Its result says why in `unmeasured`.
    show_progress: on standard error; tuning_lines: with a line per measurement of a kernel.

    Returns a result per cell, in order. Up-to-date stages are skipped; if all are, neither Prefect nor TVM is started.
    A failed cell does not stop the others: with `check` its error is raised at the end (for several, one error that
    names them all), otherwise it is in the result.
    """
    from flows.preflight import preflight
    from tvmflow.devices.probe_driver import ask_drivers
    from tvmflow.setup.preflight import ask_processors
    from tvmflow.tracking.mlflow.store import check_store

    if without_device and (again or units):
        raise UsageError("a run without a device, and a measurement", "one of them")
    where = open_workspace(workspace)
    wanted = cells_of(where, cells)
    check_store(where)
    record_late(where, show_progress)
    unknown = ask_processors(where, wanted)
    if show_progress:
        tell_doubts(where, wanted)
    if not without_device:
        ask_drivers(where.root, where.params, [cell.target for cell in wanted])
    if again or units or unknown or not all(_is_done(where, cell) for cell in wanted):
        _bring_made(where, [cell for cell in wanted if str(cell) not in unknown], show_progress)
        refused, no_device = preflight(where, wanted, unknown, show_progress, bool(again or units), without_device)
        unmeasured = {str(cell): ASKED for cell in wanted} if without_device else no_device
        known = _known_results(where, wanted, refused, unmeasured)
        if len(known) == len(wanted):
            cell_results = [known[str(cell)] for cell in wanted]
        else:  # with all of them: Prefect is to know which were refused
            wait_for_quiet(where, wait_quiet_s, show_progress)
            if show_progress:
                sys.stderr.write("starting Prefect ...\n")
            display = shown(len(wanted), show_progress, tuning_lines)
            cell_results = _sweep(where, wanted, refused, unmeasured, again, tuple(units), display)
    else:
        cell_results = _up_to_date(where, wanted, show_progress)
    record_late(where, show_progress)
    where.digests.save()
    results = tuple(_with_card(where, cell, result) for cell, result in zip(wanted, cell_results, strict=True))
    if check:
        raise_failures(results)
    return results


def _up_to_date(workspace: Workspace, cells: list[Cell], show_progress: bool) -> list[CellResult]:
    if show_progress:
        sys.stderr.write("nothing to do: every stage is up to date\n")
    _tell_ends_of_runs(workspace)
    return [CellResult(str(cell)) for cell in cells]


def _with_card(workspace: Workspace, cell: Cell, result: CellResult) -> RunResult:
    from tvmflow.report.tables import scorecard

    is_finished = not result.unmeasured and (result.error is None or result.failed_stage == "publish")
    return RunResult.of(result, scorecard(workspace, cell) if is_finished else None)


def tell_doubts(workspace: Workspace, cells: Sequence[Cell]) -> None:
    """Say of models with data whether they get images as in training."""
    from tvmflow.sources.data.preprocessing import doubts

    for name in dict.fromkeys(cell.model for cell in cells):
        model = workspace.params.models[name]
        for doubt in doubts(model) if model.dataset is not None else ():
            sys.stderr.write(f"warning: models.{name}: {doubt}\n")


def raise_failures(results: Sequence[RunResult]) -> None:
    """Raise the error of the failed cell; for several, one error that names all of them, with each reason once."""
    failed = [(result, result.error) for result in results if result.error is not None]
    if len(failed) == 1:
        raise failed[0][1]
    cells: dict[str, list[str]] = {}
    for result, error in failed:
        cells.setdefault(f"({result.failed_stage}): {error}", []).append(result.cell)
    if failed:
        raise TvmflowError("\n".join(f"{', '.join(names)} {what}" for what, names in cells.items()))


def record_late(workspace: Workspace, show_progress: bool) -> None:
    """Record what waits for MLflow's server, and on a new server all that this workspace has. A server that does not
    answer stops nothing.
    """
    from tasks.table import STAGES
    from tvmflow.support.errors import StoreAwayError
    from tvmflow.tracking.mlflow.rebuild import fill_new_server
    from tvmflow.tracking.mlflow.recorded import record_kept

    said = []
    try:
        filled = fill_new_server(workspace, STAGES)
        if filled is not None and (filled.recorded or filled.lost):
            lost = f", {len(filled.lost)} could not be: see 'tvmflow init --rebuild'" if filled.lost else ""
            said.append(
                f"this MLflow server is new to the workspace: recorded {len(filled.recorded)} measurements{lost}"
            )
    except StoreAwayError as error:
        said.append(error.found)
    kept = record_kept(workspace)
    if kept.done:
        said.append(f"recorded in MLflow what waited for its server: {kept.done}")
    if kept.left:
        said.append(f"not recorded in MLflow yet: {kept.left}, which the next command does: {kept.why}")
    if show_progress:
        sys.stderr.writelines(f"{line}\n" for line in said)


def _tell_ends_of_runs(workspace: Workspace) -> None:
    """Tell the user's Prefect server how earlier runs ended, if it has not heard; else Prefect stays out."""
    live = workspace.root / ".prefect" / "live"
    if os.environ.get("PREFECT_API_URL") and any(live.glob("*/[!.]*")):
        from flows.settings import configure_prefect

        with contextlib.suppress(TvmflowError):  # it is still away
            configure_prefect(workspace)
            from flows.live_runs import mark_dead_runs

            mark_dead_runs(workspace)


def _is_done(workspace: Workspace, cell: Cell) -> bool:
    """Return whether every cached stage is a hit and the measurement is recorded; starts neither Prefect nor TVM."""
    from tasks.table import STAGES
    from tvmflow.pipeline.store import Store
    from tvmflow.tracking.dvc.repository import is_published
    from tvmflow.tracking.mlflow.recorded import is_recorded

    try:
        if not all(plan.is_hit for plan in Store(workspace, STAGES).plan_all(cell)):
            return False
        is_in_mlflow = is_recorded(workspace, cell)
    except TvmflowError:
        return False  # the run reports why, and goes on with the other cells
    return is_in_mlflow and is_published(workspace, cell)


def _bring_made(workspace: Workspace, cells: list[Cell], show_progress: bool) -> None:
    """Bring what colleagues made from the DVC remote."""
    from tasks.table import STAGES
    from tvmflow.tracking.dvc.remote_recipes import bring

    def say(text: str) -> None:
        if show_progress:
            sys.stderr.write(f"{text}\n")

    bring(workspace, cells, STAGES, say)


def _known_results(
    workspace: Workspace, cells: list[Cell], refused: dict[str, CellResult], unmeasured: dict[str, str]
) -> dict[str, CellResult]:
    """Return the results of cells for which nothing is to be run: refused, done, or built without a device before."""
    from tasks.table import STAGES
    from tvmflow.pipeline.unmeasured import is_built

    known = dict(refused)
    for cell in cells if unmeasured else ():
        name = str(cell)
        if name not in refused and name not in unmeasured and _is_done(workspace, cell):
            known[name] = CellResult(name)
        elif name not in refused and name in unmeasured and is_built(workspace, cell, STAGES):
            known[name] = CellResult(name, unmeasured=unmeasured[name])
    return known


def _sweep(
    workspace: Workspace,
    cells: list[Cell],
    refused: dict[str, CellResult],
    unmeasured: dict[str, str],
    again: bool,
    units: tuple[str, ...],
    display: contextlib.AbstractContextManager[None],
) -> list[CellResult]:
    from flows.settings import configure_prefect, wait_for_prefect
    from flows.stage_server import stage_server

    configure_prefect(workspace)
    with stage_server():
        from flows.live_runs import mark_dead_runs
        from flows.sweep import run_sweep

        wait_for_prefect()
        mark_dead_runs(workspace)
        with display:
            stages = ("evaluate",) if again else ()
            return run_sweep(workspace, [str(cell) for cell in cells], stages, units, refused, unmeasured)


@contextlib.contextmanager
def shown(cells: int, show_progress: bool, tuning_lines: bool) -> Iterator[None]:
    if not show_progress:
        yield
        return
    from flows.display import Display

    with Display(cells, tuning_lines):
        yield


def retune(
    *cells: CellName,
    workspace: Where = None,
    force: bool = False,
    check: bool = True,
    show_progress: bool = False,
    tuning_lines: bool = False,
) -> tuple[RetuneResult, ...]:
    """Re-tune cells whose champion was made by another recipe: replay old schedules, search lost ones, compare with the
    champion, then promote or propose by `retune.promote`.

    Default: the cells under `cells:` of params.yaml; other champions are named. Returns per cell the changes, outcomes
    and verdict. force: even if the recipe did not change. check, show_progress, tuning_lines: as for `run`.
    """
    where = open_workspace(workspace)
    wanted = [cell_of(where, cell) for cell in cells]
    from flows.settings import configure_prefect, wait_for_prefect
    from tvmflow.tracking.mlflow.store import check_store

    check_store(where)
    record_late(where, show_progress)
    configure_prefect(where)
    from flows.live_runs import mark_dead_runs
    from flows.retune import run_retune
    from flows.stage_server import stage_server

    with stage_server():
        wait_for_prefect()
        mark_dead_runs(where)
        with shown(len(wanted or where.params.cells), show_progress, tuning_lines):
            results = tuple(run_retune(where, [str(cell) for cell in wanted] or None, force))
    if check:
        raise_failures([RunResult(r.cell, r.outcomes, r.error, "retune") for r in results])
    return results


def plan_retune(*cells: CellName, workspace: Where = None, force: bool = False) -> tuple[RetunePlan, ...]:
    """Return what `retune` would do with each cell, and how long it takes by earlier records. Starts neither Prefect
    nor TVM.
    """
    from tasks.table import STAGES
    from tasks.tune import TOOLS
    from tvmflow.devices.probe_driver import ask_drivers
    from tvmflow.shipping.retune_plan import choose
    from tvmflow.shipping.retune_plan import plan_retune as plan

    where = open_workspace(workspace)
    choices = choose(where, [cell_of(where, cell) for cell in cells] or None)
    ask_drivers(where.root, where.params, [choice.cell.target for choice in choices if choice.cell and not choice.idle])
    return tuple(plan(where, choices, STAGES, TOOLS, force))


def changed_dvc_files(workspace: Where = None) -> str:
    """Return what to do with DVC files that differ from git's HEAD, or that the branch of re-tunes has them; "" if
    there are none.
    """
    from tvmflow.tracking.dvc.commit_branch import state_of_files

    where = open_workspace(workspace)
    return state_of_files(where, where.params.retune.commit_branch)


def serve(workspace: Where = None) -> None:
    """Register the scheduled re-tune with a Prefect server (PREFECT_API_URL) and run it when it is due, until
    interrupted.
    """
    where = open_workspace(workspace)
    if not os.environ.get("PREFECT_API_URL"):
        raise UsageError(
            "no Prefect server: schedules need one that stays up",
            "PREFECT_API_URL, e.g. http://127.0.0.1:4200/api",
            "start one with 'prefect server start' and set PREFECT_API_URL",
        )
    from flows.settings import configure_prefect

    configure_prefect(where)
    from flows.serve import serve_schedule

    serve_schedule(where)
