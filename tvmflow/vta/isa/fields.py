"""Parse untrusted JSON descriptions.

Every value has one type and bounds; unknown names are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvmflow.support.errors import ProgramError

Array = np.ndarray[Any, Any]
MAX_ITEMS, MAX_NAME = 1 << 16, 512
WRITTEN_BY = "what graph_pack or build wrote"


def parse(data: bytes) -> dict[str, Any]:
    """Return the object of a JSON text. Raises ProgramError for anything else, for a key written twice, for NaN and
    deep nesting.
    """
    try:
        described = json.loads(data.decode("utf-8"), object_pairs_hook=_refuse_duplicates, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"a damaged VTA program or region: {_short(str(error))}", WRITTEN_BY) from None
    if not isinstance(described, dict):
        raise wrong("description", described, "an object")
    return described


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError(f"a key written twice among {sorted(name for name, _ in pairs)}")
    return members


def _refuse(word: str) -> Any:
    raise ValueError(f"the number {word}")


def _short(value: object) -> str:
    try:
        text = repr(value) if not isinstance(value, str) else value
    except (ValueError, RecursionError):  # a number of many digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def wrong(where: str, value: object, expected: str) -> ProgramError:
    """Return the error of a value that is not what it must be."""
    return ProgramError(f"a damaged VTA program or region: {where} = {_short(value)}", expected)


def whole(where: str, value: object, low: int, high: int) -> int:
    """Return a whole number from low to high."""
    if type(value) is not int or not low <= value <= high:
        raise wrong(where, value, f"a whole number from {low} to {high}")
    return value


def name(where: str, value: object) -> str:
    """Return a short text that is not empty."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or not value.isprintable():
        raise wrong(where, value, f"a name of 1 to {MAX_NAME} characters")
    return value


def items(where: str, value: object, low: int = 0, high: int = MAX_ITEMS) -> list[Any]:
    """Return a list of low to high items."""
    if not isinstance(value, list | tuple) or not low <= len(value) <= high:
        raise wrong(where, value, f"a list of {low} to {high}")
    return list(value)


def names(where: str, value: object, low: int = 0, high: int = MAX_ITEMS) -> tuple[str, ...]:
    """Return different names."""
    entries = tuple(name(where, item) for item in items(where, value, low, high))
    if len(set(entries)) != len(entries):
        raise wrong(where, list(entries), "every name once")
    return entries


def wholes(where: str, value: object, count: int, bounds: tuple[int, int]) -> tuple[int, ...]:
    """Return `count` whole numbers."""
    return tuple(whole(where, item, *bounds) for item in items(where, value, count, count))


def members(where: str, value: object, required: Mapping[str, Any] | set[str]) -> dict[str, Any]:
    """Return the members of an object that has exactly the required names."""
    if not isinstance(value, dict) or set(value) != set(required):
        raise wrong(where, sorted(value) if isinstance(value, dict) else value, f"an object of {sorted(required)}")
    return value


def array(where: str, arrays: Mapping[str, Array], key: str, dtype: str, ndim: int) -> Array:
    """Return one of the arrays, of the given type and number of dimensions."""
    stored = arrays.get(key)
    if stored is None or stored.dtype != np.dtype(dtype) or stored.ndim != ndim:
        raise wrong(
            where, "nothing" if stored is None else f"{stored.dtype} {stored.shape}", f"{dtype} of {ndim} dimensions"
        )
    return stored
