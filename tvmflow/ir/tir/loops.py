"""The loops of a scheduled kernel that threads share."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import WalkResult, structural_walk


def parallel_loops(function: Any) -> tuple[int, ...]:
    """Return the extents of a scheduled kernel's parallel loops in their order; none where one lies in another loop, or
    its extent is not known.

    TVM leaves out loops of one step, but not those with annotations: then it is not known either. A wrong extent would
    cost time, and nothing else.
    """
    found: list[int] = []  # 0: of unknown extent

    def look(loop: Any) -> WalkResult:
        if loop.kind == tirx.ForKind.PARALLEL:
            extent = int(getattr(loop.extent, "value", 0))
            found.extend([extent] if extent > 1 else [0] if loop.annotations or not extent else [])
        else:
            structural_walk(loop.body, (tirx.For, within), order="pre")
        return WalkResult.SKIP

    def within(loop: Any) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            found.append(0)

    structural_walk(function.body, (tirx.For, look), order="pre")
    return () if 0 in found else tuple(found)
