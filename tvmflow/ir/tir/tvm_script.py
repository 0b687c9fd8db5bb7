"""Functions from text in TVMScript, without what TVM does for functions in files of Python.

At each @T.prim_func TVM reads the source of every frame on the stack, to see whether it is inside a class: in a process
of many modules that takes longer than to parse. The text's own decorator is read from the text.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


class _Names:
    """TVMScript's names, with a decorator that only says which language it is."""

    def __init__(self, names: Any) -> None:
        self._names = names

    def prim_func(self, **_options: Any) -> Any:
        return self._names.prim_func

    def __getattr__(self, name: str) -> Any:
        return getattr(self._names, name)


@lru_cache(maxsize=64)
def parsed(text: str) -> Any:
    """Return the PrimFunc that a text is. Not checked to be well-formed: compiling it does, and texts are ours."""
    from tvm.script import from_source, tirx

    return from_source(text, extra_vars={"T": _Names(tirx)}, check_well_formed=False)
