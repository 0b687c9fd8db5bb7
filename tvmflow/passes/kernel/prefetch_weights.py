"""Prefetch the weights of the next block of channels while those of the current block are multiplied.

A thread computes many tiles of outputs with the weights of one block of channels. The first tile waits for memory;
during the others memory is idle. So each tile prefetches a share of the next block's weights, a few cache lines in each
step of its loop.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmflow.ir.tir.blocks import buffer_bytes, region_buffer, transform_kernels
from tvmflow.ir.tir.stmt_rewriter import is_marked, realize_in, with_body, with_llvm, with_root_body
from tvmflow.ir.tvm_compat import IRModule, PrimFunc
from tvmflow.schedules.template import PREFETCHED

_LINE_BYTES = 64
_FUNCTION = "tvmflow_prefetch"
_CODE = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define weak_odr i32 @{_FUNCTION}(ptr %weights, i32 %offset) alwaysinline nounwind {{
  %place = getelementptr i8, ptr %weights, i32 %offset
  call void @llvm.prefetch.p0(ptr %place, i32 0, i32 2, i32 1)
  ret i32 0
}}
"""


def prefetch_weights(mod: IRModule) -> Any:
    """Return a module of scheduled kernels with prefetches in the loops that have the annotation PREFETCHED."""
    return transform_kernels(mod, lambda kernel: is_marked(kernel, PREFETCHED), _add_prefetches)


def _add_prefetches(function: PrimFunc) -> Any:
    return with_llvm(with_root_body(function, lambda body: _insert_prefetches(body, ())), _CODE)


def _insert_prefetches(statement: Any, outer: tuple[Any, ...]) -> Any:
    """Return a statement with prefetches in its annotated loops. outer: the enclosing loops, outermost first."""
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_insert_prefetches(part, outer) for part in statement.seq])
    if not isinstance(statement, tirx.For):
        return statement
    if PREFETCHED not in statement.annotations:
        return with_body(statement, _insert_prefetches(statement.body, (*outer, statement)))
    *_, shares, rows, columns = outer
    blocks, pieces = (int(number) for number in statement.annotations[PREFETCHED])
    weights = region_buffer(realize_in(statement.body).block.reads[-1])
    panels, *others = (int(extent) for extent in weights.shape)
    panel = tirx.floordiv(shares.loop_var, pieces) * blocks + blocks
    first = [tirx.floormod(panel, panels), *(0 for _ in others)]
    size = blocks * buffer_bytes(weights) // panels
    tiles, steps = int(rows.extent) * int(columns.extent), int(statement.extent)
    lines = -(-size // (_LINE_BYTES * tiles * steps))
    tile = rows.loop_var * columns.extent + columns.loop_var
    step = (tile * steps + statement.loop_var) * lines
    address = tirx.address_of(tirx.BufferLoad(weights, first))
    calls = [
        tirx.Evaluate(tirx.call_extern("int32", _FUNCTION, address, tirx.Cast("int32", (step + line) * _LINE_BYTES)))
        for line in range(lines)
    ]
    return with_body(statement, tirx.SeqStmt([*calls, statement.body]))
