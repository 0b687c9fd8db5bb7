"""Booleans that a kernel reads are compared with zero, so that LLVM has one bit of them.

TVM 0.27 loads a boolean as the byte that it is stored as, and `not` of it flips all eight bits: 254 where it is to be
false. Whether two booleans are equal it asks as of floats, which LLVM refuses.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import structural_map

from tvmflow.ir.tir.blocks import kernels_changed
from tvmflow.ir.tvm_compat import dtype_of, load_class

_EQUALITIES = (tirx.EQ, tirx.NE)


def normalize_booleans(mod: Any) -> Any:
    """Return a module of scheduled kernels in which each boolean is compared with zero as it is read."""
    changes = ((load_class(), _compared), (_EQUALITIES, _of_bytes))
    return kernels_changed(mod, lambda _: True, lambda kernel: kernel.with_body(structural_map(kernel.body, changes)))


def _of_bytes(equality: Any) -> Any:
    """Compare booleans as numbers; TVM compares them as floats."""
    if dtype_of(equality.a) != "bool":
        return equality
    return type(equality)(*(tirx.Cast("int8", side) for side in (equality.a, equality.b)))


def _compared(load: Any) -> Any:
    return tirx.NE(tirx.Cast("int8", load), tirx.IntImm("int8", 0)) if dtype_of(load) == "bool" else load
