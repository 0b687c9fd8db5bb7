"""Turn texts into the inputs of a model of tokens, with its tokenizer.json, by the package tokenizers.

Texts and file are untrusted: `tokenize` runs in a sandbox.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmflow.config.buckets import Sizes
from tvmflow.config.model_params import Tensor
from tvmflow.support.errors import SourceError, UsageError
from tvmflow.support.plain_files import read_plain

MAX_TOKENIZER_BYTES = 64 << 20
MAX_TEXT_BYTES = 4 << 20
MAX_TEXTS = 10_000
_PADS = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")  # of a tokenizer that names no padding
_ROLES = {
    "ids": ("input_ids", "input_word_ids", "ids", "tokens", "token_ids"),
    "mask": ("attention_mask", "input_mask", "mask"),
    "types": ("token_type_ids", "segment_ids", "input_type_ids"),
}


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text: ids and types of all that fit, and how many it has. pad: the id that fills up."""

    ids: tuple[int, ...]
    types: tuple[int, ...]
    count: int
    pad: int


def check_installed() -> None:
    """Raise UsageError where the package that reads tokenizer.json is missing."""
    if importlib.util.find_spec("tokenizers") is None:
        raise UsageError(
            "the package tokenizers is not installed", "it, to turn texts into tokens", "pip install 'tvmflow[text]'"
        )


def tokenize(path: str, texts: list[str], most: int) -> list[list[Any]]:
    """Return ids, types, number of tokens and padding of each text. most: tokens that are kept. Raises SourceError."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(read_plain(Path(path), MAX_TOKENIZER_BYTES, links=True).decode("utf-8"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        found = tokenizer.encode_batch(texts)
        counts = [len(one.ids) for one in found]
        if max(counts, default=0) > most:
            tokenizer.enable_truncation(most)
            found = tokenizer.encode_batch(texts)
        pads = [pad for name in _PADS if (pad := tokenizer.token_to_id(name)) is not None]
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read: {error}", "the tokenizer.json of the model") from None
    except BaseException as error:  # the package has no exceptions of its own, and Rust's panics are none of Exception
        raise SourceError(
            f"{path} makes no tokens: {error}", "a tokenizer.json as the package tokenizers writes it"
        ) from None
    pad = pads[0] if pads else 0
    return [[one.ids, one.type_ids, count, pad] for one, count in zip(found, counts, strict=True)]


def longest(tensors: Mapping[str, Tensor]) -> int:
    """Return how many tokens a model takes. Raises SourceError for a model of other inputs."""
    roles = _roles(tensors)
    shapes = {tensors[name].shape for name in roles}
    if len(shapes) > 1 or len(next(iter(shapes))) != 2:
        shown = ", ".join(f"{name} {list(tensors[name].shape)}" for name in roles)
        raise SourceError(f"inputs {shown} for texts", "inputs of one shape, (batch, tokens)")
    return next(iter(shapes))[1]


def _roles(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return input -> what it takes: ids, mask or types. Raises SourceError."""
    roles = {
        name: role for name in tensors for role, names in _ROLES.items() if name.lower().partition(":")[0] in names
    }
    if len(tensors) == 1:
        roles = dict.fromkeys(tensors, "ids")
    others = [name for name in tensors if name not in roles]
    if others or sorted(roles.values()).count("ids") != 1 or len(set(roles.values())) < len(roles):
        raise SourceError(
            f"inputs {', '.join(tensors)} for texts",
            "one input, or input_ids with attention_mask and token_type_ids",
            "call tvmflow.predict in Python with the arrays",
        )
    return roles


def inputs_of(tokens: Tokens, tensors: Mapping[str, Tensor], sizes: Sizes | None) -> dict[str, Any]:
    """Return input name -> (1, length) of a text: as long as the text where the model has that size open, else filled
    up. Raises SourceError.
    """
    at_axis = {axis.tensor for axis in sizes.axes if axis.axis == 1} if sizes else set()
    found: dict[str, Any] = {}
    for at, (name, role) in enumerate(_roles(tensors).items()):
        tensor = tensors[name]
        length = max(len(tokens.ids), 1) if at in at_axis else tensor.shape[1]
        given = {"ids": tokens.ids, "mask": (1,) * len(tokens.ids), "types": tokens.types}[role]
        fill = tokens.pad if role == "ids" else 0
        row = [*given, *[fill] * (length - len(given))]
        above = _bound(tensor)
        if max(row) >= above:
            raise SourceError(
                f"token {max(row)} for the input {name}",
                f"tokens below {above:g}",
                "name the tokenizer that the model was trained with as tokenizer: in params.yaml",
            )
        found[name] = np.array([row], tensor.dtype)
    return found


def _bound(tensor: Tensor) -> float:
    most = np.iinfo(tensor.dtype).max + 1 if np.dtype(tensor.dtype).kind in "iu" else float("inf")
    return most if tensor.high is None else min(tensor.high, most)


def read_texts(path: Path) -> dict[str, str]:
    """Return name -> text of a .txt file, or of those of a folder. Raises SourceError."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files or len(files) > MAX_TEXTS:
        raise SourceError(f"{len(files)} .txt files in {path}", f"1 to {MAX_TEXTS}")
    return {str(file): _text(file) for file in files}


def _text(path: Path) -> str:
    try:
        return read_plain(path, MAX_TEXT_BYTES, links=True).decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}", "a text in UTF-8") from None


def check_texts(texts: Sequence[str]) -> None:
    """Raise UsageError for no text, an empty one, or more than a call takes."""
    if not texts or len(texts) > MAX_TEXTS or not all(text.strip() for text in texts):
        raise UsageError("no text" if not texts else f"{len(texts)} texts, or an empty one", f"1 to {MAX_TEXTS} texts")
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > MAX_TEXT_BYTES:
        raise UsageError(f"{size} bytes of text", f"at most {MAX_TEXT_BYTES} at once")
