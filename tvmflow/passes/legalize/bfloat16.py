"""Round float32 to bfloat16 by the processor's instruction, if it has one.

TVM's passes lower the cast to six integer operations. Here it is an operator of ours, which is vectorized like any
other and becomes a call of an inlined LLVM function: `vcvtneps2bf16` on x86, `bfcvtn` on arm64. Importing this module
registers the operator; kernels that are read back need it, too.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx, topi

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tir.custom_operators import register_operator
from tvmflow.ir.tir.stmt_rewriter import has, with_llvm
from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, dtype_of, type_of
from tvmflow.targets.cpu_features import computes_in_bfloat16

_OPERATOR = "tvmflow.round_bfloat16"
_FUNCTION = """
define weak_odr <{lanes} x i16> @tvmflow_round_{lanes}(<{lanes} x float> %x) alwaysinline nounwind {{
  %rounded = fptrunc <{lanes} x float> %x to <{lanes} x bfloat>
  %bits = bitcast <{lanes} x bfloat> %rounded to <{lanes} x i16>
  ret <{lanes} x i16> %bits
}}
"""
_LANES = (2, 4, 8, 16, 32, 64)
_SCALAR = """
define weak_odr i16 @tvmflow_round(float %x) alwaysinline nounwind {
  %rounded = fptrunc float %x to bfloat
  %bits = bitcast bfloat %rounded to i16
  ret i16 %bits
}
"""


def _lower(call: Call) -> Any:
    """Lower the operator: to the function for the lanes of its loop, or to integer operations."""
    dtype, value = dtype_of(call), call.args[0]
    lanes = dtype.removeprefix("uint16").lstrip("x")
    if not lanes:
        return tirx.call_pure_extern(dtype, "tvmflow_round", value)
    if int(lanes) in _LANES:
        return tirx.call_pure_extern(dtype, f"tvmflow_round_{lanes}", value)
    wide = f"uint32x{lanes}"
    bits = tirx.reinterpret(wide, value)
    sixteen, one, half = (tirx.const(number, wide) for number in (16, 1, 0x7FFF))
    return ((bits + ((bits >> sixteen) & one) + half) >> sixteen).astype(dtype)


register_operator(_OPERATOR, "float32 to the bits of bfloat16, to the nearest, ties to even", 1, _lower)


def cast_float32(value: Any, dtype: str) -> Any:
    """Return a float32 expression in another type; to bfloat16 by the instruction, if the current target has it."""
    if dtype == "bfloat16" and computes_in_bfloat16(tvm.target.Target.current()):
        return tirx.reinterpret(dtype, tirx.call_intrin("uint16", _OPERATOR, value))
    return value.astype(dtype)


def format_bfloat16_cast(value: str) -> str:
    """Return the TVMScript expression that rounds a float32 expression to bfloat16 by the instruction."""
    return f'T.reinterpret(T.call_intrin("uint16", "{_OPERATOR}", {value}), dtype="bfloat16")'


def legalize_astype(builder: Any, call: Call) -> Any:
    """Lower relax.astype to a kernel that FuseOps fuses into the producer of the value."""
    data, dtype = call.args[0], str(call.attrs.dtype)
    if str(type_of(data).dtype) != "float32" or constant_value(data) is not None:
        return builder.call_te(topi.cast, data, dtype, primfunc_name_hint="cast")
    return builder.call_te(
        lambda x: te.compute(x.shape, lambda *indices: cast_float32(x[indices], dtype), name="compute"),
        data,
        primfunc_name_hint="cast",
    )


def link_bfloat16_rounding(mod: IRModule, target: Any) -> Any:
    """Return a module in which kernels that round include the LLVM functions for it."""
    if not computes_in_bfloat16(target):
        return mod
    text = _SCALAR + "".join(_FUNCTION.format(lanes=lanes) for lanes in _LANES)
    return transform_kernels(mod, _rounds, lambda kernel: with_llvm(kernel, text))


def _rounds(function: Any) -> bool:
    return has(function, tvm.ir.Call, lambda call: getattr(call.op, "name", "") == _OPERATOR)
