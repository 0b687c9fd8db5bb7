"""Record which keys of params.yaml are read."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from tvmflow.config.keys import part_of
from tvmflow.config.params import Cell, Params, Precision
from tvmflow.support.digests import Digests

Path_ = tuple[str, ...]


class RecordedModel:
    """A block of params.yaml that notes what is asked of it; methods and properties of the block see the noting
    block.
    """

    def __init__(self, value: BaseModel, path: Path_, reads: set[Path_]) -> None:
        self.__dict__.update(_value=value, _path=path, _reads=reads)

    def __getattr__(self, name: str) -> Any:
        value, kind = self._value, type(self._value)
        if name in kind.model_fields and kind.model_fields[name].annotation == dict[str, Any]:
            self._reads.add((*self._path, name))  # what it means is nobody's business but a row's, which gets it whole
            return getattr(value, name)
        if name in kind.model_fields:
            return _wrapped(getattr(value, name), (*self._path, name), self._reads)
        attribute = getattr(kind, name)
        if name.startswith("model_"):
            self._reads.add(self._path)
            return getattr(value, name)
        if isinstance(attribute, property):
            return attribute.fget(self)  # type: ignore[misc]
        return functools.partial(attribute, self)


class RecordedDict:
    def __init__(self, value: dict[str, Any], path: Path_, reads: set[Path_]) -> None:
        self._value, self._path, self._reads = value, path, reads

    def __getitem__(self, name: str) -> Any:
        return _wrapped(self._value[name], (*self._path, name), self._reads)

    def get(self, name: str, default: Any = None) -> Any:
        self._reads.add((*self._path, name))
        return self[name] if name in self._value else default

    def __contains__(self, name: str) -> bool:
        self._reads.add((*self._path, name))
        return name in self._value

    def _whole(self) -> dict[str, Any]:
        self._reads.add(self._path)
        return self._value

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def keys(self) -> Any:
        return self._whole().keys()

    def items(self) -> Any:
        return self._whole().items()

    def values(self) -> Any:
        return self._whole().values()

    def __len__(self) -> int:
        return len(self._whole())


def _wrapped(value: Any, path: Path_, reads: set[Path_]) -> Any:
    if isinstance(value, BaseModel):
        return RecordedModel(value, path, reads)
    if isinstance(value, dict):
        return RecordedDict(value, path, reads)
    reads.add(path)
    return value


def _note_what_is_kept(value: Any) -> None:
    """A block that goes into settings as it is counts as read, all of it."""
    if isinstance(value, RecordedModel | RecordedDict):
        value._reads.add(value._path)
    elif is_dataclass(value):
        for part in fields(value):
            _note_what_is_kept(getattr(value, part.name))


class RecordingWorkspace:
    def __init__(self, root: Path, params: Params) -> None:
        self.root, self.reads, self.digests = root, set[Path_](), Digests()
        self.params = RecordedModel(params, (), self.reads)


def keys_read(function: Any, root: Path, params: Params, cell: Cell) -> set[str]:
    """Return the leaves of params.yaml that a stage's settings or limits read, with {model}, {target}, {precision}."""
    workspace = RecordingWorkspace(root, params)
    _note_what_is_kept(function(workspace, cell))
    return {leaf for path in workspace.reads for leaf in leaves(general_key(path, cell))}


def general_key(path: Path_, cell: Cell) -> str:
    """Return a path of one cell as a key of every cell; what is below a mapping of the user's own belongs to the
    mapping.
    """
    kind: Any = Params
    names: list[str] = []
    for name in path:
        if get_origin(kind) is dict:
            table = {"models": "model", "targets": "target"}.get(names[-1]) if len(names) == 1 else None
            word = table or ("precision" if get_args(kind)[0] is Precision else None)
            if word is None:
                break
            name = f"{{{word}}}" if name == getattr(cell, word) else name
        names.append(name)
        part = part_of(kind, name)
        assert part is not None, path
        kind = part[0]
    return ".".join(names)


def leaves(key: str) -> set[str]:
    """Return the keys below a key that hold values."""
    kind: Any = Params
    for name in key.split("."):
        part = part_of(kind, name)
        assert part is not None, f"no key {key}"
        kind = part[0]
    return set(_leaves(kind, key))


def _leaves(kind: Any, key: str) -> Iterator[str]:
    options = [kind, *get_args(kind)] if get_origin(kind) is not dict else [kind]
    model = next((k for k in options if isinstance(k, type) and issubclass(k, BaseModel)), None)
    is_union = get_origin(kind) in (Union, UnionType)
    if model is not None and not (is_union and any(k is not type(None) and k is not model for k in get_args(kind))):
        for name, field in model.model_fields.items():
            yield from _leaves(field.annotation, f"{key}.{name}")
    elif get_origin(kind) is dict and get_args(kind)[0] is Precision:
        yield f"{key}.{{precision}}"
    else:
        yield key
