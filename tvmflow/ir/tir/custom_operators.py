"""Register TensorIR operators of our own, which can be vectorized and are lowered by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import _ffi_api

from tvmflow.ir.tvm_compat import dtype_of, register_intrin_lowering

_registered: dict[str, str] = {}  # name of an operator -> module that lowers it


def register_operator(name: str, meaning: str, inputs: int, lower: Callable[[Any], Any]) -> None:
    """Register a pure operator with TVM once in this process. lower: call, scalar or vector -> expression."""
    owner = _registered.setdefault(name, lower.__module__)
    if owner != lower.__module__:
        raise ValueError(f"{name} is an operator of {owner}, and {lower.__module__} defines another")
    if name in _ffi_api.ListOpNames():
        return
    _ffi_api.RegisterOp(name, meaning)
    _ffi_api.OpSetNumInputs(tvm.ir.Op.get(name), inputs)
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name.replace(".", "_"))
    tvm.ir.register_op_attr(name, "TCallEffectKind", int(tirx.expr.CallEffectKind.Pure.value))
    register_intrin_lowering(name, "default", lower)


def halves_of(value: Any) -> tuple[Any, Any]:
    """Return the lower and the upper half of a vector."""
    dtype, _, lanes = dtype_of(value).partition("x")
    half = f"{dtype}x{int(lanes) // 2}"
    return tirx.vectorlow(half, value), tirx.vectorhigh(half, value)
