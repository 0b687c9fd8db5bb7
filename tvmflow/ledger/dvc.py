"""DVC as ledger and byte store: record what a flow made, push it, bring bytes back. One call at a time.

A stage that DVC itself runs (`dvc repro`) never calls DVC: DVC_STAGE is set there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from tvmflow.artifacts import sha256_of
from tvmflow.errors import StoreError
from tvmflow.ledger.store_paths import PRIVACY
from tvmflow.workspace import Workspace

DEFAULT_REMOTE = "dvc_storage"


def run_dvc(workspace: Workspace, *arguments: str) -> str:
    """Run one DVC command in the workspace. Returns its output; raises StoreError with its complaint."""
    lock = workspace.artifacts / ".locks" / "dvc.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        done = subprocess.run(
            [sys.executable, "-m", "dvc", *arguments], cwd=workspace.root, capture_output=True, text=True, check=False,
            env={**os.environ, **PRIVACY}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise StoreError(f"'dvc {' '.join(arguments)}' failed: {' '.join(lines)[-500:]}", fix="run it by hand to see more")
    return done.stdout


def is_initialized(workspace: Workspace) -> bool:
    return (workspace.root / ".dvc" / "config").is_file() and (workspace.root / "dvc.yaml").is_file()


def is_inside_repro() -> bool:
    return "DVC_STAGE" in os.environ


def initialize(workspace: Workspace) -> None:
    """Make the DVC repository and its default remote, a folder of the workspace, where they are missing."""
    if not (workspace.root / ".dvc" / "config").is_file():
        has_git = (workspace.root / ".git").exists()
        run_dvc(workspace, "init", "--quiet", *([] if has_git else ["--no-scm"]))
        run_dvc(workspace, "config", "core.analytics", "false")
        run_dvc(workspace, "config", "core.check_update", "false")
        run_dvc(workspace, "remote", "add", "--default", "local", f"../{DEFAULT_REMOTE}")


def commit(workspace: Workspace, stages: list[str], push: bool) -> None:
    """Record in dvc.lock what lies in the folders of these DVC stages now, and copy it to the default remote."""
    run_dvc(workspace, "commit", "--force", "--quiet", *stages)
    if push:
        run_dvc(workspace, "push", "--quiet", *stages)


def file_by_md5(workspace: Workspace, md5: str, sha256: str, target: Path) -> None:
    """Copy a file out of DVC's cache by its md5; it must have the sha256. Raises StoreError when it is not there."""
    tail = Path("files") / "md5" / md5[:2] / md5[2:]
    for place in (workspace.root / ".dvc" / "cache" / tail, workspace.root / DEFAULT_REMOTE / tail):
        if place.is_file() and sha256_of(place) == sha256:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, target)
            return
    raise StoreError(
        f"the library with sha256 {sha256[:12]} is not in DVC's cache", "every registered library under DVC", "run 'dvc fetch --all-commits'"
    )
