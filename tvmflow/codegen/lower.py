"""Lower packed Relax to a module of kernels by the passes of the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tvmflow.backends.backend import Backend

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

Dump = Callable[[str, Any], None]


def lower(mod: IRModule, backend: Backend, dump: Dump | None = None, winograd: Mapping[str, int] | None = None) -> Any:
    """Apply the backend's lowering passes; call `dump(name, module)` after each.

    winograd: convolution key -> tile size, for convolutions to compute by Winograd's algorithm.
    """
    with backend.tvm_target():
        for name, step in backend.lowering_passes(winograd or {}):
            mod = step(mod)
            if dump is not None:
                dump(name, mod)
    return mod
