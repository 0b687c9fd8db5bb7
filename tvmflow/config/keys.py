"""Resolve dotted keys of params.yaml such as "targets.{target}.threads": whether they exist and are required."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from tvmflow.config.params import Params
from tvmflow.support.errors import UnknownNameError

_WITH_OPTIONAL_KEYS = ("models", "targets")


def part_of(kind: Any, name: str) -> tuple[Any, bool] | None:
    """Return the type of a block's key and whether it is required; None if the block has no such key.

    Any name is a key of a mapping and is not required; a name in braces stands for the cell's own, which is.
    """
    if get_origin(kind) in (Union, UnionType):
        options = [a for a in get_args(kind) if a is not type(None)]
        kind = next((a for a in options if isinstance(a, type) and issubclass(a, BaseModel)), options[0])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(name)
        return None if field is None else (field.annotation, field.is_required())
    if get_origin(kind) is dict:
        return get_args(kind)[1], name.startswith("{")
    return None


def written_part(key: str) -> str:
    """Return the key, or the enclosing block that every params.yaml has if the key is optional. Raises UnknownNameError
    for an unknown key.
    """
    kind: Any = Params
    written: list[str] = []
    is_written = True
    for name in key.split("."):
        part = part_of(kind, name)
        if part is None:
            raise UnknownNameError(
                f"no key {key!r} in params.yaml", f"a key under {'.'.join(written) or 'the top level'}"
            )
        kind, must = part
        # Only entries of models and targets are short; the blocks below are written whole where dvc.yaml names their
        # keys.
        is_written = is_written and (must or not written or written[0] not in _WITH_OPTIONAL_KEYS)
        if is_written:
            written.append(name)
    return ".".join(written)
