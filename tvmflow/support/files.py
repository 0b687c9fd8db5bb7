"""Read, write and describe files: canonical JSON, sha256, atomic writes, groups of arrays."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvmflow.support.digests import Digests, OutputFile
from tvmflow.support.errors import StoreError, from_os_error

_PROBE_BYTES = 65536  # a disk on which databases fail may still take a few blocks

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return JSON that is equal exactly when the values are: sorted keys, no spaces, no NaN."""
    return _CANONICAL.encode(value)


def digest_of(value: Any) -> str:
    """Return the sha256 of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> OutputFile:
    """Read a file once and return its digests and size."""
    return Digests().describe(path)


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically: readers and crashes see either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def why_not_writable(folder: Path) -> StoreError | None:
    """Return why a folder takes no file at this moment, such as a full disk; None if it does."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        error.filename = str(folder)
        return from_os_error(error, "writing to")
    return None


def sync_folder(folder: Path) -> None:
    """Write all files below a folder to the disk, and the folder."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save_arrays(path: Path, **groups: Sequence[Any]) -> None:
    """Write groups of numpy arrays to an .npz file: the first of a group as NAME, the others as NAME.1, NAME.2, ..."""
    import numpy as np

    arrays = {
        name if index == 0 else f"{name}.{index}": array
        for name, group in groups.items()
        for index, array in enumerate(group)
    }
    np.savez(path, **arrays)


def check_arrays(path: Path) -> None:
    """Raise StoreError unless a file holds arrays as `save_arrays` writes them: numbers, of the size that it has."""
    import zipfile

    from tvmflow.support.npz import header_of

    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                header_of(archive, entry, may_be_compressed=False)
    except Exception as error:  # of zip files, and of the parsers that numpy gives the header to
        raise _no_arrays(path, error) from error


def load_arrays(path: Path, name: str) -> tuple[Any, ...]:
    """Return a group of arrays written by `save_arrays`, empty if there is none. Raises StoreError for other files: the
    sandbox writes some, so that nothing is believed before it is compared with the bytes that are there.
    """
    import zipfile

    from tvmflow.support.npz import read_array

    try:
        with zipfile.ZipFile(path) as archive:
            names = [entry.removesuffix(".npy") for entry in archive.namelist()]
            count = sum(stored == name or stored.startswith(f"{name}.") for stored in names)
            entries = [archive.getinfo(f"{name}.npy" if at == 0 else f"{name}.{at}.npy") for at in range(count)]
            return tuple(read_array(archive, entry, may_be_compressed=False) for entry in entries)
    except FileNotFoundError:
        raise
    except Exception as error:  # of zip files, and of the parsers that numpy gives the header to
        raise _no_arrays(path, error) from error


def _no_arrays(path: Path, error: Exception) -> StoreError:
    what = f"{path} cannot be read: {error or type(error).__name__}"
    return StoreError(what, "arrays as tvmflow writes them", "run its stage again")
