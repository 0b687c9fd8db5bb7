"""Let relu, clip, maximum and minimum with constants return NaN for NaN, as PyTorch and ONNX do.

LLVM is given `a > b ? a : b`, which is b where either is NaN, in x86's maxps as well: the constant must be the first.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tvm_compat import IRModule, dtype_of


@tvm.transform.module_pass(opt_level=0, name="KeepNan")
class KeepNan:
    """IRModule -> IRModule, of kernels lowered to runtime calls."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        def change(kernel: Any) -> Any:
            return kernel.with_body(structural_map(kernel.body, (((tirx.Max, tirx.Min), _constant_first),)))

        changed: IRModule = transform_kernels(mod, lambda _: True, change)
        return changed


def _constant_first(node: Any) -> Any:
    if "float" not in dtype_of(node) or not _is_constant(node.b) or _is_constant(node.a):
        return node
    return type(node)(node.b, node.a)


def _is_constant(value: Any) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, tirx.FloatImm)
