"""Record outputs with DVC, push them, and restore files from its cache. One call at a time.

A stage that DVC itself runs (`dvc repro`) never calls DVC: DVC_STAGE is set there.
"""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from tvmflow.config.dvc_cache import dvc_cache, object_path
from tvmflow.config.params import STAGE_NAMES, Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME, read_record
from tvmflow.support.errors import StoreAwayError, StoreError
from tvmflow.support.files import describe_file, digest_of, sha256_of, write_atomic
from tvmflow.support.paths import CODE_ROOT
from tvmflow.support.private_places import is_trusted
from tvmflow.support.secrets import mask
from tvmflow.support.telemetry import PRIVACY
from tvmflow.toolchain.environments import cache_folder
from tvmflow.tracking.dvc import merge_lock, offline_plots, pipelines, unlisted
from tvmflow.tracking.dvc.recipe_entries import Entries, entries_of

DEFAULT_REMOTE = "dvc_storage"


def run_dvc(workspace: Workspace, *arguments: str) -> str:
    """Run one DVC command in the workspace. Returns its output; raises StoreError with its complaint."""
    return _run(workspace, ["dvc", *arguments], f"'dvc {' '.join(arguments)}'")


def _run(workspace: Workspace, module: list[str], what: str, request: str = "") -> str:
    """Run a module that calls DVC. what: its name in errors; request: its standard input."""
    lock = workspace.artifacts / ".locks" / "dvc.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    search = os.pathsep.join(filter(None, (str(CODE_ROOT), os.environ.get("PYTHONPATH"))))
    with FileLock(lock):
        completed = subprocess.run(
            [sys.executable, "-P", "-m", *module],
            cwd=workspace.root,
            capture_output=True,
            text=True,
            check=False,
            env={**_own_places(), **os.environ, **PRIVACY, "PYTHONPATH": search},
            input=request,
        )
    if completed.returncode:
        lines = [line for line in f"{completed.stderr}\n{completed.stdout}".splitlines() if line.strip()]
        raise _error(f"{what} failed: {' '.join(lines)[-500:]}")
    return completed.stdout


def _own_places() -> dict[str, str]:
    """Return what keeps DVC out of /var/tmp, where it reads pickles that any user may have put there; and a name for a
    user who has none, as in a container, which DVC asks for.
    """
    return {"DVC_SITE_CACHE_DIR": str(cache_folder() / "dvc"), "USER": str(os.getuid())}


def _error(found: str) -> StoreError:
    return StoreError(
        found,
        hint="run 'dvc status' for details; restore a damaged dvc.lock, dvc.yaml or .dvc/config with 'git checkout'",
    )


def is_initialized(workspace: Workspace) -> bool:
    return (workspace.root / ".dvc" / "config").is_file() and (workspace.root / "dvc.yaml").is_file()


def is_inside_repro() -> bool:
    return "DVC_STAGE" in os.environ


def initialize(workspace: Workspace) -> None:
    """Create the DVC repository and its default remote, a folder of the workspace, if missing.

    Writes the same files as `dvc init`, `dvc config` and `dvc remote add`, each of which takes seconds to start.
    """
    config = workspace.root / ".dvc" / "config"
    has_git = is_in_git(workspace.root)
    if not config.is_file():
        write_atomic(config, "" if has_git else "[core]\n    no_scm = True\n")
        write_atomic(config.with_name(".gitignore"), "/config.local\n/tmp\n/cache\n")
    text = config.read_text(encoding="utf-8")
    if "remote" not in text:
        core = "    analytics = false\n    check_update = false\n    remote = local\n"
        text = text.replace("[core]\n", f"[core]\n{core}", 1) if "[core]\n" in text else f"{text}[core]\n{core}"
        write_atomic(config, f"{text}['remote \"local\"']\n    url = ../{DEFAULT_REMOTE}\n")
    offline_plots.install(config.parent)
    if has_git:
        merge_lock.install(workspace.root)


def is_in_git(root: Path) -> bool:
    """Return whether a folder is in a git repository that nobody else made, as in /tmp: git refuses those."""
    found = next((path for folder in (root, *root.parents) if (path := folder / ".git").exists()), None)
    return found is not None and (is_trusted(found.lstat().st_uid) or found.lstat().st_uid == root.stat().st_uid)


def default_remote(workspace: Workspace) -> str:
    """Return where the default remote is: an address, or a folder relative to the workspace; "" without one."""
    config = configparser.ConfigParser(interpolation=None, strict=False)
    folder = workspace.root / ".dvc"
    try:
        config.read([folder / "config", folder / "config.local"], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise _error(f"{folder / 'config'} cannot be read: {' '.join(str(error).split())[:200]}") from None
    name = config.get("core", "remote", fallback="")
    url = config.get(f"'remote \"{name}\"'", "url", fallback="")
    is_inside = bool(url) and "://" not in url and not Path(url).is_absolute()
    return os.path.relpath(folder / url, workspace.root) if is_inside else url


def commit(
    workspace: Workspace,
    cells: Mapping[str, Sequence[str]],
    push: bool,
    also: Sequence[str] = (),
    entries: Mapping[str, Entries] | None = None,
) -> dict[str, StoreError]:
    """Record the DVC stages of cells in dvc.lock files, and copy their outputs to the default remote.

    also: stages that follow from them. entries: cell -> what the remote is to know of it by recipe keys. Returns cell
    -> why it was not recorded or pushed; the others were. Raises StoreError if nothing could be.
    """
    named = {cell: list(stages) for cell, stages in cells.items()}
    request = json.dumps({"cells": named, "also": also, "push": push, "entries": entries or {}})
    failed = json.loads(_run(workspace, ["tvmflow.tracking.dvc.commit"], "recording with DVC", request))
    return {cell: _why_not(reason[-500:], remote) for cell, (reason, remote) in failed.items()}


def _why_not(reason: str, remote: str) -> StoreError:
    if not remote:
        return _error(f"recording with DVC failed: {reason}")
    return StoreAwayError(
        f"the DVC remote {mask(remote)} did not take the files: {mask(reason)}",
        "a remote that can be written, so that others get what dvc.lock names",
        "all is recorded here: run the same command again when the remote is back, and commit dvc.lock after that",
    )


def _published_path(workspace: Workspace, cell: Cell) -> Path:
    return workspace.artifacts / ".recorded" / f"dvc-{cell.slug}"


def _state_of(workspace: Workspace, cell: Cell) -> str:
    """Return a digest of the content of a cell's folders and of its name in DVC."""
    records = {}
    for stage in STAGE_NAMES:
        with contextlib.suppress(StoreError):
            records[stage] = read_record(workspace.folder(stage, cell) / RECORD_NAME).digest()
    remote = "knows recipe keys"  # what an earlier version published is published once more
    return digest_of({**records, "dvc": pipelines.stage_name(workspace, "", cell), "remote": remote})


def is_published(workspace: Workspace, cell: Cell) -> bool:
    """Return whether DVC has recorded the content of a cell's folders. Does not start DVC."""
    if not is_initialized(workspace):
        return True
    try:
        known = _published_path(workspace, cell).read_text(encoding="utf-8")
        lock = pipelines.lock_path(workspace, cell).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    measured = workspace.folder("evaluate", cell) / RECORD_NAME
    is_locked = not measured.is_file() or describe_file(measured).md5 in lock
    return is_locked and known == _state_of(workspace, cell)


def publish(workspace: Workspace, cells: list[Cell], stages: tuple[str, ...]) -> dict[Cell, StoreError]:
    """Record the folders of the cells with DVC. Returns cell -> why it was not recorded; the others were."""
    if not is_initialized(workspace) or is_inside_repro():
        return {}
    unlisted.keep(workspace, [cell for cell in cells if not pipelines.model_file(workspace, cell.model).is_file()])
    names = {
        str(cell): [
            pipelines.stage_name(workspace, stage, cell) for stage in stages if workspace.folder(stage, cell).exists()
        ]
        for cell in cells
    }
    names = {cell: made for cell, made in names.items() if made}
    failed: dict[str, StoreError] = {}
    if names:
        above = pipelines.stages_above(workspace, cells)
        entries = {str(cell): entries_of(workspace, cell, stages) for cell in cells if str(cell) in names}
        failed = commit(workspace, names, workspace.params.flows.push_to_remote, above, entries)
    for cell in cells:
        if str(cell) not in failed:
            write_atomic(_published_path(workspace, cell), _state_of(workspace, cell))
    return {cell: failed[str(cell)] for cell in cells if str(cell) in failed}


def cache_roots(workspace: Workspace) -> list[Path]:
    """Return the folders with DVC's files by md5: its cache and the default remote."""
    return [dvc_cache(workspace.root), workspace.root / DEFAULT_REMOTE]


def file_by_md5(workspace: Workspace, md5: str, sha256: str, target: Path) -> None:
    """Copy a file from DVC's cache by its md5, and verify its sha256. Raises StoreError if it is missing."""
    for root in cache_roots(workspace):
        place = object_path(root, md5)
        if place.is_file() and sha256_of(place) == sha256:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, target)
            return
    raise StoreError(
        f"the file with sha256 {sha256[:12]} is not in DVC's cache",
        "all measured libraries and scorecards in DVC",
        "run 'dvc fetch --all-commits'",
    )
