"""Convert dataclasses to JSON and back by their type hints: one reader and one writer for every file of ours."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tvmflow.support.errors import TvmflowError

T = TypeVar("T")
OPTIONAL = MappingProxyType({"left out while empty": True})  # metadata of a dataclass field that JSON may lack


def to_json(value: Any) -> Any:
    """Return a dataclass, a model of pydantic, an error, or a collection of them as a JSON-able value."""
    if is_dataclass(value):
        members = ((one, getattr(value, one.name)) for one in fields(value))
        return {one.name: to_json(held) for one, held in members if held or one.metadata != OPTIONAL}
    if isinstance(value, TvmflowError):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: to_json(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(held) for held in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def from_json(kind: type[T], data: Any) -> T:
    """Return the value that `to_json` converted. Raises ValueError, which names the first wrong member."""
    try:
        value: T = adapter(cast(Any, kind)).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(": ".join([*(str(name) for name in first["loc"]), first["msg"]])) from None
    return value


def write_json(path: Path, value: Any) -> None:
    """Write a value for `read_json`. Equal values give equal bytes."""
    path.write_text(json.dumps(to_json(value), sort_keys=True, indent=1), encoding="utf-8")


def read_json(kind: type[T], path: Path) -> T:
    """Return the value in a file. Raises OSError, or ValueError for other JSON."""
    return from_json(kind, json.loads(path.read_text(encoding="utf-8")))


@functools.cache
def adapter(kind: Any) -> Any:
    """Return pydantic's adapter of a type."""
    return TypeAdapter(kind)
