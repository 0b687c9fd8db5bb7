"""Lower GELU to arm64's function of vectors, and of float32 for AVX-512 to an operator of its own, which takes two
thirds of the steps that erf takes; other targets compute erf.

With H(t) = Phi(t) - 1/2 for t >= 0, GELU is x / 2 + |x| * H(|x|), and H the polynomials of 16 pieces.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import te, tirx

from tvmflow.ir.tir.avx512 import WIDE, piecewise, size_up_to
from tvmflow.ir.tir.custom_operators import register_operator
from tvmflow.ir.tir.erf import NORMAL_DIGITS, NORMAL_END, NORMAL_PIECES
from tvmflow.ir.tvm_compat import Call, dtype_of, type_of
from tvmflow.schedules.intrinsics import arm_functions
from tvmflow.targets.cpu_features import reduces_floats

_GELU = "tvmflow.gelu"


def _lower(call: Any) -> Any:
    """Return GELU with an error of at most 1e-7 * |x|; NaN stays NaN, large negative numbers give 0."""
    dtype = dtype_of(call)
    x, size, half = tirx.Var("x", dtype), tirx.Var("size", dtype), tirx.const(0.5, dtype)
    if dtype == WIDE:
        share = tirx.Let(size, size_up_to(x, NORMAL_END), piecewise(size, NORMAL_PIECES, NORMAL_DIGITS))
        found = tirx.call_llvm_pure_intrin(dtype, "llvm.fabs", x) * share + x * half
    else:
        found = x * (half + half * tirx.erf(x * tirx.const(math.sqrt(0.5), dtype)))
    return tirx.Let(x, call.args[0], found)


register_operator(_GELU, "x times the share of a normal distribution below x", 1, _lower)


def legalize_gelu(builder: Any, call: Call) -> Any:
    """Lower relax.nn.gelu; needs a current target."""
    dtype, target = str(type_of(call.args[0]).dtype), tvm.target.Target.current()
    if arm_functions.has_function(dtype, target):
        name = arm_functions.GELU
    elif dtype == "float32" and reduces_floats(target):
        name = _GELU
    else:
        return call.op.get_attr("FLegalize")(builder, call)

    def gelu(x: Any) -> Any:
        return te.compute(x.shape, lambda *at: tirx.call_intrin(dtype, name, x[at]), name="compute")

    return builder.call_te(gelu, call.args[0], primfunc_name_hint="gelu")
