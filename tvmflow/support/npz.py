"""Read arrays of .npz files: every declared size is compared with the bytes that are there before memory is taken."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

_MAX_HEADER = 10_000  # characters; numpy parses it as a literal
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes
_ENCRYPTED, _BLOCK = 0x1, 1 << 20


@dataclass(frozen=True)
class Header:
    """Shape, dtype and order of an array."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Return the bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], name: str) -> Header:
    """Return the header of an .npy file of numbers. Raises ValueError and what numpy raises; nothing is unpickled."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} is of version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    header = Header(*read(file, max_header_size=_MAX_HEADER))
    if header.dtype.kind not in "fiub" or any(extent < 0 for extent in header.shape):
        raise ValueError(f"{name} holds {header.dtype} of shape {header.shape}, not real numbers")
    return header


def header_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, *, may_be_compressed: bool = True) -> Header:
    """Return the header of an entry whose announced sizes agree. Raises ValueError."""
    if not may_be_compressed and (entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size):
        raise ValueError(f"{entry.filename} is compressed")
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _COMPRESSIONS:
        raise ValueError(f"{entry.filename} is encrypted, or compressed by method {entry.compress_type}")
    with archive.open(entry) as file:
        header = read_header(file, entry.filename)
        left = entry.file_size - file.tell()
    if header.size != left:
        what = f"{header.size} bytes of {header.dtype} {header.shape}"
        raise ValueError(f"{entry.filename} announces {what}, but has {left}")
    return header


def read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, *, may_be_compressed: bool = True) -> Any:
    """Return an array of numbers. Raises ValueError and what zipfile and numpy raise."""
    header = header_of(archive, entry, may_be_compressed=may_be_compressed)
    data, at = np.empty(header.size, np.uint8), 0  # pages are taken as they are filled
    with archive.open(entry) as file:
        file.seek(entry.file_size - header.size)
        while block := file.read(min(_BLOCK, header.size - at)):
            data[at : at + len(block)] = np.frombuffer(block, np.uint8)
            at += len(block)
    if at < header.size:
        raise ValueError(f"{entry.filename} ends after {at} of {header.size} bytes")
    array = data.view(header.dtype)
    return array.reshape(header.shape[::-1]).T if header.is_fortran else array.reshape(header.shape)
