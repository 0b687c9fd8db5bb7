"""From packed Relax to a module of scheduled kernels: one readable list of named phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvmflow.passes.legalize_convolutions import LegalizeConvolutions

Dump = Callable[[str, Any], None]


def phases() -> list[tuple[str, Any]]:
    """Return (name, pass) in order: operators become kernels, kernels that belong together become one."""
    return [
        ("legalize_convolutions", LegalizeConvolutions()),
        ("legalize_operators", relax.transform.LegalizeOps()),
        ("annotate_patterns", relax.transform.AnnotateTIROpPattern()),
        ("fold_constants", relax.transform.FoldConstant()),
        ("fuse_operators", relax.transform.FuseOps()),
        ("fuse_kernels", relax.transform.FuseTIR()),
        ("drop_dead_code", relax.transform.DeadCodeElimination(["main"])),
    ]


def lower(mod: Any, target: Any, dump: Dump | None = None) -> Any:
    """Run the phases for a tvm target; `dump(name, module)` sees the module after each."""
    with target:
        for name, step in phases():
            mod = step(mod)
            if dump is not None:
                dump(name, mod)
    return mod
