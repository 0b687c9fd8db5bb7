"""PackChannels: give convolutions the layout NCHW{block}c, weights OIHW{block}i{block}o, ready to be vectorized.

Only convolutions whose channels divide by the block are packed; between them everything stays packed, and weights are
transformed here, once. What is left in NCHW (first layers of 3 channels, depthwise) keeps its meaning and its layout.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


@tvm.transform.module_pass(opt_level=0, name="PackChannels")
class PackChannels:
    """IRModule -> IRModule; `block` channels side by side."""

    def __init__(self, block: int) -> None:
        self.block = block

    def transform_module(self, mod: Any, _context: Any) -> Any:
        b = self.block
        layouts = [f"NCHW{b}c", f"OIHW{b}i{b}o", f"NCHW{b}c"]
        mod = relax.transform.ConvertLayout({"relax.nn.conv2d": layouts})(mod)
        mod = relax.transform.FoldConstant()(mod)
        return relax.transform.DeadCodeElimination(["main"])(mod)


def packed_convolutions(mod: Any) -> tuple[int, int]:
    """Return how many of a module's convolutions are packed, and how many there are."""
    layouts: list[str] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.nn.conv2d":
            layouts.append(str(expression.attrs.data_layout))

    relax.analysis.post_order_visit(mod["main"], visit)
    return sum(layout != "NCHW" for layout in layouts), len(layouts)
