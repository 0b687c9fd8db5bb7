"""Divide by 1 + exp(-x) in place of x * sigmoid(x) on AVX-512: one step less, and one rounding."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal, structural_map

from tvmflow.ir.tir.avx512 import WIDE
from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tir.custom_operators import register_operator
from tvmflow.ir.tvm_compat import IRModule, dtype_of, operator_of
from tvmflow.schedules.intrinsics.math_functions import one_and_exp
from tvmflow.targets.cpu_features import reduces_floats

_SILU, _SIGMOID = "tvmflow.silu", "tirx.sigmoid"


def _lower(call: Any) -> Any:
    dtype = dtype_of(call)
    x = tirx.Var("x", dtype)
    found = x / one_and_exp(x) if dtype == WIDE else x * tirx.sigmoid(x)
    return tirx.Let(x, call.args[0], found)


register_operator(_SILU, "x * sigmoid(x)", 1, _lower)


def join_gates(mod: IRModule, target: Any) -> Any:
    """Return a module of scheduled kernels with one operator for x * sigmoid(x) of float32, for a tvm.target.Target."""
    if not reduces_floats(target):
        return mod
    changes = ((tirx.Mul, _joined),)
    return transform_kernels(mod, lambda _: True, lambda kernel: kernel.with_body(structural_map(kernel.body, changes)))


def _joined(product: Any) -> Any:
    for x, gate in ((product.a, product.b), (product.b, product.a)):
        is_gate = isinstance(gate, tvm.ir.Call) and operator_of(gate) == _SIGMOID and dtype_of(gate) == "float32"
        if is_gate and structural_equal(x, gate.args[0]):
            return tirx.call_intrin("float32", _SILU, x)
    return product
