"""Lower main to explicit tensor allocations, the form that the memory passes read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import relax

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

ALIGNMENT = 64  # bytes: kernels are compiled for buffers aligned to it


def allocate_tensors(mod: IRModule) -> Any:
    """Return an IRModule of kernels whose main allocates their outputs: no dataflow block, no purity, no call_tir."""
    for step in (
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ):
        mod = step(mod)
    return mod
