"""Read MXNet's files without MXNet: NAME-symbol.json (graph) and NAME-0000.params (named NDArrays).

Both are untrusted: every size is checked against the actual number of bytes before it is used. The list:
magic 0x112 and a reserved word (u64 each), count u64, arrays, count u64, names (length u64, UTF-8). An array: magic u32
(three versions; before them, no magic), storage type i32, dimensions u32, sizes i64, device (i32, i32), type i32, data;
little-endian.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.support.errors import ModelFileError

Array = np.ndarray[Any, Any]
MAX_SYMBOL_BYTES = 64 << 20
MAX_PARAMS_BYTES = 8 << 30
_LIST_MAGIC = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_TYPES = (np.float32, np.float64, np.float16, np.uint8, np.int32, np.int8, np.int64)
_MAX_NDIM = 32


@dataclass(frozen=True)
class Node:
    """One node of a symbol: op is 'null' for inputs and parameters. inputs: (index of an earlier node, its output)."""

    op: str
    name: str
    attrs: dict[str, str]
    inputs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Symbol:
    nodes: tuple[Node, ...]
    heads: tuple[tuple[int, int], ...]


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> memoryview:
        if count < 0 or count > len(self.data) - self.at:
            raise ValueError(f"{count} bytes needed at {self.at}, {len(self.data) - self.at} left")
        part = self.data[self.at : self.at + count]
        self.at += count
        return part

    def number(self, kind: str) -> int:
        return int(struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0])

    def count(self, smallest: int) -> int:
        """Return a number of entries that take at least `smallest` bytes each."""
        count = self.number("Q")
        if count * smallest > len(self.data) - self.at:
            raise ValueError(f"{count} entries announced, {len(self.data) - self.at} bytes left")
        return count


def read_params(path: Path) -> dict[str, Array]:
    """Return name -> array, without the prefixes `arg:` and `aux:`. Raises ModelFileError."""
    try:
        size = path.stat().st_size
        if size > MAX_PARAMS_BYTES:
            raise ModelFileError(f"{path.name} holds {size} bytes", f"at most {MAX_PARAMS_BYTES}")
        return _params(_Reader(memoryview(path.read_bytes())))
    except (OSError, ValueError, struct.error) as error:
        raise ModelFileError(
            f"{path.name} is not a whole MXNet parameter file: {error}",
            "a file written by MXNet's save",
            "export the model again, or copy the file again",
        ) from error


def _params(reader: _Reader) -> dict[str, Array]:
    if reader.number("Q") != _LIST_MAGIC:
        raise ValueError("it does not begin with MXNet's magic number")
    reader.number("Q")
    arrays = [_array(reader) for _ in range(reader.count(8))]
    names = [bytes(reader.take(reader.number("Q"))).decode("utf-8") for _ in range(reader.count(8))]
    if len(names) != len(arrays):
        raise ValueError(f"{len(names)} names for {len(arrays)} arrays")
    return {re.sub(r"^(arg|aux):", "", name): array for name, array in zip(names, arrays, strict=True)}


def _array(reader: _Reader) -> Array:
    magic = reader.number("I")
    if magic in (_V2, _V3) and reader.number("i") != 0:
        raise ValueError("a sparse array")
    if magic in (_V1, _V2, _V3):
        shape = tuple(reader.number("q") for _ in range(_ndim(reader.number("I"))))
    else:  # before versions: the word is the number of dimensions
        shape = tuple(reader.number("I") for _ in range(_ndim(magic)))
    if not shape and magic != _V3:
        return np.zeros(0, np.float32)  # an array that was never filled is nothing but this
    reader.take(8)
    kind = reader.number("i")
    if not 0 <= kind < len(_TYPES):
        raise ValueError(f"an array of type {kind}")
    if any(size < 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    dtype = np.dtype(_TYPES[kind])
    data = reader.take(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype)


def _ndim(number: int) -> int:
    if number > _MAX_NDIM:
        raise ValueError(f"an array of {number} dimensions")
    return number


def read_symbol(path: Path) -> Symbol:
    """Return the validated graph, in which every input is an earlier node. Raises ModelFileError."""
    try:
        size = path.stat().st_size
        if size > MAX_SYMBOL_BYTES:
            raise ModelFileError(f"{path.name} holds {size} bytes", f"at most {MAX_SYMBOL_BYTES}")
        return _symbol(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{path.name} is not an MXNet symbol: {type(error).__name__} {error}",
            "a file written by MXNet's export",
            "export the model again, or copy the file again",
        ) from error


def _symbol(data: Any) -> Symbol:
    nodes: list[Node] = []
    for index, entry in enumerate(data["nodes"]):
        attrs = entry.get("attrs", entry.get("attr", entry.get("param", {})))
        inputs = tuple((_index(source[0], index), _index(source[1], 64)) for source in entry["inputs"])
        if not isinstance(entry["op"], str) or not isinstance(entry["name"], str):
            raise ValueError(f"node {index} has no name")
        nodes.append(Node(entry["op"], entry["name"], {str(k): str(v) for k, v in attrs.items()}, inputs))
    heads = tuple((_index(head[0], len(nodes)), _index(head[1], 64)) for head in data["heads"])
    if not nodes or not heads:
        raise ValueError("a graph without nodes or heads")
    return Symbol(tuple(nodes), heads)


def _index(value: Any, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError(f"index {value!r}; legal: 0 to {limit - 1}")
    return value
