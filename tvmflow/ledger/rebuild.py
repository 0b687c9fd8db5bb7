"""Record again in MLflow what artifacts/ and DVC's cache hold: for a store that was lost or damaged.

Every scorecard that can still be found is recorded with the records of the stages that led to it, oldest first, so that
libraries get the numbers that they had; what was released comes back from artifacts/.recorded/releases.jsonl.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from tvmflow.artifacts import RECORD_NAME, Record, read_record, record_from, sha256_of
from tvmflow.errors import DamagedStoreError, StoreError
from tvmflow.ledger import dvc, releases
from tvmflow.ledger.measurements import Measurement, ensure_recorded, is_recorded, record_measurement
from tvmflow.ledger.registry import mlflow_lock, open_registry
from tvmflow.ledger.store_paths import check_store, sqlite_path
from tvmflow.params import Cell
from tvmflow.stages import AnyStage
from tvmflow.workspace import Workspace

_RECORD_START = b'{\n "cell": '  # how artifacts.record_text begins
_MAX_RECORD_BYTES = 4_000_000
# What a recording reads of each stage.
_FILES = {
    "evaluate": ("scorecard.json", "confusion.csv", "latency.csv"),
    "tune": ("curve.csv",),
    "build": ("library.so", "manifest.json"),
    "fetch": ("golden.npz",),
    "quantize": ("reference.npz",),
}
Found = dict[str, list[Record]]


@dataclass
class Rebuilt:
    """What a rebuild did: measurements that were missing in MLflow, those that cannot be had, names with a champion again."""

    recorded: list[str] = field(default_factory=list)
    known: int = 0
    lost: list[str] = field(default_factory=list)
    champions: list[str] = field(default_factory=list)
    set_aside: str = ""


def rebuild(workspace: Workspace, stages: Mapping[str, AnyStage]) -> Rebuilt:
    """Put a damaged store aside, record every measurement that MLflow lacks, bring champions back. Safe to repeat."""
    done = Rebuilt(set_aside=_set_aside(workspace))
    found = _records(workspace)
    for record in found.get("evaluate", []):
        what = f"{record.cell}, measured {record.created}"
        try:
            if _record(workspace, stages, found, record):
                done.recorded.append(what)
            else:
                done.known += 1
        except DamagedStoreError:
            raise
        except (StoreError, ValidationError, LookupError, ValueError) as error:
            done.lost.append(f"{what}: {getattr(error, 'found', None) or f'its record cannot be read ({error!r})'}")
    with mlflow_lock(workspace):
        done.champions = releases.restore(open_registry(workspace), workspace)
    return done


def _set_aside(workspace: Workspace) -> str:
    """Rename a store that cannot be read. Returns its new name, empty where all is well."""
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


def _records(workspace: Workspace) -> Found:
    """Return every record that can be found, by stage, oldest first, each once."""
    found: dict[tuple[str, str], Record] = {}
    for record in sorted((*_in_artifacts(workspace), *_in_dvc(workspace)), key=lambda record: record.created):
        found.setdefault((record.stage, f"{record.key}{record.digest()}{record.cell}"), record)
    by_stage: Found = {}
    for record in found.values():
        by_stage.setdefault(record.stage, []).append(record)
    return by_stage


def _in_artifacts(workspace: Workspace) -> Iterator[Record]:
    for path in workspace.artifacts.glob(f"*/*/{RECORD_NAME}"):
        try:
            yield read_record(path)
        except StoreError:
            continue
    for path in workspace.artifacts.glob(".index/*/*.json"):
        try:
            yield record_from(json.loads(path.read_text(encoding="utf-8"))["record"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def _in_dvc(workspace: Workspace) -> Iterator[Record]:
    for root in dvc.cache_roots(workspace):
        for path in root.glob("files/md5/*/*"):
            try:
                if path.stat().st_size > _MAX_RECORD_BYTES:
                    continue
                with path.open("rb") as file:
                    if file.read(len(_RECORD_START)) != _RECORD_START:
                        continue
                yield read_record(path)
            except (OSError, StoreError):
                continue


def _record(workspace: Workspace, stages: Mapping[str, AnyStage], found: Found, scorecard: Record) -> bool:
    """Record one measurement with all that led to it. Returns whether it was missing. Raises StoreError."""
    cell = _cell(scorecard)
    chain = {"evaluate": scorecard}
    _follow(stages, found, scorecard, chain)
    missing = [stage for stage in _FILES if stage not in chain]
    if missing:
        raise StoreError(f"no record of its {' and '.join(missing)} is left")
    if _lies_in_place(workspace, cell, chain):
        was_missing = not is_recorded(workspace, cell)
        ensure_recorded(workspace, cell)
        return was_missing
    with tempfile.TemporaryDirectory() as folder:
        for stage, names in _FILES.items():
            for name in names:
                _bring(workspace, chain[stage], name, Path(folder) / stage / name)
        measurement = Measurement(cell, chain, lambda stage, name: Path(folder) / stage / name)
        return record_measurement(workspace, measurement, "unknown")


def _lies_in_place(workspace: Workspace, cell: Cell, chain: dict[str, Record]) -> bool:
    """Say whether this measurement is the one in the cell's folders."""
    try:
        return all(
            read_record(workspace.folder(stage, cell) / RECORD_NAME).digest() == chain[stage].digest()
            and sha256_of(workspace.folder(stage, cell) / name) == chain[stage].outputs[name].sha256
            for stage, names in _FILES.items()
            for name in names
        )
    except (StoreError, OSError):
        return False


def _cell(record: Record) -> Cell:
    model, rest = record.cell.split("@")
    target, precision = rest.split(":")
    return Cell.model_validate({"model": model, "target": target, "precision": precision})


def _follow(stages: Mapping[str, AnyStage], found: Found, record: Record, chain: dict[str, Record]) -> None:
    """Add the records that a record was made from, and theirs: those whose outputs have the digests of its recipe.

    Of several with the same outputs the last of the cell that was made before it.
    """

    def distance(made: Record) -> tuple[bool, bool]:
        return made.cell != record.cell, made.created > record.created

    for source, only in stages[record.stage].inputs.items():
        if source in chain:
            continue
        wanted = record.recipe["inputs"].get(source)
        latest_first = sorted(found.get(source, []), key=lambda made: made.created, reverse=True)
        for made in sorted(latest_first, key=distance):
            if set(only or ()) <= set(made.outputs) and made.digest(only) == wanted:
                chain[source] = made
                _follow(stages, found, made, chain)
                break


def _bring(workspace: Workspace, record: Record, name: str, target: Path) -> None:
    """Copy an output to `target`, from its folder or from DVC's cache. Raises StoreError."""
    expected = record.outputs[name]
    place = workspace.folder(record.stage, _cell(record)) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if sha256_of(place) == expected.sha256:
            shutil.copyfile(place, target)
            return
    except OSError:
        pass
    dvc.file_by_md5(workspace, expected.md5, expected.sha256, target)
