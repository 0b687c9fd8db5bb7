"""Commands that look: why, status, devices, history, report, records, doctor; and init, which makes the stores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow.cli.app import CellName, Json, app, chosen_root, open_workspace
from tvmflow.cli.plans import show_plans
from tvmflow.errors import TvmflowError
from tvmflow.report.console import show, show_json, show_table, suggest

if TYPE_CHECKING:
    from tvmflow.workspace import Workspace


@app.command()
def why(cell: CellName, as_json: Json = False) -> None:
    """Say for each stage of a cell whether it is a hit or a miss, and which part of its recipe changed."""
    workspace = open_workspace()
    show_plans(workspace, [workspace.params.cell(cell)], as_json)
    suggest(f"tvmflow run {cell}")


@app.command()
def status(as_json: Json = False) -> None:
    """List models, targets and cells, and how far each cell is."""
    from tasks.table import STAGES
    from tvmflow.report.plans import plan_cells, status_table
    from tvmflow.report.tables import scorecard

    workspace = open_workspace()
    plans, refused = plan_cells(workspace, list(workspace.params.cells.values()), STAGES)
    rows: list[dict[str, Any]] = []
    for name, cell in workspace.params.cells.items():
        error = refused.get(str(cell))
        todo = [] if error else [row["stage"] for row in plans[str(cell)] if row["state"] != "hit"]
        measured = scorecard(workspace, cell) is not None
        why = error.found if error else None
        rows.append({"name": name, "cell": str(cell), "todo": todo, "measured": measured, "error": why})
    tables: dict[str, Any] = {
        "models": sorted(workspace.params.models),
        "targets": sorted(workspace.params.targets),
        "cells": rows,
    }
    if as_json:
        show_json(tables)
        return
    show(status_table(workspace, rows))
    print(f"models: {', '.join(tables['models'])}\ntargets: {', '.join(tables['targets'])}")
    suggest("tvmflow sweep")


@app.command()
def devices(as_json: Json = False) -> None:
    """List the devices of every target and what their trackers say."""
    from tvmflow.backends.table import backend_for
    from tvmflow.devices.table import transport_of

    rows: list[dict[str, Any]] = []
    for name, target in open_workspace().params.targets.items():
        device = target.device
        row: dict[str, Any] = {"target": name, "kind": backend_for(target).device_kind}
        row |= {"key": device.key, "transport": device.transport}
        try:
            state = transport_of(device).state(device)
            row |= {**state.counts, "state": state.text}
        except TvmflowError as error:
            row["state"] = error.found
        rows.append(row)
    if as_json:
        show_json(rows)
        return
    columns = ("target", "kind", "key", "transport", "state")
    show_table("devices", columns, ([row[column] for column in columns] for row in rows))
    suggest("tvmflow run MODEL@TARGET:PRECISION")


@app.command()
def history(cell: CellName, as_json: Json = False) -> None:
    """List every measurement of a cell, oldest first, what is champion now, and what was released before."""
    from tvmflow.ledger.history import measurements
    from tvmflow.ledger.releases import releases

    workspace = open_workspace()
    found = measurements(workspace, workspace.params.cell(cell))
    if as_json:
        show_json(found)
        return
    columns = ("when", "TVM", "device", "accuracy", "latency", "library", "version")
    show_table(f"measurements of {cell}", columns, ([row[column.lower()] for column in columns] for row in found))
    for change in releases(workspace, workspace.params.cell(cell)):
        print(f"{change.when} {change.what}: version {change.version}, before {change.before or 'none'}; {change.why}")
    suggest(f"tvmflow promote {cell}")


@app.command()
def report(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write the page.")] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page: cells, devices, peers, history, tuning curves, stage times."""
    from tvmflow.ledger.history import all_measurements
    from tvmflow.report.page import collect, write_page

    workspace = open_workspace()
    data = collect(workspace, all_measurements(workspace))
    path = output or workspace.root / "report.html"
    if as_json:
        show_json(data)
        return
    write_page(data, path)
    print(path)
    suggest(f"open {path} in a browser; 'mlflow ui --backend-store-uri {workspace.mlflow_uri}' shows every run")


@app.command()
def records(
    cell: CellName,
    merge: Annotated[list[Path], typer.Option("--merge", help="Add the records of another log.")] = [],  # noqa: B006
    export: Annotated[Path | None, typer.Option("--export", help="Write a MetaSchedule database.")] = None,
    bring: Annotated[Path | None, typer.Option("--import", help="Read a MetaSchedule database.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the candidates that failed, and why.")] = False,
    as_json: Json = False,
) -> None:
    """Show the tuning records of a cell; merge logs, exchange schedules with MetaSchedule."""
    workspace = open_workspace()
    if failed:
        _show_failures(workspace, cell, as_json)
        return
    from tvmflow.tuning.exchange import exchange

    found = exchange(workspace, workspace.params.cell(cell), merge, export, bring)
    if as_json:
        show_json(found)
        return
    for name, value in found.items():
        print(f"{name:24} {value}")
    suggest(f"tvmflow run {cell}")


def _show_failures(workspace: Workspace, cell: str, as_json: bool) -> None:
    from tvmflow.tuning.records import failures, read_records

    rows = failures(read_records(workspace.tuning_log(workspace.params.cell(cell))))
    if as_json:
        show_json(rows)
        return
    if not rows:
        print(f"no candidate of {cell} failed")
        return
    columns = ("kernel", "status", "count", "knobs", "error")
    shown = ({**row, "knobs": " ".join(f"{k}={v}" for k, v in row["knobs"].items())} for row in rows)
    show_table(f"failed candidates of {cell}", columns, ([row[column] for column in columns] for row in shown))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check versions that break each other, threads, tools, trackers and open ports; say what to do about each."""
    from tvmflow.doctor import examine

    findings = examine(chosen_root())
    if as_json:
        show_json([finding.to_json() for finding in findings])
    else:
        show_table("doctor", ("", "what", "found", "hint"), ((f.level, f.what, f.found, f.hint) for f in findings))
    broken = [finding for finding in findings if finding.level == "broken"]
    if broken:
        raise TvmflowError(f"{len(broken)} thing(s) broken: {', '.join(f.what for f in broken)}")
    suggest("tvmflow run digits")


@app.command()
def init(
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing when all is well.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Record again in MLflow what artifacts/ and DVC's cache hold.")
    ] = False,
) -> None:
    """Make the stores of this workspace: DVC with a local remote, MLflow's database. Safe to repeat."""
    from tvmflow.ledger import dvc
    from tvmflow.ledger.store_paths import open_mlflow

    workspace = open_workspace()
    _ = workspace.params
    dvc.initialize(workspace)
    if rebuild:
        _rebuild(workspace)
    elif not (workspace.root / "mlruns" / "mlflow.db").exists():
        open_mlflow(workspace).search_experiments()
    if not quiet:
        print(f"workspace {workspace.root}: DVC remote {dvc.DEFAULT_REMOTE}/, MLflow store mlruns/mlflow.db")
        suggest("tvmflow run digits")


def _rebuild(workspace: Workspace) -> None:
    from tasks.table import STAGES
    from tvmflow.ledger.rebuild import rebuild

    done = rebuild(workspace, STAGES)
    if done.set_aside:
        print(f"the damaged store is kept as {done.set_aside}")
    for text in done.lost:
        print(f"not recorded: {text}", file=sys.stderr)
    print(
        f"recorded again: {len(done.recorded)} measurement(s); there already: {done.known}; "
        f"champions brought back: {', '.join(done.champions) or 'none'}"
    )
