"""Find the outputs of recipe keys: artifacts/.index/STAGE/KEY.json has the record and the folders of the files."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, Record, read_record, record_from, record_text
from tvmflow.support.errors import StoreError
from tvmflow.support.files import write_atomic


class RecipeIndex:
    """The index of a workspace, which its variants share."""

    def __init__(self, workspace: Workspace) -> None:
        self._common = workspace.common

    def find(self, stage: str, key: str, folder: Path) -> tuple[Record, list[Path]] | None:
        """Return the record of a key that was made before, and the folders that may contain its outputs. folder: of the
        cell, whose record counts where the index has none.
        """
        try:
            known = json.loads(self._path(stage, key).read_text(encoding="utf-8"))
            record = record_from(known["record"])
            elsewhere = [Path(os.path.normpath(self._common / stage / str(slug))) for slug in known["slugs"]]
        except (OSError, ValueError, KeyError, TypeError):
            try:  # the record exists without its outputs, as in a clone without an index
                record, elsewhere = read_record(folder / RECORD_NAME), [folder]
            except StoreError:
                return None
        return (record, elsewhere) if record.key == key else None

    def add(self, record: Record, folder: Path | None = None) -> None:
        """Let the key of a record find its outputs, in DVC's cache and in the folder of a cell."""
        path = self._path(record.stage, record.key)
        slugs = {os.path.relpath(folder, self._common / record.stage)} if folder else set()
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            slugs |= set(json.loads(path.read_text(encoding="utf-8"))["slugs"])
        entry = {"record": json.loads(record_text(record)), "slugs": sorted(slugs)}
        write_atomic(path, json.dumps(entry, sort_keys=True))

    def _path(self, stage: str, key: str) -> Path:
        return self._common / ".index" / stage / f"{key}.json"
