"""Find the folder of DVC's cache, which a team may share between workspaces (`dvc cache dir`)."""

from __future__ import annotations

import configparser
import functools
import os
from pathlib import Path

from tvmflow.support.errors import StoreError


def dvc_cache(root: Path) -> Path:
    """Return the folder of the cache of a workspace. Raises StoreError for a configuration that cannot be read."""
    files = config_files(root)
    return _cache_of(root, files, tuple(map(_state_of, files)))


def object_path(cache: Path, md5: str) -> Path:
    """Return the place of a file in a cache or a remote that is a folder."""
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def config_files(root: Path) -> tuple[Path, ...]:
    """Return the files of DVC's configuration that count in a workspace, the one that decides last."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    system = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)[0]
    everywhere = (
        Path(os.environ.get("DVC_SYSTEM_CONFIG_DIR") or f"{system}/dvc"),
        Path(os.environ.get("DVC_GLOBAL_CONFIG_DIR") or home / "dvc"),
    )
    return (*(folder / "config" for folder in everywhere), root / ".dvc" / "config", root / ".dvc" / "config.local")


def _state_of(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=64)
def _cache_of(root: Path, files: tuple[Path, ...], _states: tuple[tuple[int, ...], ...]) -> Path:
    cache = root / ".dvc" / "cache"
    for file in files:
        config = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            config.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise StoreError(
                f"{file} cannot be read: {' '.join(str(error).split())[:200]}",
                "a configuration of DVC",
                "restore it with 'git checkout', or correct it",
            ) from None
        if folder := config.get("cache", "dir", fallback=""):
            cache = Path(os.path.normpath(file.parent / Path(folder).expanduser()))
    return cache
