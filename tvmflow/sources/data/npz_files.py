"""Read arrays from a user's .npz file; every declared size is checked against the actual bytes."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from tvmflow.support.errors import SourceError

_MAX_HEADER = 10_000  # characters; numpy parses it as a literal
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes
_ENCRYPTED = 0x1


def read_arrays(
    path: Path, names: tuple[str, ...], max_bytes: int, optional: tuple[str, ...] = ()
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the named numeric arrays, and the optional ones that exist. Raises SourceError; object arrays are never
    unpickled.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            missing = [name for name in names if f"{name}.npy" not in entries]
            if missing or len(entries) < len(archive.infolist()):
                raise ValueError(f"it holds {sorted(entries)[:20]}")
            wanted = [*names, *(name for name in optional if f"{name}.npy" in entries and name not in names)]
            size = sum(entries[f"{name}.npy"].file_size for name in wanted)
            if size > max_bytes:
                raise ValueError(f"it unpacks to {size} bytes; at most {max_bytes} are allowed")
            return {name: _array(archive, entries[f"{name}.npy"]) for name in wanted}
    except Exception as error:  # of zip files, of zlib, and of the parsers that numpy gives the header to
        raise SourceError(
            f"data set {path} cannot be read: {error or type(error).__name__}",
            f"an .npz file with {' and '.join(names)}, arrays of numbers",
            "write it with numpy.savez",
        ) from None


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _COMPRESSIONS:
        raise ValueError(f"{entry.filename} is encrypted, or compressed by method {entry.compress_type}")
    with archive.open(entry) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{entry.filename} is of version {version}")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file, max_header_size=_MAX_HEADER)
        if dtype.kind not in "fiub" or any(extent < 0 for extent in shape):
            raise ValueError(f"{entry.filename} holds {dtype} of shape {shape}, not real numbers")
        size, left = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if size != left:
            raise ValueError(f"{entry.filename} announces {size} bytes of {dtype} {shape}, but has {left}")
        data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{entry.filename} ends after {len(data)} of {size} bytes")
    array = np.frombuffer(data, dtype)
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
