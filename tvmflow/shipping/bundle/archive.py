"""Write and read the archive of a bundle: a canonical zip file, with a reader that accepts no other form.

Files are sorted by name, stored without compression, with fixed times and permissions. The reader computes every header
from name, size and CRC and compares it with the bytes: a header cannot hide anything, and nothing unpacks to more than
the archive's own size. Any unzip program reads such an archive.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tvmflow.support.errors import BundleError
from tvmflow.support.plain_files import open_plain

MAX_BYTES = 2 << 30
MAX_FILES = 10_000
MAX_TEXT_BYTES = 32 << 20  # limit of files that are read into memory
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,120}(/[A-Za-z0-9_][A-Za-z0-9._+-]{0,120}){0,5}")
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LOCAL_SIZE, _CENTRAL_SIZE, _END_SIZE = 30, 46, 22
_TIME, _DATE = 0, 1 << 5 | 1  # 1980-01-01 00:00, the first that a zip file can say
_PLAIN_FILE = 0o100644 << 16
_KINDS = {
    0o120000: "a symbolic link",
    0o040000: "a folder",
    0o010000: "a pipe",
    0o020000: "a device",
    0o060000: "a device",
}
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file of an archive. offset: of its bytes in the archive."""

    name: str
    offset: int
    size: int
    crc: int


def is_name(name: str) -> bool:
    """Return whether a name is legal in a bundle: path parts of plain characters, none starting with a dot."""
    return _NAME.fullmatch(name) is not None


def write_archive(path: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write an archive of these files, given as bytes or paths, atomically."""
    for name in files:
        if not is_name(name):
            raise ValueError(f"{name!r} cannot be the name of a file in a bundle")
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(draft, files)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _write(path: Path, files: Mapping[str, bytes | Path]) -> None:
    central = b""
    with path.open("wb") as out:
        for name in sorted(files):
            size, crc = _measure(files[name])
            offset = out.tell()
            if offset + size > MAX_BYTES:
                raise BundleError(f"a bundle of more than {MAX_BYTES} bytes", "less", "ship fewer cells in one bundle")
            out.write(_local_header(name, size, crc))
            for block in _blocks_of(files[name]):
                out.write(block)
            central += _central_header(name, size, crc, offset)
        start = out.tell()
        out.write(central + _end_record(len(files), len(central), start))
        out.flush()
        os.fsync(out.fileno())


def _blocks_of(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _measure(content: bytes | Path) -> tuple[int, int]:
    size = crc = 0
    for block in _blocks_of(content):
        size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc


def _local_header(name: str, size: int, crc: int) -> bytes:
    return struct.pack("<4sHHHHHIIIHH", _LOCAL, 20, 0, 0, _TIME, _DATE, crc, size, size, len(name), 0) + name.encode()


def _central_header(name: str, size: int, crc: int, offset: int) -> bytes:
    made_by = 3 << 8 | 20  # Unix, so that the permissions are read
    return (
        struct.pack(
            "<4sHHHHHHIIIHHHHHII",
            _CENTRAL,
            made_by,
            20,
            0,
            0,
            _TIME,
            _DATE,
            crc,
            size,
            size,
            len(name),
            0,
            0,
            0,
            0,
            _PLAIN_FILE,
            offset,
        )
        + name.encode()
    )


def _end_record(count: int, size: int, start: int) -> bytes:
    return struct.pack("<4sHHHHIIH", _END, 0, 0, count, count, size, start, 0)


class Archive:
    """An archive open for reading; its table is checked, the contents of its files are not. A context manager."""

    def __init__(self, path: Path) -> None:
        """Raises BundleError for anything that `write_archive` does not write."""
        self.path = path
        self._file: BinaryIO = open_plain(path, links=True)
        try:
            self.entries = _read_table(self._file, os.fstat(self._file.fileno()).st_size)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def below(self, prefix: str) -> Archive:
        """Return a view of the files below a folder, by their names in it."""
        view = copy.copy(self)
        view.entries = {name.removeprefix(prefix): one for name, one in self.entries.items() if name.startswith(prefix)}
        return view

    def read(self, name: str) -> bytes:
        """Return the content of a small file. Raises BundleError if it is missing or too large."""
        entry = self.entries.get(name)
        if entry is None:
            raise BundleError(f"the bundle has no file {name}", "every file that its manifest names")
        if entry.size > MAX_TEXT_BYTES:
            raise BundleError(f"{name} has {entry.size} bytes", f"at most {MAX_TEXT_BYTES}")
        return b"".join(self._blocks(entry))

    def sha256(self, name: str) -> str:
        """Return the sha256 of a file's bytes. Raises BundleError where they are not those of its CRC."""
        digest, crc = hashlib.sha256(), 0
        for block in self._blocks(self.entries[name]):
            digest.update(block)
            crc = zlib.crc32(block, crc)
        if crc != self.entries[name].crc:
            raise BundleError(f"{name} was altered: its bytes have another CRC", "the bytes that were written")
        return digest.hexdigest()

    def extract(self, name: str, target: Path) -> None:
        """Write a file of the archive to a path."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            for block in self._blocks(self.entries[name]):
                out.write(block)

    def _blocks(self, entry: Entry) -> Iterator[bytes]:
        self._file.seek(entry.offset)
        left = entry.size
        while left:
            block = self._file.read(min(left, _BLOCK))
            if not block:
                raise _cut_off()
            left -= len(block)
            yield block


def _read_table(file: BinaryIO, size: int) -> dict[str, Entry]:
    if size > MAX_BYTES:
        raise BundleError(f"a bundle of {size} bytes", f"at most {MAX_BYTES}")
    count, length, start = _read_end(file, size)
    if count > MAX_FILES or length > MAX_FILES * (_CENTRAL_SIZE + 1000):
        raise BundleError(f"a table of {count} files in {length} bytes", f"at most {MAX_FILES} files")
    file.seek(start)
    table = file.read(length)
    entries: dict[str, Entry] = {}
    at, begin = 0, 0
    for _ in range(count):
        entry, at = _read_entry(table, at, begin, entries)
        header = _local_header(entry.name, entry.size, entry.crc)
        file.seek(begin)
        if file.read(len(header)) != header:
            raise BundleError(
                f"the header of {entry.name} differs from the archive's table", "headers as tvmflow writes them"
            )
        entries[entry.name] = entry
        begin = entry.offset + entry.size
    if at != length or begin != start:
        raise BundleError("bytes that belong to no file of the archive", "contiguous files, then the table")
    return entries


def _read_end(file: BinaryIO, size: int) -> tuple[int, int, int]:
    """Return how many files there are, the size of their table, and where it begins."""
    file.seek(0)
    if file.read(4) not in (_LOCAL, _END[:4]):
        raise BundleError("not a zip archive", "a bundle written by tvmflow")
    if size < _END_SIZE:
        raise _cut_off()
    file.seek(size - _END_SIZE)
    record = file.read(_END_SIZE)
    if record[:4] != _END:
        raise _cut_off()
    count, length, start = struct.unpack("<HII", record[10:20])
    if record != _end_record(count, length, start) or start + length + _END_SIZE != size:
        raise BundleError("the archive's end record does not match its table", "an end record as tvmflow writes it")
    return count, length, start


def _read_entry(table: bytes, at: int, begin: int, known: dict[str, Entry]) -> tuple[Entry, int]:
    """Return the entry at an offset of the table, and where the next one is. begin: where its file has to begin."""
    fields = table[at : at + _CENTRAL_SIZE]
    if len(fields) < _CENTRAL_SIZE or fields[:4] != _CENTRAL:
        raise BundleError("the archive's table is damaged", "a table as tvmflow writes it")
    method, crc, packed, size, length = struct.unpack("<10xH4xIIIH", fields[:30])
    mode, offset = struct.unpack("<II", fields[38:])
    raw = table[at + _CENTRAL_SIZE : at + _CENTRAL_SIZE + length]
    name = raw.decode("ascii", "replace")
    shown = ascii(name)[:120]
    if not is_name(name):
        raise BundleError(
            f"file name {shown} could escape the folder that the bundle is unpacked into",
            "names of letters, digits and ._+-, none absolute, none with '..'",
        )
    kind = (mode >> 16) & 0o170000
    if kind in _KINDS:
        raise BundleError(f"{shown} is {_KINDS[kind]}", "plain files only")
    if method != 0 or packed != size:
        raise BundleError(
            f"{shown} is compressed: {packed} bytes that unpack to {size}",
            "uncompressed files, as tvmflow writes them",
        )
    if name in known:
        raise BundleError(f"{shown} is in the archive twice", "each file once")
    if known and name < next(reversed(known)):
        raise BundleError(f"{shown} is out of order", "files in the order of their names")
    if offset != begin or fields + raw != _central_header(name, size, crc, offset):
        raise BundleError(
            f"the entry of {shown} in the archive's table is not in tvmflow's form", "entries as tvmflow writes them"
        )
    data = begin + _LOCAL_SIZE + length
    return Entry(name, data, size, crc), at + _CENTRAL_SIZE + length


def _cut_off() -> BundleError:
    return BundleError(
        "the archive is truncated or followed by other data",
        "a whole bundle and nothing after it",
        "download the file again",
    )
