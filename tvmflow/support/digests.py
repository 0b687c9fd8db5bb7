"""Compute digests of files, reading each file once as long as it does not change.

A change is detected by device, inode, size, and modification and change times. A file that was changed a moment ago is
read again, since a second change within the same clock tick would not be visible. Digests may be kept in a file for the
next process, as DVC does: then damage that the file system does not tell of is found only by reading again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tvmflow.support.plain_files import open_plain

_CHUNK = 1 << 20
_TICK_NS = 50_000_000  # five times the coarsest tick of Linux
_COARSE_TICK_NS = 2_500_000_000  # of file systems that count in seconds


@dataclass(frozen=True)
class OutputFile:
    """sha256: trusted; md5: the file's name in DVC's cache; size: in bytes."""

    sha256: str
    md5: str
    size: int


@dataclass(frozen=True)
class _Identity:
    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int

    @staticmethod
    def of(stat: os.stat_result) -> _Identity:
        return _Identity(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def was_settled_at(self, now_ns: int) -> bool:
        """Return whether a later change would have a different time."""
        last = max(self.written_ns, self.changed_ns)
        return now_ns - last > (_TICK_NS if last % 1_000_000_000 else _COARSE_TICK_NS)


_FIELDS = fields(_Identity)


class Digests:
    """The file digests known to a process. bytes_read: number of bytes read for them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Identity, str]] = {}
        self._lock = threading.Lock()
        self.bytes_read = 0
        self._file: Path | None = None
        self._kept: dict[str, Any] = {}
        self._is_loaded = True

    def sha256_of(self, path: Path | str) -> str:
        """Return the sha256 of a file's bytes. Raises OSError."""
        known = self._known.get(str(path))
        if known is None:
            return self._kept_digest(path) or self._read(path)[0]
        if known[0] == _Identity.of(os.stat(path)):  # noqa: PTH116
            return known[1]
        return self._read(path)[0]

    def describe(self, path: Path) -> OutputFile:
        """Read a file and return its digests and its size in bytes."""
        md5 = hashlib.md5(usedforsecurity=False)
        sha256, size = self._read(path, md5)
        return OutputFile(sha256, md5.hexdigest(), size)

    def _read(self, path: Path | str, *others: Any) -> tuple[str, int]:
        """Return the sha256 and the number of bytes; also update other hashes."""
        began, size, sha256 = time.time_ns(), 0, hashlib.sha256()
        with open_plain(path, links=True, buffering=0) as file:
            before = _Identity.of(os.fstat(file.fileno()))
            piece = min(before.size + 1, _CHUNK)  # memory for a large one takes longer than reading a small file
            while chunk := file.read(piece):
                for kind in (sha256, *others):
                    kind.update(chunk)
                size += len(chunk)
            unchanged = before == _Identity.of(os.fstat(file.fileno()))
        digest = sha256.hexdigest()
        with self._lock:
            self.bytes_read += size
            if unchanged and before.was_settled_at(began):
                self._known[str(path)] = (before, digest)
        return digest, size

    # -- kept for the next process --

    def keep_in(self, file: Path) -> None:
        """Use the digests that `save` wrote to this file; its folder's parent is where paths begin."""
        if self._file != file:
            self._file, self._kept, self._is_loaded = file, {}, False

    def forget(self) -> None:
        """Read all files again."""
        self._known, self._kept, self._is_loaded = {}, {}, True

    def save(self) -> None:
        """Write what is known to the file, if anything new is. A file that cannot be written costs only time."""
        if self._file is None or not self._known:
            return
        base = f"{self._file.parent.parent}{os.sep}"
        with self._lock:
            new = {
                path.removeprefix(base): [*vars(identity).values(), sha256]
                for path, (identity, sha256) in self._known.items()
                if path.startswith(base)
            }
        self._load()
        if all(self._kept.get(name) == entry for name, entry in new.items()):
            return
        kept = {name: entry for name, entry in self._kept.items() if os.path.lexists(base + name)}
        written = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            written.write_text(json.dumps({**kept, **new}, separators=(",", ":")), encoding="utf-8")
            written.replace(self._file)

    def _kept_digest(self, path: Path | str) -> str | None:
        """Return the digest that an earlier process computed of a file as it is. Raises OSError without the file."""
        if self._file is None:
            return None
        self._load()
        entry = self._kept.get(str(path).removeprefix(f"{self._file.parent.parent}{os.sep}"))
        if not isinstance(entry, list) or len(entry) != len(_FIELDS) + 1 or not isinstance(entry[-1], str):
            return None
        identity = _Identity.of(os.stat(path))  # noqa: PTH116
        if entry[:-1] != list(vars(identity).values()):
            return None
        with self._lock:
            self._known[str(path)] = (identity, entry[-1])
        return entry[-1]

    def _load(self) -> None:
        if self._is_loaded or self._file is None:
            return
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._file.read_text(encoding="utf-8"))
            self._kept = found if isinstance(found, dict) else {}
        self._is_loaded = True

    def moved(self, before: Path, after: Path) -> None:
        """Record that a folder was renamed."""
        with self._lock:
            for name in [name for name in self._known if Path(name).is_relative_to(before)]:
                self._known[str(after / Path(name).relative_to(before))] = self._known.pop(name)

    def to_json(self) -> list[list[Any]]:
        """Return the digests as plain values, for another process of the same run."""
        with self._lock:
            return [[path, *vars(identity).values(), sha256] for path, (identity, sha256) in self._known.items()]

    def learn(self, known: Iterable[list[Any]]) -> None:
        """Add digests of another process."""
        with self._lock:
            for path, *identity, sha256 in known:
                self._known[str(path)] = (_Identity(*identity), str(sha256))
