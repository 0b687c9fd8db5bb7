"""Read inputs of a model from .npy, .npz and CSV files, which are untrusted: sizes are compared with what is there."""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.sources.data.npz_files import read_arrays
from tvmflow.support.errors import SourceError
from tvmflow.support.npz import read_header
from tvmflow.support.plain_files import open_plain, read_plain

SUFFIXES = (".npy", ".npz", ".csv")
MAX_BYTES = 8 << 30
_MAX_CSV = 256 << 20


def read_inputs(path: Path, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Any]:
    """Return input name -> (N, ...). shapes: name and shape of each input, with its batch first. Raises SourceError.

    An .npz file has the inputs by name, or one array for a model with one input; the others have that input.
    """
    names = [name for name, _ in shapes]
    if path.suffix.lower() == ".npz":
        return _npz(path, names)
    if len(names) > 1:
        raise SourceError(f"{path} holds one array", f"an .npz file with {', '.join(names)}", "write it by numpy.savez")
    try:
        data = read_plain(path, _MAX_CSV if path.suffix.lower() == ".csv" else MAX_BYTES, links=True)
        array = _csv(data, shapes[0][1]) if path.suffix.lower() == ".csv" else _npy(data, path.name)
    except (OSError, ValueError, OverflowError, SyntaxError, RecursionError, csv.Error) as error:
        expected = "an array of numbers (.npy), or rows of them (.csv)"
        raise SourceError(f"{path} cannot be read: {error}", expected) from None
    return {names[0]: array}


def _npz(path: Path, names: list[str]) -> dict[str, Any]:
    try:
        with open_plain(path, links=True) as file, zipfile.ZipFile(file) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}", "a file that numpy.savez wrote") from None
    if len(names) == 1 and len(held) == 1:
        return {names[0]: read_arrays(path, (held[0],), MAX_BYTES)[held[0]]}
    return dict(read_arrays(path, tuple(names), MAX_BYTES))


def _npy(data: bytes, name: str) -> Any:
    file = io.BytesIO(data)
    header = read_header(file, name)
    if header.size != len(data) - file.tell():
        raise ValueError(f"it announces {header.size} bytes, but has {len(data) - file.tell()}")
    array = np.frombuffer(data, header.dtype, offset=file.tell())
    return array.reshape(header.shape[::-1]).T if header.is_fortran else array.reshape(header.shape)


def _csv(data: bytes, shape: tuple[int, ...]) -> Any:
    """Return rows of numbers, of a sample each; the first row may have names."""
    rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8-sig"))) if row]
    if rows and not all(map(_is_number, rows[0])):
        rows = rows[1:]
    size = math.prod(shape[1:])
    for number, row in enumerate(rows, 1):
        if len(row) != size:
            raise ValueError(f"row {number} of numbers has {len(row)}, the input takes {size}")
    if not rows:
        raise ValueError("it has no rows of numbers")
    numbers = [[_number(one) for one in row] for row in rows]
    return np.array(numbers, np.int64 if _are_integers(numbers) else np.float64).reshape(len(rows), *shape[1:])


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _are_integers(rows: list[list[int | float]]) -> bool:
    return all(isinstance(one, int) and abs(one) < 1 << 63 for row in rows for one in row)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
