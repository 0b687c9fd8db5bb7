"""Open files that others made: only plain files, never a pipe, a device or a socket, and no link unless asked for.

A link beside a model may name any file of the user, a pipe or a device holds its reader for ever. Both are refused
after the file is open, by what was opened, so that nothing can be exchanged between check and use.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_BLOCK = 1 << 20


def open_plain(path: Path | str, links: bool = False, buffering: int = -1) -> BinaryIO:
    """Open a plain file for reading. links: follow a link, as to a file that the user named.

    Raises OSError, also for another kind of file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "it is a link, not a plain file", str(path)) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a socket or a pipe, not a plain file", str(path)) from None
        raise
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}, not a plain file", str(path))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb", buffering)
    except OSError:
        os.close(descriptor)
        raise


def is_plain(path: Path | str) -> bool:
    """Return whether a path names a plain file now, and no link to one. To read it use the functions below, which ask
    again.
    """
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def special_kind(path: Path | str) -> str:
    """Return what a path names, links followed, that is neither a plain file nor a folder: "a pipe"; else ""."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return ""
    return "" if kind in (stat.S_IFREG, stat.S_IFDIR) else _KINDS.get(kind, "no file")


def read_plain(path: Path | str, limit: int, links: bool = False) -> bytes:
    """Return the bytes of a plain file. Raises OSError, also for more than `limit` bytes."""
    with open_plain(path, links) as file:
        _check_size(os.fstat(file.fileno()).st_size, limit, path)
        parts: list[bytes] = []
        size = 0
        while block := file.read(_BLOCK):
            size += len(block)
            _check_size(size, limit, path)
            parts.append(block)
        return b"".join(parts)


def copy_plain(path: Path | str, target: Path, limit: int, links: bool = False) -> None:
    """Copy a plain file. Raises OSError, also for more than `limit` bytes, which are then not copied."""
    with open_plain(path, links) as file:
        _check_size(os.fstat(file.fileno()).st_size, limit, path)
        left = limit + 1  # it may grow meanwhile
        with target.open("wb") as out:
            while left and (block := file.read(min(left, _BLOCK))):
                out.write(block)
                left -= len(block)
    if not left:
        target.unlink()
        _check_size(limit + 1, limit, path)


def _check_size(size: int, limit: int, path: Path | str) -> None:
    if size > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
