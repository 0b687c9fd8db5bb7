"""KeepOnStack: small local memory of a kernel lies on the stack, where LLVM makes registers of it.

TVM asks its runtime for the memory of scope `local`: a call for each tile of sums, which are stored before and after they are summed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import compilation_pipeline

_SCOPE = "local"  # of memory, TVM's name
_MOST_BYTES = 4096  # of one buffer
PIPELINE = "tvmflow"  # name of TVM's pipeline for kernels, with this pass in it


def _kept(allocation: Any) -> Any:
    """Return an allocation that TVM leaves to LLVM, where it is small and local."""
    buffer = allocation.buffer
    if str(buffer.scope()) != _SCOPE or not all(hasattr(extent, "value") for extent in buffer.shape):
        return allocation
    dtype = tvm.DataType(str(buffer.dtype))
    if math.prod(int(extent.value) for extent in buffer.shape) * dtype.bits * dtype.lanes > 8 * _MOST_BYTES:
        return allocation
    return tirx.AllocBuffer(buffer, {**dict(allocation.annotations), "disable_lower_builtin": tirx.const(1, "bool")})


def _walked(statement: Any) -> Any:
    """Return a statement with its allocations kept, the same object where it has none."""
    if isinstance(statement, tirx.AllocBuffer):
        return _kept(statement)
    if isinstance(statement, tirx.SeqStmt):
        parts = [_walked(part) for part in statement.seq]
        same = all(new.same_as(old) for new, old in zip(parts, statement.seq, strict=True))
        return statement if same else tirx.SeqStmt(parts)
    if isinstance(statement, tirx.IfThenElse):
        then, other = _walked(statement.then_case), statement.else_case and _walked(statement.else_case)
        same = then.same_as(statement.then_case) and (other is None or other.same_as(statement.else_case))
        return statement if same else tirx.IfThenElse(statement.condition, then, other)
    if not isinstance(statement, tirx.For | tirx.AttrStmt):
        return statement
    body = _walked(statement.body)
    if body.same_as(statement.body):
        return statement
    if isinstance(statement, tirx.AttrStmt):
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    loop = statement
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step
    )


@tvm.transform.module_pass(opt_level=0, name="KeepOnStack")
class KeepOnStack:
    """IRModule -> IRModule, of kernels that are lowered as far as calls of the runtime."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        functions = {
            variable: function.with_body(_walked(function.body)) if isinstance(function, tirx.PrimFunc) else function
            for variable, function in mod.functions.items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def pipeline() -> tuple[Any, Any, Any]:
    """Return TVM's default passes for kernels, those for the host and for devices behind them, with this pass before the host's."""
    lower, of_host, of_device = compilation_pipeline.get_tir_pipeline("default")
    return lower, lambda: tvm.ir.transform.Sequential([KeepOnStack(), of_host()]), of_device


@functools.cache
def register() -> None:
    """Give TVM, in this process, the pipeline of that name."""
    compilation_pipeline.PIPELINE_MAP[PIPELINE] = pipeline
