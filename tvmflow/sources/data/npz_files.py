"""Read arrays from a user's .npz file; every declared size is checked against the actual bytes."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.support.errors import SourceError
from tvmflow.support.npz import Header, header_of, read_array
from tvmflow.support.plain_files import open_plain

_ITEM_BYTES = 4  # of float32, to which images are converted
_ALWAYS_BYTES, _MOST_PACKED = 64 << 20, 100  # larger arrays unpack to at most so many times their bytes in the file


def read_arrays(
    path: Path, names: tuple[str, ...], max_bytes: int, optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the named numeric arrays, and the optional ones that exist. Raises SourceError; object arrays are never
    unpickled. max_bytes: of all of them as float32, which is checked before any is read.
    """
    with _opened(path, names, max_bytes, optional) as (archive, chosen):
        return {name: read_array(archive, entry) for name, entry in chosen.items()}


def read_headers(
    path: Path, names: tuple[str, ...], max_bytes: int, optional: tuple[str, ...] = ()
) -> dict[str, Header]:
    """Return shape and dtype of what `read_arrays` would return, with its checks and errors; reads no values."""
    with _opened(path, names, max_bytes, optional) as (archive, chosen):
        return {name: header_of(archive, entry) for name, entry in chosen.items()}


@contextmanager
def _opened(
    path: Path, names: tuple[str, ...], max_bytes: int, optional: tuple[str, ...]
) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an archive, and yield it with its entries by the names of the arrays. Raises SourceError."""
    try:
        with open_plain(path, links=True) as file, zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            missing = [name for name in names if f"{name}.npy" not in entries]
            if missing or len(entries) < len(archive.infolist()):
                raise ValueError(f"it holds {sorted(entries)[:20]}")
            wanted = [*names, *(name for name in optional if f"{name}.npy" in entries and name not in names)]
            chosen = {name: entries[f"{name}.npy"] for name in wanted}
            size = sum(_size_of(archive, entry) for entry in chosen.values())
            if size > max_bytes:
                raise ValueError(f"it unpacks to {size} bytes; at most {max_bytes} are allowed")
            packed = sum(entry.compress_size for entry in chosen.values())
            if size > max(_ALWAYS_BYTES, _MOST_PACKED * packed):
                raise ValueError(f"{packed} bytes unpack to {size}; store them unpacked")
            yield archive, chosen
    except Exception as error:  # of zip files, of zlib, and of the parsers that numpy gives the header to
        raise SourceError(
            f"data set {path} cannot be read: {error or type(error).__name__}",
            f"an .npz file with {' and '.join(names)}, arrays of numbers",
            "write it with numpy.savez",
        ) from None


def _size_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> int:
    header = header_of(archive, entry)
    return max(header.size, header.size // header.dtype.itemsize * _ITEM_BYTES)
