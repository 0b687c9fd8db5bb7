"""Refuse folders in which another user of the machine could put files of his in the place of ours.

Whoever may rename a folder, or one above it, decides what is found there next: parameters that name code, libraries
that are loaded, packages of a tool. Root and this user are trusted, and groups that may write. Folders that a container
or a mount gives to everybody are trusted where TRUSTED names them.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from tvmflow.support.errors import StoreError

TRUSTED = "TVMFLOW_TRUSTED"  # environment variable: folders, separated by colons, that no other user writes to
_ALL_USERS = (0, 0, 4294967295)  # the map of users outside of a user namespace


def check_private(folder: Path, what: str, also: int | None = None) -> None:
    """Raise StoreError if another user can exchange a folder that exists, or is to be made. also: a user who is trusted
    with it, such as its owner where the user named the folder.
    """
    for path in dict.fromkeys((Path(os.path.abspath(folder)), folder.resolve())):  # noqa: PTH100  (links are kept)
        for place in (*reversed(path.parents), path):
            try:
                status = place.lstat()
            except OSError:
                break  # made by us, in what was checked
            why = _why_not(status, also)
            if why and not _is_named(place):
                raise StoreError(
                    f"{what} {folder} can be exchanged by another user: {place} {why}",
                    "a folder that, with all above it, only you and root may rename or fill",
                    f"use a folder of your own, or 'chmod o-w {place}'; where nobody else uses this machine, as in a "
                    f"container, set {TRUSTED}={place}",
                )


def check_found(folder: Path, file: str) -> None:
    """Raise StoreError for a workspace that a search upwards met, but that another user made, as in /tmp."""
    owner = (folder / file).lstat().st_uid
    if not (is_trusted(owner) and is_trusted(folder.lstat().st_uid)) and not _is_named(folder):
        raise StoreError(
            f"{folder / file} belongs to another user",
            "a workspace of yours in this folder or above it: its parameters name code that runs as you",
            f"pass --root {folder} to run it all the same",
        )


def is_trusted(owner: int) -> bool:
    """Return whether files of a user are as good as ours: root's, our own, and where this process knows only its own
    user, as in a container, those of users that it cannot tell apart.
    """
    return owner in (0, os.geteuid()) or owner == _unknown_user()


def _why_not(status: os.stat_result, also: int | None) -> str:
    if not is_trusted(status.st_uid) and status.st_uid != also:
        return f"belongs to the user with number {status.st_uid}"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        return "may be written by everybody"
    return ""


def _is_named(place: Path) -> bool:
    named = filter(None, os.environ.get(TRUSTED, "").split(os.pathsep))
    return any(place.is_relative_to(folder) for folder in named)


@functools.cache
def _unknown_user() -> int | None:
    """Return the number that stands for all users whom a user namespace does not know; None outside of one."""
    try:
        known = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
        return None if known == [_ALL_USERS] else int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None
