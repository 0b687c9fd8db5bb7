"""Find the parallel loops of a scheduled kernel."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import WalkResult, structural_walk

from tvmflow.ir.tvm_compat import PrimFunc


def parallel_loops(function: PrimFunc) -> tuple[int, ...]:
    """Return the extents of a scheduled kernel's parallel loops in order; none if one is nested or its extent is
    unknown.

    TVM removes loops of one iteration, but not annotated ones: their extent counts as unknown, too. A wrong extent
    would only cost time.
    """
    found: list[int] = []  # 0: unknown extent

    def visit(loop: Any) -> WalkResult:
        if loop.kind == tirx.ForKind.PARALLEL:
            extent = int(getattr(loop.extent, "value", 0))
            found.extend([extent] if extent > 1 else [0] if loop.annotations or not extent else [])
        else:
            structural_walk(loop.body, (tirx.For, visit_nested), order="pre")
        return WalkResult.SKIP

    def visit_nested(loop: Any) -> None:
        if loop.kind == tirx.ForKind.PARALLEL:
            found.append(0)

    structural_walk(function.body, (tirx.For, visit), order="pre")
    return () if 0 in found else tuple(found)
