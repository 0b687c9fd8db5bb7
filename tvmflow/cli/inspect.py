"""Define the commands that inspect a workspace, and init, which creates the stores."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmflow.cli.app import CellName, Json, api, app, chosen_root, open_workspace
from tvmflow.cli.completion import complete_cell
from tvmflow.cli.fleet import show_overview
from tvmflow.cli.plans import show_plans
from tvmflow.report.console import show, show_json, show_table, show_text, suggest
from tvmflow.support.errors import TvmflowError, UsageError

if TYPE_CHECKING:
    from tvmflow.api import DeviceCheck, GpuState


class By(StrEnum):
    """What the rows of several cells are grouped by."""

    TVM = "tvm"
    DEVICE = "device"
    UNIT = "unit"


@app.command()
def why(cell: CellName, as_json: Json = False) -> None:
    """Show for each stage of a cell whether it is up to date, and which part of its recipe changed."""
    show_plans(api.plan(cell, workspace=open_workspace()), as_json)
    suggest(f"tvmflow run {cell}")


@app.command()
def status(
    as_json: Json = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read all outputs again, also unchanged files.")] = False,
) -> None:
    """List models, targets and cells, and the progress of each cell."""
    from tvmflow.report.plans import status_table

    workspace = open_workspace()
    state = api.status(workspace, verify)
    if as_json:
        show_json(state.to_json())
        return
    show(status_table(workspace.root, state.cells))
    show_text(f"models: {', '.join(state.models)}")
    show_text(f"targets: {', '.join(state.targets)}")
    for one in state.proposals:
        show_text(f"proposed on {one.when[:10]}: {one.text}; accept: tvmflow promote {one.cell} --proposal")
    suggest(next((one.next_step for one in state.cells), "tvmflow add MODEL_FILE"))


@app.command()
def devices(
    check: Annotated[
        bool, typer.Option("--check", help="Run one small kernel on each processor of each device that is free.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the devices of all targets with their state, the phones connected through adb and this machine's GPUs."""
    workspace = open_workspace()
    rows = [device.to_json() for device in api.devices(workspace)]
    held = api.quarantine(workspace)
    phones = [phone.to_json() for phone in api.phones()]
    gpus = api.gpus()
    checks = _processors(api.check_devices(workspace)) if check else []
    if as_json:
        found = {"targets": rows, "phones": phones, "gpus": [gpu.to_json() for gpu in gpus]}
        show_json({**found, "quarantined": [one.to_json() for one in held], "processors": checks})
        return
    columns = ("target", "kind", "key", "transport", "state")
    show_table("devices", columns, ([row[column] for column in columns] for row in rows))
    if phones:
        names = ("serial", "model", "android", "soc", "abi", "cores", "battery", "celsius", "state")
        show_table("phones", names, (["" if row[name] is None else str(row[name]) for name in names] for row in phones))
    if gpus:
        _show_gpus(gpus)
    if checks:
        columns = ("target", "processor", "name", "usable", "reason")
        show_table(
            "processors of the targets' devices", columns, ([one[column] for column in columns] for one in checks)
        )
    if held:
        show_table(
            "quarantined GPUs: not used for releases",
            ("GPU", "reason"),
            ([one.gpu, one.reason] for one in held),
            ("reason",),
        )
    suggest("tvmflow devices --check    (are the processors of these devices usable?)")


def _processors(found: Mapping[str, DeviceCheck | TvmflowError]) -> list[dict[str, str]]:
    """Return a row for each processor of each device, and for each device that cannot be asked."""
    names, rows = ("target", "processor", "name", "usable", "reason"), []
    for target, one in found.items():
        if isinstance(one, TvmflowError):
            rows.append((target, "", "", "no", one.found))
        else:
            rows += [(target, p.kind, p.name, "yes" if p.works else "no", p.reason) for p in one.processors]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _show_gpus(gpus: Sequence[GpuState]) -> None:
    """Print which GPUs of this machine are usable, with the reason and the self-tests that they passed."""
    rows = (
        [gpu.api, gpu.name, *(("yes", "") if gpu.usable else ("no", gpu.state)), gpu.driver, ", ".join(gpu.can)]
        for gpu in gpus
    )
    show_table("GPUs of this machine", ("API", "name", "usable", "reason", "driver", "passed"), rows)


@app.command()
def history(
    cell: Annotated[
        str | None,
        typer.Argument(help="A cell; without one, the newest measurements of many.", autocompletion=complete_cell),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="All cells of this model.")] = None,
    by: Annotated[By, typer.Option("--by", help="Of several cells: by tvm, device or unit.")] = By.TVM,
    as_json: Json = False,
) -> None:
    """List the measurements of a cell, oldest first, and changes of its champion; or the newest of many cells."""
    if cell is None or model is not None:
        if cell is not None:
            raise UsageError(f"both a cell, {cell}, and --model", "one of them")
        show_overview(model, by.value, as_json)
        return
    workspace = open_workspace()
    measurements = [measurement.to_json() for measurement in api.history(cell, workspace)]
    if as_json:
        show_json(measurements)
        return
    columns = (
        "when",
        "TVM",
        "device",
        "unit",
        "accuracy",
        "latency",
        "beside the last like it",
        "library",
        "version",
        "changed",
    )
    rows = []
    for row in measurements:
        latency = ", ".join(filter(None, (row["latency"], row["badges"])))
        changed = "; ".join(row["changed"]) or "the first"
        rows.append(
            [
                row["when"],
                row["tvm"],
                row["device"],
                row["unit"],
                row["accuracy"],
                latency,
                row["beside"],
                row["library"],
                row["version"],
                changed,
            ]
        )
    show_table(
        f"measurements of {cell}", columns, rows, ("device", "unit", "latency", columns[6], "version", "changed")
    )
    for change in api.releases(cell, workspace):
        show_text(
            f"{change.when} {change.what}: version {change.version}, before {change.before or 'none'}; {change.why}"
            + (f"; evidence {change.evidence[:12]}" if change.evidence else "")
        )
    suggest(f"tvmflow promote {cell}")


@app.command()
def report(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the page.")] = None,
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML report: cells, baselines, comparison, history, kernels, tuning, stages."""
    workspace = open_workspace()
    if as_json:
        show_json(api.report_data(workspace))
        return
    print(api.write_report(output, workspace))
    suggest("open the page in a browser; it says how to see all runs in MLflow")


@app.command()
def trace(
    cell: CellName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the trace; default: CELL.trace.json.")
    ] = None,
    overlay: Annotated[
        Path | None, typer.Option("--overlay", help="Also write each layer's latency as node data for Model Explorer.")
    ] = None,
) -> None:
    """Write the stages of a cell and the kernels of one run as a trace, for ui.perfetto.dev or chrome://tracing."""
    workspace = open_workspace()
    path = output or Path(f"{cell.replace('@', '.').replace(':', '.')}.trace.json")
    written = api.write_trace(cell, path, workspace)
    kernels = f"{written.kernels} kernel calls" if written.kernels else "no kernels: none was timed on this device"
    print(f"{path}: {written.stages} stages, {kernels}")
    if overlay is not None:
        print(f"{overlay}: {api.write_node_data(cell, overlay, workspace)} layers")
    suggest("open the file in https://ui.perfetto.dev: it is read in the browser and not uploaded")


@app.command()
def records(
    cell: CellName,
    merge: Annotated[list[Path], typer.Option("--merge", help="Add the records of another log; repeatable.")] = [],  # noqa: B006
    export: Annotated[Path | None, typer.Option("--export", help="Export to a MetaSchedule database.")] = None,
    bring: Annotated[Path | None, typer.Option("--import", help="Import a MetaSchedule database.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List failed candidates and their errors.")] = False,
    as_json: Json = False,
) -> None:
    """Show the tuning records of a cell, merge logs, or exchange schedules with MetaSchedule."""
    workspace = open_workspace()
    if failed:
        _show_failures(cell, api.failed_candidates(cell, workspace), as_json)
        return
    counts = api.records(cell, workspace, merge, export, bring)
    if as_json:
        show_json(counts)
        return
    for name, value in counts.items():
        print(f"{name:24} {value}")
    suggest(f"tvmflow run {cell}")


def _show_failures(cell: str, rows: list[dict[str, Any]], as_json: bool) -> None:
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
    """Check package versions, threads, tools, trackers and open ports; print a hint for each problem."""
    findings = api.examine(chosen_root())
    if as_json:
        show_json([finding.to_json() for finding in findings])
    else:
        show_table("doctor", ("", "what", "found", "hint"), ((f.level, f.what, f.found, f.hint) for f in findings))
    broken = [finding for finding in findings if finding.level == "broken"]
    if broken:
        raise TvmflowError(f"{len(broken)} check(s) failed: {', '.join(f.what for f in broken)}")
    suggest(_first_run())


def _first_run() -> str:
    """Return the command that runs a cell of this workspace, or adds a model where there is none."""
    try:
        cell = next(iter(open_workspace().params.cells), None)
    except TvmflowError:
        return "tvmflow new DIR"
    return f"tvmflow run {cell}" if cell else "tvmflow add MODEL_FILE"


@app.command()
def init(
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing on success.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Restore MLflow's measurements from artifacts/ and DVC's cache.")
    ] = False,
) -> None:
    """Create the stores of this workspace where none are set: a local DVC remote, MLflow's database. Safe to repeat."""
    workspace = open_workspace()
    rebuilt = api.initialize(workspace, rebuild)
    if rebuilt is not None:
        if rebuilt.set_aside:
            print(f"the damaged store is kept as {rebuilt.set_aside}")
        for text in rebuilt.lost:
            print(f"not recorded: {text}", file=sys.stderr)
        print(
            f"restored: {len(rebuilt.recorded)} measurement(s); already present: {rebuilt.known}; "
            f"champions restored: {', '.join(rebuilt.champions) or 'none'}"
        )
    if not quiet:
        where = api.store_addresses(workspace)
        models = f", registered models {where['registry']}" if where["registry"] != where["mlflow"] else ""
        print(
            f"workspace {workspace.root}: DVC remote {where['dvc'] or 'none'}, MLflow store {where['mlflow']}{models}"
        )
        suggest(_first_run())


@app.command()
def schema() -> None:
    """Print the JSON schema of params.yaml, for completion and validation in editors."""
    show_json(api.params_schema())
