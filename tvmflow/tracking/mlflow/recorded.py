"""Check whether the scorecard in a cell's folder is in MLflow, and record it: now, or when the server is back."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.support.errors import StoreAwayError, StoreError
from tvmflow.support.files import write_atomic
from tvmflow.tracking.dvc.chains import cell_of
from tvmflow.tracking.mlflow.address import identity, sqlite_path
from tvmflow.tracking.mlflow.links import page_of, run_url
from tvmflow.tracking.mlflow.markers import read_marker
from tvmflow.tracking.mlflow.measurements import Measurement, complete_runs, record_measurement
from tvmflow.tracking.mlflow.registry import mlflow_lock
from tvmflow.tracking.mlflow.store import experiment_of, measurement_in_file, open_mlflow

_COMMIT = "git_commit"


@dataclass(frozen=True)
class Kept:
    """Measurements that wait for MLflow's server. done: recorded now; left: still waiting, and why."""

    done: int = 0
    left: int = 0
    why: str = ""


def recorded_run(workspace: Workspace, cell: Cell) -> str | None:
    """Return the run of the scorecard in the cell's folder, None where the store has none. Raises StoreError."""
    digest = read_record(workspace.folder("evaluate", cell) / RECORD_NAME).digest()
    if sqlite_path(workspace) is not None:
        return measurement_in_file(workspace, digest, read_marker(workspace, digest).runs.get(identity(workspace), ""))
    client = open_mlflow(workspace)
    experiment = client.get_experiment_by_name(cell.model)
    if experiment is None or experiment.lifecycle_stage != "active":
        return None
    runs = complete_runs(client, experiment.experiment_id, digest)
    return runs[0] if runs else None


def is_recorded(workspace: Workspace, cell: Cell) -> bool:
    """Return whether the scorecard in the cell's folder is in the store; starts MLflow only for a server. Raises
    StoreError.
    """
    if not (workspace.folder("evaluate", cell) / RECORD_NAME).is_file():
        return True  # nothing to record
    try:
        read_record(workspace.folder("evaluate", cell) / RECORD_NAME)
    except StoreError:
        return True
    return recorded_run(workspace, cell) is not None


def run_page(workspace: Workspace, cell: Cell) -> str | None:
    """Return the address in MLflow's UI of the measurement in the cell's folder, None where it is not recorded."""
    try:
        run_id = recorded_run(workspace, cell)
        return run_id and page_of(run_url(experiment_of(workspace, run_id), run_id))
    except StoreError:
        return None


def ensure_recorded(workspace: Workspace, cell: Cell) -> None:
    """Record the cell's scorecard unless MLflow has it. Safe to repeat after a crash at any point."""
    if not is_recorded(workspace, cell):
        record_measurement(workspace, _in_folders(workspace, cell), git_commit(workspace.root))


def record_or_keep(workspace: Workspace, cell: Cell) -> str:
    """Record the cell's scorecard. Where the server does not answer, keep it and return why; else return nothing."""
    try:
        ensure_recorded(workspace, cell)
        return ""
    except StoreAwayError as error:
        _keep(workspace, _in_folders(workspace, cell))
        return error.found


def record_kept(workspace: Workspace) -> Kept:
    """Record the measurements that wait for the server, oldest first, until it does not answer.

    One that cannot be read or recorded stays, and does not keep the others from it.
    """
    folders = [path for path in _queue(workspace).glob("[!.]*") if path.is_dir()]  # .NAME: its copy was interrupted
    waiting: dict[Path, Record] = {}
    done, why = 0, ""
    for path in folders:
        try:
            waiting[path] = read_record(path / "evaluate" / RECORD_NAME)
        except StoreError as error:
            why = error.found
    for path, scorecard in sorted(waiting.items(), key=lambda item: item[1].created):
        try:
            _record(workspace, path, scorecard)
        except StoreError as error:
            why = error.found
            if isinstance(error, StoreAwayError):
                break
        else:
            done += 1
    return Kept(done, len(folders) - done, why)


def _record(workspace: Workspace, folder: Path, scorecard: Record) -> None:
    records = {path.parent.name: read_record(path) for path in sorted(folder.glob(f"*/{RECORD_NAME}"))}
    measurement = Measurement(cell_of(scorecard), records, lambda stage, name: folder / stage / name)
    record_measurement(workspace, measurement, json.loads((folder / "kept.json").read_text())[_COMMIT])
    shutil.rmtree(folder, ignore_errors=True)


def _queue(workspace: Workspace) -> Path:
    return workspace.artifacts / ".recorded" / "kept"


def _keep(workspace: Workspace, measurement: Measurement) -> None:
    """Copy what a recording reads: the folders of the cell may be replaced before the server is back."""
    folder = _queue(workspace) / measurement.digest
    with mlflow_lock(workspace):
        if folder.exists():
            return
        half = folder.with_name(f".{folder.name}")
        shutil.rmtree(half, ignore_errors=True)
        try:
            measurement.copy_to(half)
            write_atomic(half / "kept.json", json.dumps({_COMMIT: git_commit(workspace.root)}))
            half.rename(folder)
        finally:
            shutil.rmtree(half, ignore_errors=True)  # the disk may be full


def _in_folders(workspace: Workspace, cell: Cell) -> Measurement:
    """Return the measurement in the cell's folders, with what it was made from: the stages that a rebuild follows."""
    records: dict[str, Record] = {}
    todo = ["evaluate"]
    while todo:
        name = todo.pop()
        if name not in records:
            with contextlib.suppress(StoreError):
                records[name] = read_record(workspace.folder(name, cell) / RECORD_NAME)
                todo += records[name].recipe["inputs"]
    return Measurement(cell, records, lambda stage, name: workspace.folder(stage, cell) / name)


def git_commit(root: Path) -> str:
    """Return the commit of the workspace, with '+changes' when files differ from it; 'none' outside of git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
        if head.returncode:
            return "none"
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, check=False
        )
        return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")
    except OSError:
        return "none"
