"""Run one stage of one cell in this process: `python -m tasks build CELL`.

`dvc repro` calls this, and a flow starts it as a process. With --events N, progress and the final error are written to
file descriptor N as lines of JSON, followed by the digests of the files that were read; without it, progress goes to
standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

from tasks.device import use_unit
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace
from tvmflow.devices.device_lock import describe_work, shown_path
from tvmflow.devices.registry import transport_of
from tvmflow.devices.this_host import hold_host_for_stage
from tvmflow.devices.waiting import WAITS_HERE
from tvmflow.pipeline.check_params import check_rows
from tvmflow.pipeline.record import Record
from tvmflow.pipeline.store import Store
from tvmflow.support import errors
from tvmflow.support.digests import Digests
from tvmflow.support.secrets import mask_process
from tvmflow.support.tvm_import import prepare_import_of_tvm
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
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    mask_process()
    if options.debug:
        os.environ["TVMFLOW_DEBUG"] = "1"  # the only way to pass this to a sandbox
    prepare_import_of_tvm()
    tell = _teller(options.events)
    use_unit(options.unit)
    if options.events is not None:
        _tell_waits(tell)
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


def _preview(
    options: argparse.Namespace, tell: Callable[[dict[str, Any]], None], known: list[list[Any]] | None
) -> None:
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


def _run(
    options: argparse.Namespace, tell: Callable[[dict[str, Any]], None], known: list[list[Any]] | None
) -> tuple[Record, str, Digests]:
    workspace = _workspace(options, known)
    cell = workspace.params.cell(options.cell)
    with _host_for(options.stage, workspace, cell):
        record, outcome = Store(workspace, STAGES).ensure(
            options.stage,
            cell,
            progress=lambda text, done, total: tell({"progress": [text, done, total]}),
            again=options.again,
        )
    if STAGES[options.stage].has_metrics and not workspace.is_variant:
        _record_measurement(workspace, cell)
    return record, outcome, workspace.digests


def _host_for(stage: str, workspace: Workspace, cell: Cell) -> AbstractContextManager[None]:
    """Hold this machine for a stage, alone if the stage measures its processors."""
    describe_work(f"{shown_path(workspace.root)} {cell.slug} {stage}")
    device = workspace.params.targets[cell.target].device
    return hold_host_for_stage(STAGES[stage].measures_device and transport_of(device).is_this_host)


def _tell_waits(tell: Callable[[dict[str, Any]], None]) -> None:
    """Tell the flow of waits for devices, which do not count against the time limit of the stage."""
    WAITS_HERE.say = lambda text: tell({"progress": [text, 0, 0]})
    WAITS_HERE.on_pause = lambda is_paused: tell({"paused": is_paused})


def _record_measurement(workspace: Workspace, cell: Cell) -> None:
    from tvmflow.tracking.mlflow.recorded import record_or_keep

    if away := record_or_keep(workspace, cell):
        print(f"not recorded yet: {away}; the next command records it", file=sys.stderr)


def _teller(descriptor: int | None) -> Callable[[dict[str, Any]], None]:
    if descriptor is None:
        return _tell_terminal

    def tell(event: dict[str, Any]) -> None:
        rest = (json.dumps(event) + "\n").encode()
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError:
            _leave()

    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()
    return tell


def _watch(descriptor: int) -> None:
    """Wait until the reader of this process's events is gone."""
    poll = select.poll()
    poll.register(descriptor, 0)  # poll reports errors without any requested event
    while not poll.poll():
        pass
    _leave()


def _leave() -> NoReturn:
    """End this process and its children, since its parent is gone. The stage stays unfinished, as after a kill."""
    if os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _tell_terminal(event: dict[str, Any]) -> None:
    if "progress" in event and sys.stderr.isatty():
        text, done, total = event["progress"]
        count = f" {done}/{total}" if total else ""
        ends = text.startswith(FIRST) or (total and done == total)
        print(f"\r\033[K{text}{count}", end="\n" if ends else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
