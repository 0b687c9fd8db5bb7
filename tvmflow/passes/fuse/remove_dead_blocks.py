"""RemoveDeadBlocks: leave out the blocks of a kernel whose values nothing reads.

TVM folds arithmetic while it lowers an operator: x * 0 is 0, whatever made x. What is fused then does not read what a
convolution sums, and no schedule of such a kernel makes sense: the convolution, tied to nothing, would be unrolled for
the whole image, which LLVM takes minutes for.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.blocks import kernels_changed, region_buffer
from tvmflow.ir.tir.stmt_rewriter import with_root_body


@tvm.transform.module_pass(opt_level=0, name="RemoveDeadBlocks")
class RemoveDeadBlocks:
    """IRModule of fused kernels, not scheduled yet -> IRModule."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return kernels_changed(mod, lambda _: True, _without_unread)


def _without_unread(kernel: Any) -> Any:
    gone = _unread(kernel)
    if not gone:
        return kernel
    kept = [statement for statement in kernel.body.block.body.seq if statement not in gone]
    written = [region_buffer(region) for block in gone.values() for region in block.writes]
    body = kept[0] if len(kept) == 1 else tirx.SeqStmt(kept)
    return with_root_body(kernel, lambda _: body, lambda buffer: not _is_one_of(buffer, written))


def _unread(kernel: Any) -> dict[Any, Any]:
    """Return the statements, and the blocks that they run, of a kernel that write values of its own alone which no
    other statement reads, or one of these alone.
    """
    root = getattr(kernel.body, "block", None)
    if root is None or not root.alloc_buffers or not isinstance(root.body, tirx.SeqStmt):
        return {}
    blocks = {statement: block for statement in root.body.seq if (block := _block_of(statement)) is not None}
    if len(blocks) < len(root.body.seq) or not all(block.writes for block in blocks.values()):
        return {}  # a block that calls a function, as of argsort, does not say what it reads and writes
    gone: dict[Any, Any] = {}
    for statement in reversed(list(blocks)):
        written = [region_buffer(region) for region in blocks[statement].writes]
        others = [block for one, block in blocks.items() if one not in gone and not one.same_as(statement)]
        read = [region_buffer(region) for block in others for region in block.reads]
        if all(_is_one_of(buffer, list(root.alloc_buffers)) and not _is_one_of(buffer, read) for buffer in written):
            gone[statement] = blocks[statement]
    return gone


def _block_of(statement: Any) -> Any | None:
    """Return the block that nested loops run, None where they run anything else."""
    while isinstance(statement, tirx.For):
        statement = statement.body
    return getattr(statement, "block", None)


def _is_one_of(value: Any, others: list[Any]) -> bool:
    return any(value.same_as(other) for other in others)
