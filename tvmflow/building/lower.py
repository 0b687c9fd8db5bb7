"""From packed Relax to a module of scheduled kernels: one readable list of named phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from tvmflow.passes.concatenate_in_place import ConcatenateInPlace
from tvmflow.passes.legalize_convolutions import legalize_conv2d
from tvmflow.passes.legalize_pools import legalize_max_pool2d
from tvmflow.passes.round_bfloat16 import legalize_astype

Dump = Callable[[str, Any], None]


def phases(winograd: Mapping[str, int]) -> list[tuple[str, Any]]:
    """Return (name, pass) in order: operators become kernels, kernels that belong together become one."""
    own = {
        "relax.nn.conv2d": legalize_conv2d(winograd), "relax.nn.max_pool2d": legalize_max_pool2d,
        "relax.astype": legalize_astype,
    }  # fmt: skip
    return [
        ("legalize_operators", relax.transform.LegalizeOps(own)),
        ("annotate_patterns", relax.transform.AnnotateTIROpPattern()),
        ("fold_constants", relax.transform.FoldConstant()),
        ("fuse_operators", relax.transform.FuseOps()),
        ("fuse_kernels", relax.transform.FuseTIR()),
        ("drop_dead_code", relax.transform.DeadCodeElimination(["main"])),
        ("concatenate_in_place", ConcatenateInPlace()),
    ]


def lower(mod: Any, target: Any, dump: Dump | None = None, winograd: Mapping[str, int] | None = None) -> Any:
    """Run the phases for a tvm target; `dump(name, module)` sees the module after each.

    winograd: convolution key -> tile size, of those to be computed by Winograd's algorithm.
    """
    with target:
        for name, step in phases(winograd or {}):
            mod = step(mod)
            if dump is not None:
                dump(name, mod)
    return mod
