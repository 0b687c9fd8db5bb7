"""Commands that bring cells all the way: run, sweep, retune, serve."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow.cli.app import Json, app, open_workspace
from tvmflow.cli.plans import raise_failures, show_plans
from tvmflow.errors import TvmflowError, UsageError
from tvmflow.report.console import show, show_json, suggest

if TYPE_CHECKING:
    from tvmflow.params import Cell
    from tvmflow.workspace import Workspace


@app.command()
def run(
    cells: Annotated[list[str], typer.Argument(help="model@target:precision, or names under cells:")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and why; do nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even when nothing changed.")] = False,
    as_json: Json = False,
) -> None:
    """Bring cells all the way: fetch, import, quantize, pack, tune, build, deploy, evaluate, record."""
    workspace = open_workspace()
    wanted = [workspace.params.cell(text) for text in cells]
    if dry_run:
        show_plans(workspace, wanted, as_json, look=True)
        return
    _run_cells(workspace, wanted, again, as_json)


@app.command()
def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and why; do nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even when nothing changed.")] = False,
    as_json: Json = False,
) -> None:
    """Run every cell under cells: in params.yaml."""
    workspace = open_workspace()
    if dry_run:
        show_plans(workspace, list(workspace.params.cells.values()), as_json, look=True)
        return
    _run_cells(workspace, list(workspace.params.cells.values()), again, as_json)


def _run_cells(workspace: Workspace, cells: list[Cell], again: bool, as_json: bool) -> None:
    from tvmflow.ledger.store_paths import check_store

    check_store(workspace)
    if again or not all(_is_done(workspace, cell) for cell in cells):
        results = _sweep(workspace, cells, again)
    else:
        results = [{"cell": str(cell), "outcomes": {}, "error": None} for cell in cells]
        print("nothing to do: every stage is up to date", file=sys.stderr)
    failed = [result for result in results if result["error"] is not None]
    unfinished = {result["cell"] for result in failed if result["failed_stage"] != "publish"}
    _show_results(workspace, [cell for cell in cells if str(cell) not in unfinished], results, as_json)
    if failed:
        raise_failures(failed)
    suggest("tvmflow report    (a page with everything)   or   tvmflow promote CELL    (release it)")


def _is_done(workspace: Workspace, cell: Cell) -> bool:
    """Say whether every cached stage is a hit and the measurement is recorded; starts neither Prefect nor TVM."""
    from tasks.table import STAGES
    from tvmflow.ledger.dvc import is_published
    from tvmflow.ledger.measurements import is_recorded
    from tvmflow.store import Plan, Store

    try:
        plans = Store(workspace, STAGES).plan_all(cell)
    except TvmflowError:
        return False  # the run says why, and goes on with the others
    return (
        all(isinstance(plan, Plan) and plan.is_hit for plan in plans)
        and is_recorded(workspace, cell)
        and is_published(workspace, cell)
    )


def _sweep(workspace: Workspace, cells: list[Cell], again: bool) -> list[dict[str, Any]]:
    from flows.settings import configure_prefect, wait_for_prefect

    configure_prefect(workspace)
    print("starting Prefect ...", file=sys.stderr)
    from flows.display import Display
    from flows.sweep import run_sweep

    wait_for_prefect()
    with Display(len(cells)):
        return run_sweep(workspace, [str(cell) for cell in cells], ("evaluate",) if again else ())


def _show_results(workspace: Workspace, cells: list[Cell], results: list[dict[str, Any]], as_json: bool) -> None:
    from tvmflow.report.tables import has_counters, latency_table, part_table, scorecard, scorecard_table

    cards = [card for cell in cells if (card := scorecard(workspace, cell)) is not None]
    if as_json:
        show_json({"results": results, "scorecards": cards})
        return
    if cards:
        show(scorecard_table(cards))
    if len(cards) == 1:
        show(latency_table(cards[0]))
        if has_counters(cards[0]):
            show(part_table(cards[0]))


@app.command()
def retune(
    cells: Annotated[list[str] | None, typer.Argument(help="default: all under cells:")] = None,
    force: Annotated[bool, typer.Option("--force", help="Even when the toolchain did not change.")] = False,
    as_json: Json = False,
) -> None:
    """After an upgrade of TVM: replay old schedules, re-tune what was lost, compare with the champion, promote."""
    workspace = open_workspace()
    wanted = [workspace.params.cell(text) for text in cells] if cells else list(workspace.params.cells.values())
    from flows.settings import configure_prefect, wait_for_prefect
    from tvmflow.ledger.store_paths import check_store

    check_store(workspace)
    configure_prefect(workspace)
    from flows.display import Display
    from flows.retune import run_retune

    wait_for_prefect()
    with Display(len(wanted)):
        results = run_retune(workspace, [str(cell) for cell in wanted], force)
    if as_json:
        show_json(results)
    else:
        for result in results:
            print(f"{result['cell']}: {result['verdict']}")
    failed = [result for result in results if result["error"] is not None]
    if failed:
        raise_failures([{"failed_stage": "retune", **result} for result in failed])
    suggest("tvmflow report")


@app.command()
def serve() -> None:
    """Register the scheduled re-tune with a Prefect server (PREFECT_API_URL) and run it when it is due."""
    workspace = open_workspace()
    if not os.environ.get("PREFECT_API_URL"):
        raise UsageError(
            "no Prefect server: schedules need one that keeps running",
            "PREFECT_API_URL, as http://127.0.0.1:4200/api",
            "start one with 'prefect server start' and set PREFECT_API_URL",
        )
    from flows.settings import configure_prefect

    configure_prefect(workspace)
    from flows.serve import serve_schedule

    serve_schedule(workspace)
