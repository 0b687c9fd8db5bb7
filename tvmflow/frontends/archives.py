"""Copy a user's zip file into an archive of our own, the only one that a framework reads.

Parsers of zip files differ: Python takes the table before the end record, others the one at the offset in it, and one
file can hold an archive for each. What was checked and what is loaded are the same only in a file that we wrote. Such
an archive is its files one after the other, without compression, and one table; nothing else.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmflow.support.errors import ModelFileError
from tvmflow.support.temporary import temporary_folder

MAX_UNPACKED_BYTES = 8 << 30
MAX_ENTRIES = 100_000
MAX_NAME = 255  # characters; PyTorch cuts longer names off at 512 bytes
ARCHIVE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    ValueError,
    RecursionError,
    MemoryError,
    RuntimeError,
    SyntaxError,
)
_START = b"PK\x03\x04"  # by which PyTorch too tells a zip file from a pickle
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what every parser reads
_BLOCK = 1 << 20


def is_archive(path: Path) -> bool:
    """Return whether a file is meant to be a zip archive."""
    with path.open("rb") as file:
        return file.read(len(_START)) == _START


@contextmanager
def checked_copy(path: Path, damaged: Callable[[Path, Exception], ModelFileError]) -> Iterator[Path]:
    """Write the files of an archive, in their order, into a private one of the same name; remove it at the end.

    Checks CRCs, sizes and names, not contents. Raises ModelFileError. damaged: makes it of a parser's error.
    """
    with temporary_folder("archive") as folder:
        copy = Path(folder) / path.name
        try:
            with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "x") as out:
                for entry in _entries(path, archive):
                    if not entry.is_dir():
                        _copy(archive, entry, out)
        except (*ARCHIVE_ERRORS, NotImplementedError) as error:
            raise damaged(path, error) from error
        yield copy


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: zipfile.ZipFile) -> None:
    if entry.compress_type not in _COMPRESSIONS:
        raise ValueError(f"{entry.filename} is compressed by method {entry.compress_type}")
    plain = zipfile.ZipInfo(entry.filename)
    plain.file_size = entry.file_size  # from 2 GiB on, sizes need more than 32 bits
    with archive.open(entry) as source, out.open(plain, "w") as target:
        shutil.copyfileobj(source, target, _BLOCK)


def _entries(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return an archive's entries, whose names must be the same for each reader, within the size limit."""
    entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    if size > MAX_UNPACKED_BYTES:
        raise ModelFileError(f"{path.name} unpacks to {size} bytes", f"at most {MAX_UNPACKED_BYTES}")
    names = {entry.filename.lower() for entry in entries}
    if len(names) < len(entries) or len(entries) > MAX_ENTRIES:
        raise ValueError(f"{len(entries)} entries under {len(names)} names")
    for entry in entries:
        name = entry.orig_filename
        if len(name) > MAX_NAME:
            raise ValueError(f"a name of {len(name)} characters")
        if not name.isprintable() or "\\" in name or name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"the name {name[:100]!r}")
    return entries
