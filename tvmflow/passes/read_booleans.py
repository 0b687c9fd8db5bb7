"""Booleans that a kernel reads are compared with zero, so that LLVM has one bit of them.

TVM 0.27 loads a boolean as the byte that it is stored as, and `not` of it flips all eight bits: 254 where it is to be false. Comparisons of such bytes with
booleans that were computed do not compile.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import structural_map

from tvmflow.ir.tvm_names import dtype_of, load_class
from tvmflow.passes.statements import has, kernels_changed


def with_booleans_read(mod: Any) -> Any:
    """Return a module of scheduled kernels in which each boolean is compared with zero as it is read."""
    return kernels_changed(
        mod,
        lambda kernel: has(kernel, load_class(), _is_boolean),
        lambda kernel: kernel.with_body(structural_map(kernel.body, ((load_class(), _compared),))),
    )


def _is_boolean(load: Any) -> bool:
    return dtype_of(load) == "bool"


def _compared(load: Any) -> Any:
    return tirx.NE(tirx.Cast("int8", load), tirx.IntImm("int8", 0)) if _is_boolean(load) else load
