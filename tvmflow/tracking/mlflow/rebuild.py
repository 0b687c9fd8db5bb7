"""Rebuild a lost or damaged MLflow store from artifacts/ and DVC's cache.

Every scorecard that can be found is recorded with the records of its stages, oldest first, so that libraries get the
same version numbers; releases are restored from artifacts/.recorded/releases.jsonl.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import DamagedStoreError, StoreError
from tvmflow.support.files import sha256_of
from tvmflow.tracking.dvc.chains import RecordsByStage, all_records, cell_of, follow, restore_output
from tvmflow.tracking.mlflow import releases
from tvmflow.tracking.mlflow.measurements import Measurement, ensure_recorded, is_recorded, record_measurement
from tvmflow.tracking.mlflow.registry import mlflow_lock
from tvmflow.tracking.mlflow.store import check_store, open_mlflow, sqlite_path

# Files of each stage that a recording reads.
_FILES = {
    "evaluate": ("scorecard.json", "confusion.csv", "latency.csv"),
    "tune": ("curve.csv",),
    "build": ("library.so", "manifest.json"),
    "fetch": ("golden.npz",),
    "quantize": ("reference.npz",),
}


@dataclass
class Rebuilt:
    """The result of a rebuild: recorded measurements, those that cannot be restored, names with a restored champion."""

    recorded: list[str] = field(default_factory=list)
    known: int = 0
    lost: list[str] = field(default_factory=list)
    champions: list[str] = field(default_factory=list)
    set_aside: str = ""


def rebuild(workspace: Workspace, stages: Mapping[str, AnyStage]) -> Rebuilt:
    """Set a damaged store aside, record every missing measurement, restore champions. Safe to repeat."""
    rebuilt = Rebuilt(set_aside=_set_aside(workspace))
    records = all_records(workspace)
    for record in records.get("evaluate", []):
        what = f"{record.cell}, measured {record.created}"
        try:
            if _record(workspace, stages, records, record):
                rebuilt.recorded.append(what)
            else:
                rebuilt.known += 1
        except DamagedStoreError:
            raise
        except (StoreError, ValidationError, LookupError, ValueError) as error:
            rebuilt.lost.append(f"{what}: {getattr(error, 'found', None) or f'its record cannot be read ({error!r})'}")
    with mlflow_lock(workspace):
        rebuilt.champions = releases.restore(open_mlflow(workspace), workspace)
    return rebuilt


def _set_aside(workspace: Workspace) -> str:
    """Rename an unreadable store. Returns its new name, empty if it is readable."""
    path = sqlite_path(workspace)
    try:
        check_store(workspace)
    except DamagedStoreError:
        assert path is not None
        bad = path.parent if path.parent.exists() and not path.parent.is_dir() else path
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        for part in (bad, *(bad.with_name(bad.name + end) for end in ("-journal", "-wal", "-shm"))):
            if part.exists():
                part.rename(part.with_name(f"{part.name}.damaged-{stamp}"))
        return f"{bad}.damaged-{stamp}"
    return ""


def _record(workspace: Workspace, stages: Mapping[str, AnyStage], records: RecordsByStage, scorecard: Record) -> bool:
    """Record one measurement with the records that led to it. Returns whether it was missing. Raises StoreError."""
    cell = cell_of(scorecard)
    chain = {"evaluate": scorecard}
    follow(stages, records, scorecard, chain)
    missing = [stage for stage in _FILES if stage not in chain]
    if missing:
        raise StoreError(f"its records of {' and '.join(missing)} are gone")
    if _lies_in_place(workspace, cell, chain):
        was_missing = not is_recorded(workspace, cell)
        ensure_recorded(workspace, cell)
        return was_missing
    with tempfile.TemporaryDirectory() as folder:
        for stage, names in _FILES.items():
            for name in names:
                restore_output(workspace, chain[stage], name, Path(folder) / stage / name)
        measurement = Measurement(cell, chain, lambda stage, name: Path(folder) / stage / name)
        return record_measurement(workspace, measurement, "unknown")


def _lies_in_place(workspace: Workspace, cell: Cell, chain: dict[str, Record]) -> bool:
    """Return whether this measurement is the one in the cell's folders."""
    try:
        return all(
            read_record(workspace.folder(stage, cell) / RECORD_NAME).digest() == chain[stage].digest()
            and sha256_of(workspace.folder(stage, cell) / name) == chain[stage].outputs[name].sha256
            for stage, names in _FILES.items()
            for name in names
        )
    except (StoreError, OSError):
        return False
