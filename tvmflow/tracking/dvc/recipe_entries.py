"""Write to the DVC remote which records have which recipe keys; `remote_recipes` reads it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.support.errors import StoreError
from tvmflow.support.files import describe_file
from tvmflow.tracking.dvc.remote import Remote

FOLDER = "recipes"
_AT_ONCE = 16  # connections
_LOGGED = "tune"

Entries = dict[str, dict[str, str]]  # STAGE/KEY -> {"record": md5 of record.json, "log": md5 of the tuning log}


def entries_of(workspace: Workspace, cell: Cell, stages: Iterable[str]) -> Entries:
    """Return what the remote is to know of the folders of a cell."""
    entries = {}
    for stage in stages:
        path = workspace.folder(stage, cell) / RECORD_NAME
        with contextlib.suppress(StoreError, OSError):
            entry = {"record": describe_file(path).md5}
            if stage == _LOGGED:
                entry["log"] = describe_file(workspace.tuning_log(cell)).md5
            entries[f"{stage}/{read_record(path).key}"] = entry
    return entries


def write_entries(remote: Remote, entries: Entries) -> None:
    """Write entries to a remote, except those that it has."""

    def write(name: str) -> None:
        remote.write(f"{FOLDER}/{name}", json.dumps(entries[name], sort_keys=True).encode())

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(write, entries))
