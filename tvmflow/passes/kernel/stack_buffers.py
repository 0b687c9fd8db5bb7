"""StackBuffers: small local memory of a kernel lies on the stack, where LLVM makes registers of it.

TVM asks its runtime for the memory of scope `local`: a call for each tile of sums, which are stored before and after
they are summed. What matrix tiles (AMX) are stored to begins at a line of the cache, as each of their rows then does:
TVM aligns to 16 bytes what is no vector by itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir.stmt_rewriter import calls, rewritten_kernels
from tvmflow.schedules.intrinsics.amx import STORED

_SCOPE = "local"  # of memory, TVM's name
_MOST_BYTES = 4096  # of one buffer
_LINE_BITS = 512  # of the cache


def _kept(statement: Any, is_aligned: bool) -> Any:
    """Return an allocation that TVM leaves to LLVM, where it is small and local; any other statement as it is."""
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
    """IRModule -> IRModule, of kernels that are lowered as far as calls of the runtime."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return rewritten_kernels(mod, lambda function: partial(_kept, is_aligned=calls(function, STORED)))
