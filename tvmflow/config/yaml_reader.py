"""Read YAML written by users: plain data, no duplicate keys, limited depth and size."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.resolver import Resolver

from tvmflow.support.errors import ParamsError
from tvmflow.support.secrets import places_of_secrets

MAX_DEPTH = 40
MAX_VALUES = 200_000
MAX_BITS = 1024
MAX_SCALAR = 10_000  # characters; parsing a number takes quadratic time


def load_yaml(text: str) -> Any:
    """Return the document as dicts, lists and plain values. Raises ValueError that says what is wrong."""
    try:
        return _PlainLoader(text).get_single_data()
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # PyYAML's constructors let KeyError, TypeError, AttributeError and more through
        said = " ".join(str(error).split()).replace(' in "<unicode string>",', ",")
        raise ValueError(said or type(error).__name__) from None


class _PlainLoader(Composer, CParser, SafeConstructor, Resolver):
    """Safe YAML loader that rejects duplicate keys, deep nesting, and aliases that expand too far.

    libyaml reads the text; PyYAML composes its events, which libyaml would do without the checks.
    """

    def __init__(self, stream: str) -> None:
        CParser.__init__(self, stream)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        self._check_limit("levels", self._depth, MAX_DEPTH, event)
        self._check_limit("characters", len(getattr(event, "value", "")), MAX_SCALAR, event)
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        self._depth -= 1
        if node is not None:
            self._check_limit("values", self._size(node), MAX_VALUES, event)
        return node

    def _check_limit(self, what: str, count: int, limit: int, event: Any) -> None:
        if count > limit:
            raise yaml.composer.ComposerError(None, None, f"more than {limit} {what}", event.start_mark)

    def _size(self, node: yaml.Node) -> int:
        """Return the number of values in a node after alias expansion; its children were counted when they were
        composed.
        """
        if id(node) not in self._sizes:
            parts = [node] if isinstance(node.value, str) else _parts(node)
            self._sizes[id(node)] = 1 + sum(self._sizes.get(id(part), 0) for part in parts)
        return self._sizes[id(node)]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    return [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]


def _unique_mapping(loader: SafeConstructor, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)  # type: ignore[no-untyped-call]
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _short_integer(loader: SafeConstructor, node: yaml.ScalarNode) -> int:
    value = int(loader.construct_yaml_int(node))  # type: ignore[no-untyped-call]
    if value.bit_length() > MAX_BITS:  # Python writes no longer ones, as an error would have to
        raise yaml.constructor.ConstructorError(None, None, f"a number of {value.bit_length()} bits", node.start_mark)
    return value


_PlainLoader.add_constructor(Resolver.DEFAULT_MAPPING_TAG, _unique_mapping)  # type: ignore[type-var]
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _short_integer)  # type: ignore[type-var]


def refuse_secrets(name: str, data: Any) -> None:
    """Raise ParamsError for an address with a user, a password or a token: this file belongs into git, and DVC and
    records copy its values.
    """
    found = [f"{place}: an address with a user, a password or a token" for place in places_of_secrets(data)]
    if found:
        raise ParamsError(
            f"{name} holds secrets, which git, dvc.lock and records would keep:\n  - " + "\n  - ".join(found),
            "addresses without them",
            "write user and password into ~/.netrc (machine HOST login USER password PASSWORD), which downloads read",
        )
