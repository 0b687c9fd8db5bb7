"""From packed Relax to a module of kernels, through the phases that the backend names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvmflow.backends.backend import Backend

Dump = Callable[[str, Any], None]


def lower(mod: Any, backend: Backend, dump: Dump | None = None, winograd: Mapping[str, int] | None = None) -> Any:
    """Run the backend's phases; `dump(name, module)` sees the module after each.

    winograd: convolution key -> tile size, of those to be computed by Winograd's algorithm.
    """
    with backend.tvm_target():
        for name, step in backend.phases(winograd or {}):
            mod = step(mod)
            if dump is not None:
                dump(name, mod)
    return mod
