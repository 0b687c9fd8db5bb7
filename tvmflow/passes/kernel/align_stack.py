"""Align the stack of kernels to cache lines on x86 with AVX, so that registers that are put there cross none.

LLVM aligns a function's stack for such registers only if it knows of an aligned variable before it assigns registers.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tir.stmt_rewriter import with_body, with_llvm, with_root_body
from tvmflow.ir.tvm_compat import IRModule, PrimFunc
from tvmflow.targets.cpu_features import has_wide_vectors

_FUNCTION = "tvmflow_align_stack"
_CODE = f"""
define weak_odr i32 @{_FUNCTION}() alwaysinline nounwind {{
  %line = alloca [16 x i32], align 64
  call void asm sideeffect "", "r"(ptr %line)
  ret i32 0
}}
"""


def align_stack(mod: IRModule, target: Any) -> Any:
    """Return a module of scheduled kernels whose outermost loops have an aligned variable, for a tvm.target.Target."""
    if not has_wide_vectors(target):
        return mod
    return transform_kernels(mod, _has_root, _aligned)


def _has_root(function: PrimFunc) -> bool:
    """Whether a kernel was scheduled: others are loops without blocks."""
    return getattr(getattr(function.body, "block", None), "name_hint", "") == "root"


def _aligned(function: PrimFunc) -> Any:
    return with_llvm(with_root_body(function, _mark), _CODE)


def _mark(statement: Any) -> Any:
    """Return a statement with the variable in each of its outermost loops."""
    if isinstance(statement, tirx.SeqStmt):
        return tirx.SeqStmt([_mark(part) for part in statement.seq])
    if not isinstance(statement, tirx.For):
        return statement
    call = tirx.Evaluate(tirx.call_extern("int32", _FUNCTION))
    return with_body(statement, tirx.SeqStmt([call, statement.body]))
