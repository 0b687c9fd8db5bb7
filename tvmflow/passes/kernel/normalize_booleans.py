"""Compare loaded booleans with zero, so that LLVM gets values of one bit.

TVM 0.27 loads a boolean as its byte, and `not` flips all eight bits: 254 instead of false. It also emits the comparison
of two booleans as one of floats, which LLVM rejects.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import structural_map

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tvm_compat import IRModule, dtype_of, load_class

_EQUALITIES = (tirx.EQ, tirx.NE)


def normalize_booleans(mod: IRModule) -> Any:
    """Return a module of scheduled kernels in which each loaded boolean is compared with zero."""
    changes = ((load_class(), _compare_with_zero), (_EQUALITIES, _compare_as_bytes))
    return transform_kernels(mod, lambda _: True, lambda kernel: kernel.with_body(structural_map(kernel.body, changes)))


def _compare_as_bytes(equality: Any) -> Any:
    """Compare booleans as int8; TVM compares them as floats."""
    if dtype_of(equality.a) != "bool":
        return equality
    return type(equality)(*(tirx.Cast("int8", side) for side in (equality.a, equality.b)))


def _compare_with_zero(load: Any) -> Any:
    return tirx.NE(tirx.Cast("int8", load), tirx.IntImm("int8", 0)) if dtype_of(load) == "bool" else load
