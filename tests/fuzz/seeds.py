"""Write small MXNet files: seeds for mutation, and files that unit tests alter."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

_CODES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}


def _array(array: np.ndarray[Any, Any], version: int) -> bytes:
    sizes = struct.pack(f"<{array.ndim}q", *array.shape)
    if version == 0:
        head = struct.pack(f"<I{array.ndim}I", array.ndim, *array.shape)
    elif version == 1:
        head = struct.pack("<II", 0xF993FAC8, array.ndim) + sizes
    else:
        head = struct.pack("<IiI", 0xF993FAC9 if version == 2 else 0xF993FACA, 0, array.ndim) + sizes
    return head + struct.pack("<iii", 1, 0, _CODES[str(array.dtype)]) + array.tobytes()


def params_bytes(arrays: dict[str, np.ndarray[Any, Any]], version: int) -> bytes:
    """Return a list of named arrays in the format's version 0 (before versions) to 3."""
    data = struct.pack("<QQQ", 0x112, 0, len(arrays)) + b"".join(_array(a, version) for a in arrays.values())
    data += struct.pack("<Q", len(arrays))
    return data + b"".join(struct.pack("<Q", len(name)) + name.encode() for name in arrays)


def symbol_json(nodes: list[tuple[str, str, dict[str, str], list[int]]], head: int) -> str:
    """Return a symbol of (op, name, attributes, inputs)."""
    entries = [
        {"op": op, "name": name, "attrs": attrs, "inputs": [[at, 0, 0] for at in inputs]}
        for op, name, attrs, inputs in nodes
    ]
    arguments = [at for at, node in enumerate(nodes) if node[0] == "null"]
    return json.dumps({"nodes": entries, "arg_nodes": arguments, "heads": [[head, 0, 0]]})
