"""A lowered main function whose tensors are allocated by calls of their own, as the passes over memory read it."""

from __future__ import annotations

from typing import Any

ALIGNMENT = 64  # bytes: kernels are compiled for buffers that begin at such an address


def with_allocations(mod: Any) -> Any:
    """Return an IRModule of kernels whose main calls them with outputs that it allocated: no dataflow block, no purity,
    no call_tir.
    """
    from tvm import relax

    for step in (
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ):
        mod = step(mod)
    return mod
