"""Read class names from a labels file. The file is data: nothing in it is evaluated."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

from tvmflow.support.errors import SourceError

MAX_LABELS_BYTES = 4_000_000
MAX_LITERAL_BYTES = 1_000_000  # Python's parser takes two hundred times as much memory
BUILT_IN: dict[str, Callable[[], list[str]]] = {
    "digits": lambda: [str(digit) for digit in range(10)],
    "imagenet": lambda: _imagenet(),
}


def _imagenet() -> list[str]:
    """Return the names of the 1000 classes of ILSVRC 2012, by number: the first words of their synsets in WordNet."""
    return read_labels(Path(__file__).with_name("imagenet_classes.txt"))


def read_labels(path: Path) -> list[str]:
    """Return the class names in a .json list or mapping, a Python dict or list literal, or one name per line."""
    try:
        size = path.stat().st_size
        if size > MAX_LABELS_BYTES:
            raise SourceError(f"labels file {path} holds {size} bytes", f"at most {MAX_LABELS_BYTES}")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"no labels file {path}: {error.strerror}", "a .json or .txt file of names") from None
    except UnicodeDecodeError:
        raise SourceError(f"labels file {path} is not text", "UTF-8 text") from None
    return _as_names(_parse(text.strip(), path), path)


def _parse(text: str, path: Path) -> object:
    if not text.startswith(("{", "[")):
        return text.splitlines()
    try:
        return json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise SourceError(f"labels file {path} is nested too deeply", "a list or mapping of names") from None
    if len(text) > MAX_LITERAL_BYTES:
        raise SourceError(
            f"labels file {path} is a Python literal of {len(text)} characters", f"at most {MAX_LITERAL_BYTES}, or JSON"
        )
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise SourceError(
            f"labels file {path} is neither JSON nor a literal: {type(error).__name__}",
            "a list of names, or a mapping from class number to name",
            "write it as JSON; expressions and calls are never evaluated",
        ) from None


def _as_names(value: object, path: Path) -> list[str]:
    if isinstance(value, dict):
        try:
            numbered = {_number(key): name for key, name in value.items()}
        except ValueError:
            raise SourceError(f"labels file {path} has keys that are not numbers", "class numbers as keys") from None
        if len(numbered) < len(value) or sorted(numbered) != list(range(len(numbered))):
            raise SourceError(
                f"labels file {path} omits or repeats class numbers", f"every number from 0 to {len(numbered) - 1}"
            )
        value = [numbered[i] for i in range(len(numbered))]
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise SourceError(f"labels file {path} contains something other than names", "a non-empty list of strings")
    names = [name.strip() for name in value]
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None:
        raise SourceError(f"labels file {path} has the name {odd[:50]!r}", "names of printable characters")
    return names


def _number(key: object) -> int:
    """Return a class number written as an integer or as digits. Raises ValueError otherwise."""
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    if isinstance(key, str) and re.fullmatch("[0-9]{1,9}", key):
        return int(key)
    raise ValueError(f"{key!r} is not a class number")


def class_names(fetched: Path, classes: int) -> list[str] | None:
    """Return the class names of a cell: its labels, or ImageNet's for a zoo network with 1000 classes; None if
    unknown.
    """
    labels: list[str] | None = json.loads((fetched / "labels.json").read_text(encoding="utf-8"))
    network = json.loads((fetched / "source.json").read_text(encoding="utf-8"))["network"] or ""
    if labels is not None or classes != 1000 or not network.startswith(("torchvision/", "keras/", "mxnet/")):
        return labels
    return BUILT_IN["imagenet"]()
