"""Run one stage of one cell in this process: `python -m tasks build CELL`.

`dvc repro` calls this, and a flow starts it as a process. With --events N, progress and the final error are written to
file descriptor N as lines of JSON, followed by the digests of the files that were read; without it, progress goes to
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tasks.dask_cluster import DaskCluster
from tasks.device import use_unit
from tasks.events import Tell, tell_waits, teller
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace
from tvmflow.devices.device_lock import describe_work, shown_path
from tvmflow.devices.probe_driver import ask_driver
from tvmflow.devices.registry import transport_of
from tvmflow.devices.session import SessionLimits
from tvmflow.devices.this_host import hold_host_for_stage
from tvmflow.pipeline.check_params import check_rows
from tvmflow.pipeline.record import Record
from tvmflow.pipeline.stage import run_here
from tvmflow.pipeline.store import Store
from tvmflow.support import errors
from tvmflow.support.digests import Digests
from tvmflow.support.garbage import collect_rarely
from tvmflow.support.secrets import mask_process
from tvmflow.support.tvm_import import prepare_import_of_tvm
from tvmflow.tuning.measure.builders import use_builders
from tvmflow.tuning.status_lines import FIRST


def main(arguments: list[str] | None = None, known: list[list[Any]] | None = None) -> None:
    """Parse the command line, run the stage, and exit with a code for the result. known: digests known to the
    caller.
    """
    parser = argparse.ArgumentParser(prog="python -m tasks", description="Run one stage of one cell.")
    parser.add_argument("stage", choices=list(STAGES))
    parser.add_argument("cell", help="MODEL@TARGET:PRECISION, or a name under cells: in params.yaml")
    parser.add_argument("--root", type=Path, help="the workspace (default: the nearest folder with params.yaml)")
    parser.add_argument("--again", action="store_true", help="run it even if its outputs exist")
    parser.add_argument("--preview", action="store_true", help="print only the messages before the run; store nothing")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--unit", default="", help="the unit of the device to use (default: any)")
    parser.add_argument("--dask", default="", help="the Dask cluster to use (default: as params.yaml says)")
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    mask_process()
    collect_rarely()
    if options.debug:
        os.environ["TVMFLOW_DEBUG"] = "1"  # the only way to pass this to a sandbox
    prepare_import_of_tvm()
    tell = teller(options.events)
    use_unit(options.unit)
    if options.events is not None:
        tell_waits(tell)
    if options.preview:
        _preview(options, tell, known)
        return
    try:
        record, outcome, digests = _run(options, tell, known)
    except errors.TvmflowError as error:
        if options.debug:
            raise
        tell({"error": error.to_json()})
        if options.events is None:
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    tell({"outcome": outcome, "digests": digests.to_json()})
    if options.events is None:
        print(f"{record.stage} {record.cell}: {outcome}, key {record.key[:12]}, {record.elapsed_s:.1f} s")


def _preview(options: argparse.Namespace, tell: Tell, known: list[list[Any]] | None) -> None:
    """Run the preview of a stage; its failure is only reported, since the stage does not need it."""

    def say(text: str, done: int, total: int) -> None:
        tell({"progress": [text, done, total]})

    workspace = _workspace(options, known)
    try:
        cell = workspace.params.cell(options.cell)
        with _host_for(options.stage, workspace, cell):
            Store(workspace, STAGES).preview(options.stage, cell, say)
    except Exception as error:  # errors of TVM, a device or a baseline: the stage itself reports them in detail
        if options.debug:
            raise
        say(f"{FIRST}not measured: {errors.first_line(error, 160)}", 0, 0)
    tell({"outcome": "previewed", "digests": workspace.digests.to_json()})


def _workspace(options: argparse.Namespace, known: list[list[Any]] | None) -> Workspace:
    workspace = find_workspace(options.root)
    check_rows(workspace.params)
    workspace.digests.learn(known or [])
    return workspace


def _run(options: argparse.Namespace, tell: Tell, known: list[list[Any]] | None) -> tuple[Record, str, Digests]:
    workspace = _workspace(options, known)
    cell, stage = workspace.params.cell(options.cell), STAGES[options.stage]
    cluster = _cluster(options.dask, workspace)
    if cluster is not None:
        use_builders(cluster)
    is_away = cluster is not None and cluster.can_run(stage)
    run = cluster.run if cluster is not None and is_away else run_here
    with contextlib.nullcontext() if is_away else _host_for(options.stage, workspace, cell):
        _ask_driver(stage.name == "tune", workspace, cell, options.unit)
        record, outcome = Store(workspace, STAGES, run).ensure(
            options.stage,
            cell,
            progress=lambda text, done, total: tell({"progress": [text, done, total]}),
            again=options.again,
        )
        _ask_driver(stage.has_metrics and outcome == "made", workspace, cell, options.unit)
    if stage.has_metrics and not workspace.is_variant:
        _record_measurement(workspace, cell)
    return record, outcome, workspace.digests


def _cluster(address: str, workspace: Workspace) -> DaskCluster | None:
    flows = workspace.params.flows
    address = address or (flows.dask_address or "" if flows.runner == "dask" else "")
    return DaskCluster(address) if address else None


def _ask_driver(is_due: bool, workspace: Workspace, cell: Cell, unit: str) -> None:
    """Ask the device for its GPU's driver: before `tune`, whose key has it, and after a measurement, since it may be
    another unit. A device that is busy or away is not waited for.
    """
    if is_due:
        limits = SessionLimits(workspace.params.deploy.session_timeout_s, 0.0, unit)
        with contextlib.suppress(errors.TvmflowError):
            ask_driver(workspace.root, cell.target, workspace.params.targets[cell.target], limits)


def _host_for(stage: str, workspace: Workspace, cell: Cell) -> AbstractContextManager[None]:
    """Hold this machine for a stage, alone if the stage measures its processors."""
    describe_work(f"{shown_path(workspace.root)} {cell.slug} {stage}")
    device = workspace.params.targets[cell.target].device
    return hold_host_for_stage(STAGES[stage].measures_device and transport_of(device).is_this_host)


def _record_measurement(workspace: Workspace, cell: Cell) -> None:
    from tvmflow.tracking.mlflow.recorded import is_recorded, record_or_keep

    try:
        is_new = not is_recorded(workspace, cell)
    except errors.StoreAwayError:
        is_new = False
    if away := record_or_keep(workspace, cell):
        print(f"not recorded yet: {away}; the next command records it", file=sys.stderr)
    elif is_new:
        _describe_run(workspace, cell)


def _describe_run(workspace: Workspace, cell: Cell) -> None:
    """Add description and pictures to the run; the measurement is whole without them."""
    from tvmflow.report.mlflow_page import describe_run

    try:
        describe_run(workspace, cell)
    except errors.TvmflowError as error:
        print(f"the run in MLflow has no description: {errors.first_line(error, 160)}", file=sys.stderr)


if __name__ == "__main__":
    main()
