"""Open the default DVC remote of a workspace, whatever kind it is, and answer for one that is away."""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreAwayError, first_line

_ANSWER_S = 20.0  # longest wait for the first answer


@dataclass(frozen=True)
class Remote:
    """fs: a file system of DVC; root: the path of the remote in it; by_digest: the names of files there are their
    digests, not versions of the cloud; is_own: it is a folder of the workspace, which nobody shares; is_missing: it is
    another folder that does not exist, or is not mounted.
    """

    fs: Any
    root: str
    by_digest: bool = True
    is_own: bool = False
    is_missing: bool = False

    @property
    def is_folder(self) -> bool:
        return _is_folder(type(self.fs))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        try:
            return bytes(self.fs.cat_file(f"{self.root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file if it has another content."""
        if self.read(name) != content:
            self.fs.makedirs(self.fs.parent(f"{self.root}/{name}"), exist_ok=True)
            self.fs.pipe_file(f"{self.root}/{name}", content)

    def create(self, name: str, content: bytes) -> bytes:
        """Write a file if there is none. Returns the content that it has then. Of several who create it at once, a
        folder and S3 let one succeed.
        """
        known = self.read(name)
        if known is not None:
            return known
        path = f"{self.root}/{name}"
        self.fs.makedirs(self.fs.parent(path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            if self.is_folder:
                with tempfile.NamedTemporaryFile(dir=Path(path).parent, prefix=".new-") as file:
                    file.write(content)
                    file.flush()
                    os.link(file.name, path)
            else:
                self.fs.fs.pipe_file(path, content, mode="create")
        return self.read(name) or b""


def open_address(url: str, dvc_folder: Path) -> tuple[Any, str]:
    """Return a file system of DVC for an address, and the path in it. dvc_folder: whose configuration holds for it, if
    it has one. Raises ValueError for an address that DVC cannot open.
    """
    from dvc.config import Config
    from dvc.exceptions import DvcException
    from dvc.fs import get_cloud_fs

    try:
        config = Config(str(dvc_folder)) if (dvc_folder / "config").is_file() else {}
        kind, options, root = get_cloud_fs(config, url=url)
        return kind(**options), str(root)
    except DvcException as error:
        raise ValueError(first_line(error)) from error


def open_remote(workspace: Workspace) -> Remote | None:
    """Return the default remote, None if there is none. Raises StoreAwayError."""
    from dvc.config import Config
    from dvc.fs import get_cloud_fs

    if not (workspace.root / ".dvc" / "config").is_file():
        return None
    config = Config(str(workspace.root / ".dvc"))
    name = config["core"].get("remote")
    if not name:
        return None

    def open_and_ask() -> Remote:
        kind, options, root = get_cloud_fs(config, name=name)
        by_digest = not options.pop("worktree", False) and not options.get("version_aware")
        fs = kind(**options)
        is_local = _is_folder(kind)
        is_own = is_local and Path(root).is_relative_to(workspace.root)
        is_missing = not fs.exists(root) and is_local and not is_own
        return Remote(fs, str(root), by_digest, is_own, is_missing)

    return _within(open_and_ask, name)


def _is_folder(kind: type) -> bool:
    from dvc_objects.fs.local import LocalFileSystem

    return issubclass(kind, LocalFileSystem)


def _within(ask: Callable[[], Remote], name: str) -> Remote:
    """Return what the remote answers first. Raises StoreAwayError if it does not in time."""
    answers: queue.Queue[Remote | Exception] = queue.Queue()

    def run() -> None:
        try:
            answers.put(ask())
        except Exception as error:  # errors of DVC and of the libraries below it
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()  # one that waits for ever does not keep Python from ending
    try:
        answer = answers.get(timeout=_ANSWER_S)
    except queue.Empty:
        raise StoreAwayError(f"the DVC remote {name} did not answer in {_ANSWER_S:g} s") from None
    if isinstance(answer, Exception):
        raise StoreAwayError(f"the DVC remote {name} is away: {first_line(answer, 200)}") from None
    return answer
