"""The command line: parses, calls flows, prints. Results on stdout, progress and errors on stderr.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a gate refused.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow import __version__
from tvmflow.errors import TvmflowError, UsageError

if TYPE_CHECKING:
    from tvmflow.params import Cell
    from tvmflow.workspace import Workspace

app = typer.Typer(
    help="Take a pretrained model to a measured, versioned, releasable library on a device.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
CellName = Annotated[str, typer.Argument(help="model@target:precision, or a name under cells: in params.yaml")]


class _State:
    root: Path | None = None
    debug = False


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tvmflow {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    root: Annotated[
        Path | None, typer.Option("--root", "-C", help="The workspace; default: the nearest params.yaml.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    _State.root, _State.debug = root, debug


def main() -> None:
    """Run the command line; every expected error is one message and an exit code."""
    try:
        app()
    except TvmflowError as error:
        _fail(error, error.exit_code)
    except OSError as error:
        from tvmflow.errors import from_os_error

        _fail(from_os_error(error, "working in"), 1)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        sys.exit(130)


def _fail(error: TvmflowError, code: int) -> None:
    if _State.debug or "--debug" in sys.argv:
        raise error
    print(f"error: {error}", file=sys.stderr)
    sys.exit(code)


def _workspace() -> Workspace:
    from tvmflow.workspace import find_workspace

    return find_workspace(_State.root)


def _print(value: object) -> None:
    """Print a rich table or text on stdout; wide enough that a pipe gets whole rows."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(value)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


def _next(text: str) -> None:
    print(f"next: {text}", file=sys.stderr)


# -- commands that work ------------------------------------------------------------------------------------------------


@app.command()
def run(
    cells: Annotated[list[str], typer.Argument(help="model@target:precision, or names under cells:")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and why; do nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even when nothing changed.")] = False,
    as_json: Json = False,
) -> None:
    """Bring cells all the way: fetch, import, quantize, pack, tune, build, deploy, evaluate, record."""
    workspace = _workspace()
    wanted = [workspace.params.cell(text) for text in cells]
    if dry_run:
        _show_plans(workspace, wanted, as_json)
        return
    _run_cells(workspace, wanted, again, as_json)


@app.command()
def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and why; do nothing.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure again even when nothing changed.")] = False,
    as_json: Json = False,
) -> None:
    """Run every cell under cells: in params.yaml."""
    workspace = _workspace()
    if dry_run:
        _show_plans(workspace, list(workspace.params.cells.values()), as_json)
        return
    _run_cells(workspace, list(workspace.params.cells.values()), again, as_json)


def _run_cells(workspace: Workspace, cells: list[Cell], again: bool, as_json: bool) -> None:
    if again or not all(_is_done(workspace, cell) for cell in cells):
        results = _sweep(workspace, cells, again)
    else:
        results = [{"cell": str(cell), "outcomes": {}, "error": None} for cell in cells]
        print("nothing to do: every stage is up to date", file=sys.stderr)
    failed = [result for result in results if result["error"] is not None]
    unfinished = {result["cell"] for result in failed if result["failed_stage"] != "publish"}
    _show_results(workspace, [cell for cell in cells if str(cell) not in unfinished], results, as_json)
    if failed:
        _raise_failures(failed)
    _next("tvmflow report    (a page with everything)   or   tvmflow promote CELL    (release it)")


def _is_done(workspace: Workspace, cell: Cell) -> bool:
    """Say whether every cached stage is a hit and the measurement is recorded; starts neither Prefect nor TVM."""
    from tasks.table import STAGES
    from tvmflow.ledger.dvc import is_published
    from tvmflow.ledger.measurements import is_recorded
    from tvmflow.store import Plan, Store

    plans = Store(workspace, STAGES).plan_all(cell)
    return (
        all(isinstance(plan, Plan) and plan.is_hit for plan in plans)
        and is_recorded(workspace, cell)
        and is_published(workspace, cell)
    )


def _sweep(workspace: Workspace, cells: list[Cell], again: bool) -> list[dict[str, Any]]:
    from flows.settings import configure_prefect

    configure_prefect(workspace)
    print("starting Prefect ...", file=sys.stderr)
    from flows.display import Display
    from flows.sweep import run_sweep

    with Display(len(cells)):
        return run_sweep(workspace, [str(cell) for cell in cells], ("evaluate",) if again else ())


def _raise_failures(failed: list[dict[str, Any]]) -> None:
    from tvmflow.errors import from_json

    for result in failed:
        print(f"failed: {result['cell']} in {result['failed_stage']}", file=sys.stderr)
    if len(failed) == 1:
        raise from_json(failed[0]["error"])
    raise TvmflowError("\n".join(f"{r['cell']} ({r['failed_stage']}): {from_json(r['error'])}" for r in failed))


def _show_results(workspace: Workspace, cells: list[Cell], results: list[dict[str, Any]], as_json: bool) -> None:
    from tvmflow.report.tables import latency_table, scorecard, scorecard_table, vta_table

    cards = [card for cell in cells if (card := scorecard(workspace, cell)) is not None]
    if as_json:
        _print_json({"results": results, "scorecards": cards})
        return
    if cards:
        _print(scorecard_table(cards))
    if len(cards) == 1:
        _print(latency_table(cards[0]))
        if cards[0]["vta"]:
            _print(vta_table(cards[0]))


def _plan_rows(workspace: Workspace, cell: Cell) -> list[dict[str, str]]:
    from tasks.table import STAGES
    from tvmflow.store import Store, Undecided

    rows = []
    for plan in Store(workspace, STAGES).plan_all(cell):
        if isinstance(plan, Undecided):
            row = {"state": "waits", "why": f"decided when {plan.waits_for} is done", "key": ""}
        else:
            row = {"state": "hit" if plan.is_hit else "miss", "why": plan.reason, "key": plan.key[:12]}
        rows.append({"stage": plan.stage.name, **row})
    return rows


def _show_plans(workspace: Workspace, cells: list[Cell], as_json: bool) -> None:
    plans = {str(cell): _plan_rows(workspace, cell) for cell in cells}
    if as_json:
        _print_json(plans)
        return
    from rich.table import Table

    for name, rows in plans.items():
        table = Table(title=name)
        for column in ("stage", "state", "key", "why"):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(row["stage"], row["state"], row["key"], row["why"])
        _print(table)


# -- commands that read ------------------------------------------------------------------------------------------------


@app.command()
def why(cell: CellName, as_json: Json = False) -> None:
    """Say for each stage of a cell whether it is a hit or a miss, and which part of its recipe changed."""
    workspace = _workspace()
    _show_plans(workspace, [workspace.params.cell(cell)], as_json)
    _next(f"tvmflow run {cell}")


@app.command()
def status(as_json: Json = False) -> None:
    """List models, targets and cells, and how far each cell is."""
    from tvmflow.report.tables import scorecard

    workspace = _workspace()
    rows: list[dict[str, Any]] = []
    for name, cell in workspace.params.cells.items():
        plans = _plan_rows(workspace, cell)
        card = scorecard(workspace, cell)
        missing = [row["stage"] for row in plans if row["state"] != "hit"]
        rows.append({"name": name, "cell": str(cell), "todo": missing, "measured": card is not None})
    tables: dict[str, Any] = {
        "models": sorted(workspace.params.models),
        "targets": sorted(workspace.params.targets),
        "cells": rows,
    }
    if as_json:
        _print_json(tables)
        return
    from rich.table import Table

    table = Table(title=f"cells of {workspace.root}")
    for column in ("name", "cell", "state"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            str(row["name"]), str(row["cell"]), "up to date" if not row["todo"] else f"to do: {', '.join(row['todo'])}"
        )
    _print(table)
    print(f"models: {', '.join(tables['models'])}\ntargets: {', '.join(tables['targets'])}")
    _next("tvmflow sweep")


@app.command()
def devices(as_json: Json = False) -> None:
    """List the devices of every target and what their trackers say."""
    from tvmflow.devices.tracker import TrackerAddress, queue_of

    rows: list[dict[str, Any]] = []
    for name, target in _workspace().params.targets.items():
        device = target.device
        row: dict[str, Any] = {"target": name, "key": device.key, "transport": device.transport}
        if device.transport == "local":
            vta = target.vta
            row["state"] = f"this machine, which simulates {vta.resolved().name}" if vta else "this machine"
        else:
            try:
                address = TrackerAddress.find(device.host, device.port)
                counts = queue_of(address).get(device.key, {"total": 0, "free": 0, "pending": 0})
                row |= counts | {"state": f"{counts['free']} of {counts['total']} free, {counts['pending']} waiting"}
            except TvmflowError as error:
                row["state"] = error.found
        rows.append(row)
    if as_json:
        _print_json(rows)
        return
    from rich.table import Table

    table = Table(title="devices")
    for column in ("target", "key", "transport", "state"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(row["target"], row["key"], row["transport"], row["state"])
    _print(table)
    _next("tvmflow run MODEL@TARGET:PRECISION")


@app.command()
def history(cell: CellName, as_json: Json = False) -> None:
    """List every measurement of a cell, oldest first, with what is champion now."""
    from tvmflow.ledger.history import measurements

    workspace = _workspace()
    found = measurements(workspace, workspace.params.cell(cell))
    if as_json:
        _print_json(found)
        return
    from rich.table import Table

    table = Table(title=f"measurements of {cell}")
    for column in ("when", "TVM", "device", "accuracy", "latency", "library", "version"):
        table.add_column(column)
    for row in found:
        table.add_row(
            *(str(row[key]) for key in ("when", "tvm", "device", "accuracy", "latency", "library", "version"))
        )
    _print(table)
    _next(f"tvmflow promote {cell}")


@app.command()
def report(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the page.")] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page: cells, devices, peers, history, tuning curves, stage times."""
    from tvmflow.ledger.history import all_measurements
    from tvmflow.report.page import collect, write_page

    workspace = _workspace()
    data = collect(workspace, all_measurements(workspace))
    path = output or workspace.root / "report.html"
    if as_json:
        _print_json(data)
        return
    write_page(data, path)
    print(path)
    _next(f"open {path} in a browser; 'mlflow ui --backend-store-uri {workspace.mlflow_uri}' shows every run")


# -- release -----------------------------------------------------------------------------------------------------------


@app.command()
def promote(cell: CellName, dry_run: Annotated[bool, typer.Option("--dry-run")] = False, as_json: Json = False) -> None:
    """Make the newest library of a cell the champion, if the gate lets it pass."""
    workspace = _workspace()
    found = workspace.params.cell(cell)
    from flows.settings import configure_prefect

    configure_prefect(workspace)
    from flows.release_model import run_release

    verdict = run_release(workspace, found, dry_run)
    if as_json:
        _print_json(verdict)
    else:
        print(verdict["text"])
    if not verdict["passed"]:
        from tvmflow.errors import GateRefusedError

        raise GateRefusedError(
            f"{cell} is not released: {'; '.join(verdict['reasons'])}", "every rule under release: met"
        )
    _next(f"tvmflow history {cell}; 'tvmflow rollback {cell}' takes it back")


@app.command()
def rollback(cell: CellName, as_json: Json = False) -> None:
    """Make the previous champion the champion again."""
    from tvmflow.ledger.registry import rollback as roll_back

    workspace = _workspace()
    now, before = roll_back(workspace, workspace.params.cell(cell))
    if as_json:
        _print_json({"champion": now.version, "before": before.version, "name": now.name})
    else:
        print(f"{now.name}: champion is version {now.version} again (was {before.version})")
    _next(f"tvmflow history {cell}")


@app.command()
def retune(
    cells: Annotated[list[str] | None, typer.Argument(help="default: all under cells:")] = None,
    force: Annotated[bool, typer.Option("--force", help="Even when the toolchain did not change.")] = False,
    as_json: Json = False,
) -> None:
    """After an upgrade of TVM: replay old schedules, re-tune what was lost, compare with the champion, promote."""
    workspace = _workspace()
    wanted = [workspace.params.cell(text) for text in cells] if cells else list(workspace.params.cells.values())
    from flows.settings import configure_prefect

    configure_prefect(workspace)
    from flows.display import Display
    from flows.retune import run_retune

    with Display(len(wanted)):
        results = run_retune(workspace, [str(cell) for cell in wanted], force)
    if as_json:
        _print_json(results)
    else:
        for result in results:
            print(f"{result['cell']}: {result['verdict']}")
    _next("tvmflow report")


@app.command()
def serve() -> None:
    """Register the scheduled re-tune with a Prefect server (PREFECT_API_URL) and run it when it is due."""
    workspace = _workspace()
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


@app.command()
def records(
    cell: CellName,
    merge: Annotated[list[Path], typer.Option("--merge", help="Add the records of another log.")] = [],  # noqa: B006
    export: Annotated[Path | None, typer.Option("--export", help="Write a MetaSchedule database.")] = None,
    bring: Annotated[Path | None, typer.Option("--import", help="Read a MetaSchedule database.")] = None,
    as_json: Json = False,
) -> None:
    """Show the tuning records of a cell; merge logs, exchange schedules with MetaSchedule."""
    from tvmflow.tuning.exchange import exchange

    workspace = _workspace()
    found = exchange(workspace, workspace.params.cell(cell), merge, export, bring)
    if as_json:
        _print_json(found)
        return
    for name, value in found.items():
        print(f"{name:24} {value}")
    _next(f"tvmflow run {cell}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check versions that break each other, threads, tools, trackers and open ports; say what to do about each."""
    from tvmflow.doctor import examine

    findings = examine(_State.root)
    if as_json:
        _print_json([finding.to_json() for finding in findings])
    else:
        from rich.table import Table

        table = Table(title="doctor")
        for column in ("", "what", "found", "do"):
            table.add_column(column, overflow="fold")
        for finding in findings:
            table.add_row(finding.level, finding.what, finding.found, finding.fix)
        _print(table)
    broken = [finding for finding in findings if finding.level == "broken"]
    if broken:
        raise TvmflowError(f"{len(broken)} thing(s) broken: {', '.join(f.what for f in broken)}")
    _next("tvmflow run digits")


@app.command()
def init(quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing when all is well.")] = False) -> None:
    """Make the stores of this workspace: DVC with a local remote, MLflow's database. Safe to repeat."""
    from tvmflow.ledger import dvc
    from tvmflow.ledger.store_paths import open_mlflow

    workspace = _workspace()
    _ = workspace.params
    dvc.initialize(workspace)
    if not (workspace.root / "mlruns" / "mlflow.db").exists():
        open_mlflow(workspace).search_experiments()
    if not quiet:
        print(f"workspace {workspace.root}: DVC remote {dvc.DEFAULT_REMOTE}/, MLflow store mlruns/mlflow.db")
        _next("tvmflow run digits")
