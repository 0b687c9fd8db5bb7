"""Find what colleagues made by its recipe keys in the default DVC remote.

`recipes/STAGE/KEY` in the remote names a record, and for tune the log, by md5; DVC pushed their files before. A run
that lacks outputs asks for the keys of all its cells at once, one stage after the other, since a key contains the
outputs of the stages before. What is there goes to DVC's cache and to the index, where the store finds it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tvmflow.config.dvc_cache import dvc_cache, object_path
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import Record, record_from
from tvmflow.pipeline.stage import AnyStage
from tvmflow.pipeline.store import Known, Plan, Store
from tvmflow.support.errors import StoreAwayError, StoreError, TvmflowError, first_line
from tvmflow.support.files import sha256_of
from tvmflow.support.temporary import temporary_folder
from tvmflow.tracking.dvc.recipe_entries import FOLDER
from tvmflow.tracking.dvc.remote import Remote, open_remote

_AT_ONCE = 16  # connections


@dataclass
class Brought:
    """stages: number of stages that were brought; size: in bytes."""

    stages: int = 0
    size: int = 0


@dataclass
class _Waiting:
    """A cell whose plan lacks outputs. wanted: the first stage that does."""

    cell: Cell
    known: Known = field(default_factory=dict)
    wanted: Plan | None = None


def bring(
    workspace: Workspace, cells: Iterable[Cell], stages: Mapping[str, AnyStage], say: Callable[[str], None]
) -> Brought:
    """Bring the outputs that cells lack and the remote has. A remote that is away costs a line."""
    brought, store = Brought(), Store(workspace.at_once(), stages)
    waiting = [one for one in (_Waiting(cell) for cell in cells) if _lacks(store, one)]
    try:
        remote = open_remote(workspace) if waiting else None
        if remote is not None and remote.is_missing:
            raise StoreAwayError(f"the DVC remote is away: there is no folder {remote.root}")
        while remote is not None and remote.by_digest and waiting:
            found = _Source(workspace, remote).bring(store, [one.wanted for one in waiting if one.wanted], brought)
            for one in waiting:
                if one.wanted and (log := found.get(one.wanted.key)):
                    _place_log(workspace, one.cell, log)
            waiting = [one for one in waiting if one.wanted and one.wanted.key in found and _lacks(store, one)]
    except (StoreError, OSError) as error:
        say(f"{first_line(error, 300)}: what colleagues made is made again")
    if brought.stages:
        say(f"from the DVC remote, made by colleagues: {brought.stages} stages, {brought.size / 1e6:.1f} MB")
    return brought


def _lacks(store: Store, one: _Waiting) -> bool:
    """Find the first stage of a cell whose outputs are nowhere here; last those that are skipped if all others are.
    Returns False if there is none.
    """
    one.wanted = None
    one.known = {name: plan for name, plan in one.known.items() if isinstance(plan, Plan)}
    try:
        plans = store.foresee(one.cell, one.known)
    except TvmflowError:
        return False  # the run reports why
    lacking = (plan for plan in plans if isinstance(plan, Plan) and not plan.is_hit and plan.restorable is None)
    skipped = (store.lacks(name, one.cell, one.known) for name, stage in store.stages.items() if not stage.is_cached)
    one.wanted = next(lacking, None) or next(filter(None, skipped), None)
    return one.wanted is not None


def _place_log(workspace: Workspace, cell: Cell, log: Path | None) -> None:
    """Give a cell the log of its tuning, for DVC to version."""
    target = workspace.tuning_log(cell)
    if log is not None and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, target)
        target.chmod(0o644)


class _Source:
    """The default remote of a workspace, whose files go to DVC's cache."""

    def __init__(self, workspace: Workspace, remote: Remote) -> None:
        self.workspace, self.remote = workspace, remote

    def bring(self, store: Store, plans: Iterable[Plan], brought: Brought) -> dict[str, Path | None]:
        """Bring the outputs of plans. Returns key -> the tuning log, or None, of those that are complete here. Raises
        StoreAwayError.
        """
        wanted = {plan.key: plan for plan in plans}
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                entries = list(pool.map(self._entry, wanted.values()))
                records = list(pool.map(self._record, wanted.values(), entries))
                outputs = {one.md5: one.sha256 for record in records if record for one in record.outputs.values()}
                logs = {entry["log"]: None for entry in entries if "log" in entry}
                files = {**logs, **outputs}
                sizes = dict(zip(files, pool.map(self._file, files, files.values()), strict=True))
        except Exception as error:  # errors of the libraries below DVC
            raise StoreAwayError(f"the DVC remote went away: {first_line(error, 200)}") from None
        found: dict[str, Path | None] = {}
        for key, entry, record in zip(wanted, entries, records, strict=True):
            if record is not None and all(sizes[one.md5] is not None for one in record.outputs.values()):
                store.index.add(record)
                log = entry.get("log")
                found[key] = self.place(log) if log and sizes[log] is not None else None
        brought.stages += len(found)
        brought.size += sum(size or 0 for size in sizes.values())
        return found

    def _entry(self, plan: Plan) -> dict[str, str]:
        try:
            entry = json.loads(self.remote.read(f"{FOLDER}/{plan.stage.name}/{plan.key}") or b"{}")
        except ValueError:
            return {}
        return {name: text for name, text in entry.items() if _is_md5(text)} if isinstance(entry, dict) else {}

    def _record(self, plan: Plan, entry: dict[str, str]) -> Record | None:
        """Return the record of an entry, None if it is not that of the plan."""
        if "record" not in entry or self._file(entry["record"]) is None:
            return None
        try:
            record = record_from(json.loads(self.place(entry["record"]).read_bytes()), (plan.key, plan.recipe))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        names = [one.md5 for one in record.outputs.values()]
        return (
            record if (record.stage, record.key) == (plan.stage.name, plan.key) and all(map(_is_md5, names)) else None
        )

    def place(self, md5: str) -> Path:
        """Return the place of a file in DVC's cache."""
        return object_path(dvc_cache(self.workspace.root), md5)

    def _file(self, md5: str, sha256: str | None = None) -> int | None:
        """Copy a file to DVC's cache if it is not there. Returns the bytes copied, None if the remote lacks it or has
        other bytes.
        """
        place = self.place(md5)
        is_right = functools.partial(_is_right, md5=md5, sha256=sha256)
        if is_right(place):
            return 0
        place.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder("brought", place.parent) as folder:
            new = folder / "file"
            try:
                self.remote.fs.get_file(f"{self.remote.root}/files/md5/{md5[:2]}/{md5[2:]}", str(new))
            except FileNotFoundError:
                return None
            if not is_right(new):
                return None
            new.chmod(0o444)
            os.replace(new, place)
        return place.stat().st_size


def _is_md5(text: object) -> bool:
    return isinstance(text, str) and len(text) == 32 and set(text) <= set("0123456789abcdef")


def _is_right(path: Path, md5: str, sha256: str | None) -> bool:
    """Return whether a file has the sha256, or else the md5."""
    try:
        if sha256:
            return sha256_of(path) == sha256
        with path.open("rb") as file:
            return hashlib.file_digest(file, functools.partial(hashlib.md5, usedforsecurity=False)).hexdigest() == md5
    except OSError:
        return False
