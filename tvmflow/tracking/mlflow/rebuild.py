"""Rebuild a lost, damaged or new MLflow store from artifacts/, DVC's cache and the workspace's own store.

Every measurement that can be found is recorded once, oldest first, so that libraries get the same version numbers; then
the changes of champions are restored.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import DamagedStoreError, StoreAwayError, StoreError
from tvmflow.support.files import write_atomic
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.dvc.chains import RecordsByStage, all_records, cell_of, follow, restore_output
from tvmflow.tracking.mlflow import releases
from tvmflow.tracking.mlflow.address import identity, sqlite_path
from tvmflow.tracking.mlflow.experiments import experiment_id
from tvmflow.tracking.mlflow.local_store import LocalRun, LocalStore
from tvmflow.tracking.mlflow.measurements import RECORDED_FILES, Measurement, milliseconds, record_measurement
from tvmflow.tracking.mlflow.recorded import git_commit, record_kept
from tvmflow.tracking.mlflow.registry import mlflow_lock
from tvmflow.tracking.mlflow.store import check_store, open_mlflow, recorded_digests
from tvmflow.tracking.mlflow.trend import EXPERIMENT


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
    record_kept(workspace)
    client, local = open_mlflow(workspace), LocalStore.beside(workspace)
    known, records = recorded_digests(client), all_records(workspace)
    cards = {record.digest(): record for record in records.get("evaluate", [])}
    runs = local.runs() if local else {}
    times = {digest: run.measured_ms for digest, run in runs.items()}
    times |= {digest: milliseconds(record.created) for digest, record in cards.items()}
    for digest in sorted(times, key=lambda digest: times[digest]):
        card, run = cards.get(digest), runs.get(digest)
        if digest in known:
            rebuilt.known += 1
            continue
        what = f"{card.cell}, measured {card.created}" if card else f"{run.cell}, measured {run.created}" if run else ""
        try:
            _record(workspace, stages, records, card, run)
            rebuilt.recorded.append(what)
        except (DamagedStoreError, StoreAwayError):
            raise
        except (StoreError, ValidationError, LookupError, ValueError) as error:
            rebuilt.lost.append(f"{what}: {getattr(error, 'found', None) or f'its record cannot be read ({error!r})'}")
    with mlflow_lock(workspace):
        rebuilt.champions = releases.restore(
            client, [*(local.changes() if local else []), *releases.kept_changes(workspace)]
        )
    _note_store(workspace, client)
    return rebuilt


def fill_new_server(workspace: Workspace, stages: Mapping[str, AnyStage]) -> Rebuilt | None:
    """Rebuild the store if it is a server that this workspace never filled, or one that was set up anew since.

    Returns what that did, None if there was nothing to do. Raises StoreError.
    """
    if sqlite_path(workspace) is not None or _noted_store(workspace) == _store_of(workspace, open_mlflow(workspace)):
        return None
    return rebuild(workspace, stages)


def _store_of(workspace: Workspace, client: Any) -> dict[str, str] | None:
    """Return what tells a server's store from one that was set up at the same address later, None for an empty one."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is None:
        return None
    return {"store": identity(workspace), "made": f"{found.experiment_id} {found.creation_time}"}


def _filled_path(workspace: Workspace) -> Path:
    return workspace.artifacts / ".recorded" / "filled.json"


def _noted_store(workspace: Workspace) -> Any:
    try:
        return json.loads(_filled_path(workspace).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _note_store(workspace: Workspace, client: Any) -> None:
    if sqlite_path(workspace) is None:
        with mlflow_lock(workspace):
            experiment_id(client, workspace, EXPERIMENT)
            write_atomic(_filled_path(workspace), json.dumps(_store_of(workspace, client)))


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


def _record(
    workspace: Workspace,
    stages: Mapping[str, AnyStage],
    records: RecordsByStage,
    scorecard: Record | None,
    run: LocalRun | None,
) -> None:
    """Record one measurement with the records that led to it, else from its run in the workspace's own store. Raises
    StoreError.
    """
    try:
        if scorecard is None:
            raise StoreError("its scorecard is gone")
        _record_from_files(workspace, stages, records, scorecard, run)
    except StoreAwayError:
        raise
    except (StoreError, ValidationError, LookupError, ValueError):
        if run is None:
            raise
        with mlflow_lock(workspace):
            run.copy_to(workspace, open_mlflow(workspace))


def _record_from_files(
    workspace: Workspace,
    stages: Mapping[str, AnyStage],
    records: RecordsByStage,
    scorecard: Record,
    run: LocalRun | None,
) -> None:
    chain = {"evaluate": scorecard}
    follow(stages, records, scorecard, chain)
    missing = [stage for stage in RECORDED_FILES if stage not in chain]
    if missing:
        raise StoreError(f"its records of {' and '.join(missing)} are gone")
    with temporary_folder("mlflow") as folder:
        measurement = Measurement(cell_of(scorecard), chain, lambda stage, name: Path(folder) / stage / name)
        for stage, name in measurement.files():
            restore_output(workspace, chain[stage], name, Path(folder) / stage / name)
        record_measurement(workspace, measurement, run.git_commit if run else _commit(workspace, scorecard))


def _commit(workspace: Workspace, scorecard: Record) -> str:
    """Return the commit to note for a measurement that has no marker: the current one only if it lies in its folder."""
    place = workspace.folder("evaluate", cell_of(scorecard)) / RECORD_NAME
    with contextlib.suppress(StoreError):
        if read_record(place).digest() == scorecard.digest():
            return git_commit(workspace.root)
    return "unknown"
