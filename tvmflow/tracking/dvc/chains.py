"""Find the chain of records that led to a measured library, in artifacts/ or DVC's cache."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record, record_from
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import StoreError
from tvmflow.support.files import sha256_of
from tvmflow.tracking.dvc import repository as dvc
from tvmflow.tracking.dvc.shared_cache import objects_of

_RECORD_START = b'{\n "cell": '  # beginning of record_text
_MAX_RECORD_BYTES = 4_000_000
_MAX_NAMES = 10  # per record, since every subset is tried: 1023 digests
RecordsByStage = dict[str, list[Record]]


def all_records(workspace: Workspace) -> RecordsByStage:
    """Return every record that can be found, by stage, oldest first, without duplicates."""
    return _by_stage((*_in_artifacts(workspace), *_in_dvc(workspace)))


def records_in_place(workspace: Workspace, cell: Cell) -> RecordsByStage:
    """Return the records in a cell's own folders, by stage."""
    records = []
    for path in workspace.artifacts.glob(f"*/{cell.slug}/{RECORD_NAME}"):
        try:
            records.append(read_record(path))
        except StoreError:
            continue
    return _by_stage(records)


def _by_stage(records: Iterable[Record]) -> RecordsByStage:
    unique: dict[tuple[str, str], Record] = {}
    for record in sorted(records, key=lambda record: record.created):
        unique.setdefault((record.stage, f"{record.key}{record.digest()}{record.cell}"), record)
    by_stage: RecordsByStage = {}
    for record in unique.values():
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
        for path in objects_of(workspace, root):
            try:
                if path.stat().st_size > _MAX_RECORD_BYTES:
                    continue
                with path.open("rb") as file:
                    if file.read(len(_RECORD_START)) != _RECORD_START:
                        continue
                yield read_record(path)
            except (OSError, StoreError):
                continue


def follow(stages: Mapping[str, AnyStage], records: RecordsByStage, record: Record, chain: dict[str, Record]) -> None:
    """Add the records that a record depends on, recursively: those whose outputs have the digests of its recipe.

    Of several with equal outputs, the last of the same cell before it. A stage of an earlier version may have read
    other files.
    """

    def distance(candidate: Record) -> tuple[bool, bool]:
        return candidate.cell != record.cell, candidate.created > record.created

    for source, digest in record.recipe["inputs"].items():
        if source in chain:
            continue
        only = stages[record.stage].inputs.get(source)
        latest_first = sorted(records.get(source, []), key=lambda producer: producer.created, reverse=True)
        nearest_first = sorted(latest_first, key=distance)
        producer = next((producer for producer in nearest_first if _digest(producer, only) == digest), None)
        producer = producer or next(
            (producer for producer in nearest_first if _matches_outputs(producer, digest)), None
        )
        if producer is not None:
            chain[source] = producer
            follow(stages, records, producer, chain)


def _digest(record: Record, only: tuple[str, ...] | None) -> str | None:
    return record.digest(only) if set(only or ()) <= set(record.outputs) else None


def _matches_outputs(record: Record, digest: str) -> bool:
    """Return whether a digest is that of some subset of a record's outputs."""
    names = [name for name in sorted(record.outputs) if "/" not in name][:_MAX_NAMES]
    some = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(1, len(names) + 1))
    return record.digest() == digest or any(record.digest(only) == digest for only in some)


def cell_of(record: Record) -> Cell:
    """Return the cell of a record."""
    model, rest = record.cell.split("@")
    target, precision = rest.split(":")
    return Cell.model_validate({"model": model, "target": target, "precision": precision})


def restore_output(workspace: Workspace, record: Record, name: str, target: Path) -> None:
    """Copy an output to `target`, from its folder or from DVC's cache. Raises StoreError."""
    expected = record.outputs.get(name)
    if expected is None:
        raise StoreError(
            f"{record.stage} of {record.cell} has no output {name}", hint=f"run 'tvmflow run {record.cell}'"
        )
    place = workspace.folder(record.stage, cell_of(record)) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if sha256_of(place) == expected.sha256:
            shutil.copyfile(place, target)
            return
    except OSError:
        pass
    dvc.file_by_md5(workspace, expected.md5, expected.sha256, target)


def chain_of(
    workspace: Workspace, stages: Mapping[str, AnyStage], cell: Cell, library: tuple[str, str] | None
) -> dict[str, Record]:
    """Return stage -> record of a library with its last measurement; None: of the library in the cell's folders.

    library: sha256 of library.so and of network.so ("" if unknown). Raises StoreError if it was never measured, or if
    its records are gone.
    """
    for everywhere in (False, True):
        records = all_records(workspace) if everywhere else records_in_place(workspace, cell)
        for record in reversed(records.get("evaluate", [])):
            chain = {"evaluate": record}
            follow(stages, records, record, chain)
            if record.cell == str(cell) and _is_complete(chain) and _is_library(chain["build"], library):
                return {stage: chain[stage] for stage in stages if stage in chain}
        if library is None:
            break
    what = f"with sha256 {library[0][:12]}" if library else "in its folders"
    raise StoreError(
        f"the library of {cell} {what} has no measurement",
        "the records of all its stages",
        f"run 'tvmflow run {cell}'; 'dvc fetch --all-commits' brings older records",
    )


def _is_complete(chain: Mapping[str, Record]) -> bool:
    return {"fetch", "import_model", "quantize", "graph_pack", "tune", "build"} <= set(chain)


def _is_library(build: Record, library: tuple[str, str] | None) -> bool:
    if library is None:
        return True
    network = build.outputs.get("network.so")
    return build.outputs["library.so"].sha256 == library[0] and library[1] in ("", network.sha256 if network else "")
