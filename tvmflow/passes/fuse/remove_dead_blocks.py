"""Remove the blocks of a kernel whose values nothing reads.

TVM folds arithmetic while it lowers an operator: x * 0 becomes 0, whatever computes x. The fused kernel then does not
read the output of a convolution, and no schedule of it makes sense: the unconnected convolution would be unrolled for
the whole image, which takes LLVM minutes.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.blocks import region_buffer, transform_kernels
from tvmflow.ir.tir.stmt_rewriter import with_root_body
from tvmflow.ir.tvm_compat import IRModule


@tvm.transform.module_pass(opt_level=0, name="RemoveDeadBlocks")
class RemoveDeadBlocks:
    """IRModule of fused, unscheduled kernels -> IRModule."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        return transform_kernels(mod, lambda _: True, _remove_dead_blocks)


def _remove_dead_blocks(kernel: Any) -> Any:
    dead = _find_dead_blocks(kernel)
    if not dead:
        return kernel
    kept = [statement for statement in kernel.body.block.body.seq if statement not in dead]
    written = [region_buffer(region) for block in dead.values() for region in block.writes]
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    return with_root_body(kernel, lambda _: body, lambda buffer: not _is_one_of(buffer, written))


def _find_dead_blocks(kernel: Any) -> dict[Any, Any]:
    """Return the statements, with their blocks, that write only local buffers which no live statement reads."""
    root = getattr(kernel.body, "block", None)
    if root is None or not root.alloc_buffers or not isinstance(root.body, tirx.SeqStmt):
        return {}
    blocks = {statement: block for statement in root.body.seq if (block := _block_of(statement)) is not None}
    if len(blocks) < len(root.body.seq) or not all(block.writes for block in blocks.values()):
        return {}  # a block that calls a function, as argsort does, does not declare its reads and writes
    dead: dict[Any, Any] = {}
    for statement in reversed(list(blocks)):
        written = [region_buffer(region) for region in blocks[statement].writes]
        others = [block for one, block in blocks.items() if one not in dead and not one.same_as(statement)]
        read = [region_buffer(region) for block in others for region in block.reads]
        if all(_is_one_of(buffer, list(root.alloc_buffers)) and not _is_one_of(buffer, read) for buffer in written):
            dead[statement] = blocks[statement]
    return dead


def _block_of(statement: Any) -> Any | None:
    """Return the block inside nested loops, None for any other statement."""
    while isinstance(statement, tirx.For):
        statement = statement.body
    return getattr(statement, "block", None)


def _is_one_of(value: Any, others: list[Any]) -> bool:
    return any(value.same_as(other) for other in others)
