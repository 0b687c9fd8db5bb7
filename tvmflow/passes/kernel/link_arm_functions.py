"""Link the functions of arm64's vectors to the kernels that call them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm_ffi import structural_walk

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tir.stmt_rewriter import with_llvm
from tvmflow.ir.tvm_compat import IRModule, dtype_of
from tvmflow.schedules.intrinsics.arm_functions import GELU, POWER, SIGMOID, functions_text, has_function

_OPERATORS = (SIGMOID, GELU, POWER)


def link_arm_functions(mod: IRModule, target: Any) -> Any:
    """Return a module in which scheduled kernels include the LLVM functions of the operators that they call."""
    if not has_function("float32", target):
        return mod
    return transform_kernels(mod, lambda _: True, lambda kernel: _linked(kernel, target))


def _linked(kernel: Any, target: Any) -> Any:
    text = "".join(functions_text(*one) for one in _called(kernel, target))
    return with_llvm(kernel, text) if text else kernel


def _called(function: Any, target: Any) -> list[tuple[str, str]]:
    """Return operator and dtype of each function that a kernel calls, in turn."""
    found: dict[tuple[str, str], None] = {}

    def note(call: Any) -> None:
        name = str(getattr(call.op, "name", ""))
        if name in _OPERATORS and has_function(dtype_of(call).partition("x")[0], target):
            found[name, dtype_of(call).partition("x")[0]] = None

    structural_walk(function.body, (tvm.ir.Call, note))
    return list(found)
