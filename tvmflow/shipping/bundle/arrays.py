"""Write and read arrays of a bundle as canonical .npy files."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.support.errors import BundleError

Array = np.ndarray[Any, Any]
_CODES = {
    "float32": "<f4",
    "float16": "<f2",
    "uint16": "<u2",
    "int8": "|i1",
    "uint8": "|u1",
    "int32": "<i4",
    "int64": "<i8",
    "bool": "|b1",
}
STORED = {"bfloat16": "uint16"}  # dtype of a network -> that of its arrays


def npy_bytes(array: Array) -> bytes:
    """Return an array as an .npy file of version 1.0."""
    return _header(str(array.dtype), array.shape) + np.ascontiguousarray(array).tobytes()


def array_of(data: bytes, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return the array of an .npy file, which must have this dtype and shape. Raises BundleError."""
    header = _header(dtype, shape)
    expected = len(header) + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if len(data) != expected or not data.startswith(header):
        raise BundleError(
            f"{name} is not an array of {dtype} of shape {list(shape)}", "the array that the manifest describes"
        )
    return np.frombuffer(data, dtype, offset=len(header)).reshape(shape)


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    if dtype not in _CODES:
        raise BundleError(f"an array of {dtype}", f"one of {', '.join(_CODES)}")
    text = f"{{'descr': '{_CODES[dtype]}', 'fortran_order': False, 'shape': {tuple(map(int, shape))!r}, }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
