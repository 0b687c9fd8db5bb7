"""Find the files of a workspace in a cache of DVC that other repositories use too."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tvmflow.config.dvc_cache import object_path
from tvmflow.config.workspace import Workspace

_NAMED = re.compile(r"\bmd5: ([0-9a-f]{32}(?:\.dir)?)\b")
_LOCKS = ("dvc.lock", "pipelines/*/dvc.lock", "unlisted/dvc.lock")


def objects_of(workspace: Workspace, root: Path) -> Iterator[Path]:
    """Return the files in a cache folder: all if it belongs to the workspace, else those that its dvc.lock files name,
    or named in any commit, since records of other repositories are not its own.
    """
    if root.is_relative_to(workspace.root):
        yield from root.glob("files/md5/*/*")
        return
    named = set(_NAMED.findall(_lock_texts(workspace)))
    for folder in [md5 for md5 in named if md5.endswith(".dir")]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            listed = json.loads(object_path(root, folder).read_text(encoding="utf-8"))
            named |= {one["md5"] for one in listed if re.fullmatch("[0-9a-f]{32}", one["md5"])}
    yield from (path for md5 in sorted(named) if (path := object_path(root, md5)).is_file())


def _lock_texts(workspace: Workspace) -> str:
    """Return the texts of all dvc.lock files, and of their changes in all commits."""
    found = [path.read_text(encoding="utf-8") for name in _LOCKS for path in workspace.root.glob(name)]
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["git", "log", "--all", "--format=", "--patch", "--unified=0", "--", *_LOCKS],
            cwd=workspace.root,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        found.append(done.stdout)
    return "\n".join(found)
