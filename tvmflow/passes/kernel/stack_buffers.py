"""Allocate small local buffers of kernels on the stack, where LLVM promotes them to registers.

TVM requests memory of scope `local` from its runtime: a call for each tile of sums, which are stored before and after
each reduction. Buffers that AMX tiles are stored to are aligned to cache lines, so that each of their rows is: TVM
aligns scalar buffers to 16 bytes.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.stmt_rewriter import calls, rewrite_kernels
from tvmflow.ir.tvm_compat import IRModule
from tvmflow.schedules.intrinsics.amx import STORED

_SCOPE = "local"  # TVM's name of the memory scope
_MOST_BYTES = 4096  # of one buffer
_LINE_BITS = 512  # of the cache


def _move_to_stack(statement: Any, is_aligned: bool) -> Any:
    """Return an allocation of a small local buffer as a stack allocation; any other statement as it is."""
    if not isinstance(statement, tirx.AllocBuffer):
        return statement
    buffer = statement.buffer
    if str(buffer.scope()) != _SCOPE or not all(hasattr(extent, "value") for extent in buffer.shape):
        return statement
    dtype, size = tvm.DataType(str(buffer.dtype)), math.prod(int(extent.value) for extent in buffer.shape)
    if size * dtype.bits * dtype.lanes > 8 * _MOST_BYTES:
        return statement
    on_stack = {**dict(statement.annotations), "disable_lower_builtin": tirx.const(1, "bool")}
    lanes = _LINE_BITS // dtype.bits
    if not is_aligned or dtype.lanes > 1 or size % lanes:
        return tirx.AllocBuffer(buffer, on_stack)
    lines = tirx.decl_buffer((size // lanes,), f"{dtype}x{lanes}", f"{buffer.name}_lines", scope=_SCOPE)
    return tirx.SeqStmt([tirx.AllocBuffer(lines, on_stack), tirx.DeclBuffer(buffer, data=lines.data)])


@tvm.transform.module_pass(opt_level=0, name="StackBuffers")
class StackBuffers:
    """IRModule -> IRModule, of kernels lowered to runtime calls."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        return rewrite_kernels(mod, lambda function: partial(_move_to_stack, is_aligned=calls(function, STORED)))
