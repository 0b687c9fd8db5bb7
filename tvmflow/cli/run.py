"""Define the commands that run all stages of cells: run, sweep, retune, serve."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow.cli.app import CellNames, Json, WaitQuiet, api, app, open_workspace
from tvmflow.cli.completion import complete_cell
from tvmflow.cli.plans import raise_failures, show_plans
from tvmflow.report.console import show, show_json, suggest

if TYPE_CHECKING:
    from tvmflow.api import CellPlan, RunResult, Workspace

TuningLines = Annotated[
    bool, typer.Option("--tuning-lines", help="Print a line per measurement: [Task 3/17] current / best GFLOP/s.")
]


Units = Annotated[
    list[str] | None,
    typer.Option("--unit", metavar="NAME", help="Measure again on this unit of the device; all: on each. Repeatable."),
]


WithoutDevice = Annotated[
    bool,
    typer.Option("--without-device", help="Build only: schedules by the static model, nothing measured. Exit code 0."),
]
UNMEASURED = 4  # exit code of a run whose device is not there


@app.command()
def run(
    cells: CellNames,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and why; run nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if nothing changed.")] = False,
    unit: Units = None,
    without_device: WithoutDevice = False,
    wait_quiet: WaitQuiet = 0.0,
    tuning_lines: TuningLines = False,
    as_json: Json = False,
) -> None:
    """Run all stages of cells: fetch, import, quantize, pack, tune, build, deploy, evaluate; log the results.

    A cell whose device is not there is built, not measured; then the exit code is 4.
    """
    options = {"again": again, "units": unit or [], "wait_quiet_s": wait_quiet, "tuning_lines": tuning_lines}
    options |= {"without_device": without_device}
    _run_cells(open_workspace(), cells, dry_run, as_json, **options)


@app.command()
def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and why; run nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if nothing changed.")] = False,
    unit: Units = None,
    without_device: WithoutDevice = False,
    wait_quiet: WaitQuiet = 0.0,
    tuning_lines: TuningLines = False,
    as_json: Json = False,
) -> None:
    """Run all cells under cells: in params.yaml.

    Those whose device is not there are built, not measured; then the exit code is 4.
    """
    options = {"again": again, "units": unit or [], "wait_quiet_s": wait_quiet, "tuning_lines": tuning_lines}
    options |= {"without_device": without_device}
    _run_cells(open_workspace(), [], dry_run, as_json, **options)


def _run_cells(workspace: Workspace, cells: list[str], dry_run: bool, as_json: bool, **options: Any) -> None:
    if dry_run:
        plans = api.plan(*cells, workspace=workspace, look=True)
        show_plans(plans, as_json)
        _tell_no_device(plans, options["without_device"])
        return
    results = api.run(*cells, workspace=workspace, check=False, show_progress=True, **options)
    _show_results(workspace, results, as_json)
    raise_failures(results)
    _tell_unmeasured(results, options["without_device"])
    if any(not result.unmeasured for result in results):
        suggest("tvmflow report    (write an HTML report)   or   tvmflow promote CELL    (release it)")


def _tell_no_device(plans: Sequence[CellPlan], is_asked: bool) -> None:
    """Say of which cells a run would measure nothing, and why."""
    lacking = [plan for plan in plans if plan.no_device and not is_asked]
    for plan in lacking:
        print(f"{plan.cell} would be built, not measured: {plan.no_device}", file=sys.stderr)
    if lacking:
        raise typer.Exit(UNMEASURED)


def _tell_unmeasured(results: Sequence[RunResult], is_asked: bool) -> None:
    """Say which cells were built without their device, and what comes next."""
    from tvmflow.report.plans import NOT_MEASURED

    built = [result for result in results if result.unmeasured]
    for result in built:
        print(f"{result.cell}: {NOT_MEASURED} ({result.unmeasured})", file=sys.stderr)
    if built:
        names = " ".join(result.cell for result in built)
        suggest(f"tvmflow bundle {names} --unmeasured    (for an app's CI)   or, with the device,   tvmflow run")
        if not is_asked:
            raise typer.Exit(UNMEASURED)


def _show_results(workspace: Workspace, results: Sequence[RunResult], as_json: bool) -> None:
    from tvmflow.report.processors import processors_of
    from tvmflow.report.tables import latency_table, part_table, scorecard_table

    cards = [result.scorecard.card for result in results if result.scorecard]
    if as_json:
        show_json(
            {"results": [result.to_json() for result in results], "scorecards": [card.to_json() for card in cards]}
        )
        return
    if cards:
        show(scorecard_table(cards))
    for beside in processors_of(workspace, cards):
        show(beside.table())
    if len(cards) == 1:
        show(latency_table(cards[0]))
        if (part := cards[0].part) and "counters" in part.details:
            show(part_table(part))


@app.command()
def retune(
    cells: Annotated[
        list[str] | None,
        typer.Argument(help="Cells to re-tune; default: all champions under cells:.", autocompletion=complete_cell),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done and how long it takes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Re-tune even if the recipe did not change.")] = False,
    tuning_lines: TuningLines = False,
    as_json: Json = False,
) -> None:
    """Re-tune champions after an upgrade: replay old schedules, tune where they fail, compare with the champion and
    promote.
    """
    from tvmflow.report.retune_tables import retune_table

    workspace = open_workspace()
    if plan:
        _show_retune_plan(workspace, cells or [], force, as_json)
        return
    results = api.retune(
        *cells or (),
        workspace=workspace,
        force=force,
        check=False,
        show_progress=True,
        tuning_lines=tuning_lines,
    )
    if as_json:
        show_json([result.to_json() for result in results])
    else:
        show(retune_table(results))
    if todo := api.changed_dvc_files(workspace):
        print(todo, file=sys.stderr)
    raise_failures([api.RunResult(result.cell, result.outcomes, result.error, "retune") for result in results])
    suggest("tvmflow report")


def _show_retune_plan(workspace: Workspace, cells: list[str], force: bool, as_json: bool) -> None:
    from tvmflow.report.retune_tables import retune_plan_table

    plans = api.plan_retune(*cells, workspace=workspace, force=force)
    if as_json:
        show_json([plan.to_json() for plan in plans])
    else:
        show(retune_plan_table(plans, workspace.params.flows.workers))
    suggest("tvmflow retune")


@app.command()
def serve() -> None:
    """Register the scheduled re-tune with a Prefect server (PREFECT_API_URL) and serve it."""
    api.serve(open_workspace())
