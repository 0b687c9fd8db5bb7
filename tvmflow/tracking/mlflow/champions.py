"""List the champions of the model registry, and the records of the stages that made them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tvmflow.config.params import Cell, Params
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.errors import StoreAwayError, StoreError
from tvmflow.tracking.mlflow.registry import CHAMPION, Version, find_alias, registry_name
from tvmflow.tracking.mlflow.sqlite_reads import aliases_by_name
from tvmflow.tracking.mlflow.store import open_mlflow
from tvmflow.tracking.mlflow.version_files import version_records


@dataclass(frozen=True)
class Champion:
    """A released cell. cell: None if params.yaml has not its model or target any more; is_listed: under `cells:`."""

    name: str
    cell: Cell | None
    is_listed: bool
    version: Version


def champions(workspace: Workspace) -> list[Champion]:
    """Return the champions of all cells, in the order of their names."""
    names = sorted(name for name, aliases in aliases_by_name(workspace).items() if CHAMPION in aliases)
    if not names:
        return []
    client, params = open_mlflow(workspace), workspace.params
    listed = {registry_name(cell) for cell in params.cells.values()}
    found = ((name, find_alias(client, name, CHAMPION)) for name in names)
    return [Champion(name, _cell_of(params, name), name in listed, version) for name, version in found if version]


def _cell_of(params: Params, name: str) -> Cell | None:
    model, _, rest = name.partition(".")
    target, _, precision = rest.partition(".")
    if model not in params.models or target not in params.targets:
        return None
    try:
        return Cell.model_validate({"model": model, "target": target, "precision": precision})
    except ValidationError:
        return None


def records_of(workspace: Workspace, cell: Cell, version: Version, stages: Mapping[str, AnyStage]) -> dict[str, Record]:
    """Return the records of the stages that made a version: of the cell's folders if they are its, else from MLflow.

    Empty for a version of which neither has them. Raises StoreAwayError.
    """
    here = _in_folders(workspace, cell, stages)
    if "build" in here and here["build"].key == version.tags.get("build_key"):
        return here
    try:
        return version_records(workspace, version, [name for name, stage in stages.items() if stage.is_cached])
    except StoreAwayError:
        raise
    except StoreError:
        return {}


def _in_folders(workspace: Workspace, cell: Cell, stages: Mapping[str, AnyStage]) -> dict[str, Record]:
    """Return the records in the folders of a cell, nothing if one was not made from those before it."""
    records: dict[str, Record] = {}
    for name, stage in stages.items():
        with contextlib.suppress(StoreError):
            records[name] = read_record(workspace.folder(name, cell) / RECORD_NAME)
        if name in records and not _fits(records[name], stage.inputs, records):
            return {}
    return records


def _fits(record: Record, inputs: Mapping[str, Any], records: Mapping[str, Record]) -> bool:
    known = record.recipe["inputs"]
    return all(
        source in records and known.get(source) == records[source].digest(only) for source, only in inputs.items()
    )
