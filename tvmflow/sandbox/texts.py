"""Turn texts into tokens in a sandbox: tokenizer.json is untrusted, and the package that reads it is native code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tvmflow.sandbox.process import MAX_REPLY_BYTES, Policy, run_in_sandbox
from tvmflow.sources.data.tokens import Tokens, check_installed, check_texts, tokenize
from tvmflow.support.errors import ModelFileError

_TIMEOUT_S = 120.0
_BYTES = 32  # of a token in a reply: its id and its type
_MOST_TOKEN = 1 << 31


def tokenize_in_sandbox(path: Path, texts: Sequence[str], most: int) -> list[Tokens]:
    """Return the tokens of texts, at most `most` of each. Raises SourceError, UsageError, ModelFileError."""
    check_installed()
    check_texts(texts)
    policy = Policy(
        _TIMEOUT_S, (path,), reply_bytes=MAX_REPLY_BYTES + _BYTES * most * len(texts), what=f"the tokenizer {path}"
    )
    arguments = {"path": str(path.absolute()), "texts": list(texts), "most": most}
    reply = run_in_sandbox(f"{tokenize.__module__}:{tokenize.__name__}", arguments, policy)
    try:
        found = [_tokens(most, *row) for row in reply]
        if len(found) == len(texts):
            return found
    except (TypeError, ValueError):
        pass
    raise ModelFileError(f"{path} makes no rows of tokens", "a tokenizer.json")


def _tokens(most: int, ids: list[int], types: list[int], count: int, pad: int) -> Tokens:
    numbers = [*ids, *types, count, pad]
    is_token = (isinstance(one, int) and 0 <= one < _MOST_TOKEN for one in numbers)
    if not all(is_token) or len(ids) > most or len(types) != len(ids):
        raise ValueError("no tokens")
    return Tokens(tuple(ids), tuple(types), count, pad)
