"""Parse functions from TVMScript text, without TVM's source inspection.

At each @T.prim_func TVM reads the source of every stack frame, to find out whether it is in a class; in a process with
many modules that takes longer than parsing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


class _Names:
    """TVMScript's names, with a decorator that does nothing but identify the dialect."""

    def __init__(self, names: Any) -> None:
        self._names = names

    def prim_func(self, **_options: Any) -> Any:
        return self._names.prim_func

    def __getattr__(self, name: str) -> Any:
        return getattr(self._names, name)


@lru_cache(maxsize=64)
def parsed(text: str) -> Any:
    """Return the PrimFunc of a text. It is not checked: compilation does that, and the texts are ours."""
    from tvm.script import from_source, tirx

    return from_source(text, extra_vars={"T": _Names(tirx)}, check_well_formed=False)
