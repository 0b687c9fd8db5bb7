"""Lower GELU to arm64's function of vectors; other targets compute erf."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, tirx

from tvmflow.ir.tvm_compat import Call, type_of
from tvmflow.schedules.intrinsics.arm_functions import GELU, has_function


def legalize_gelu(builder: Any, call: Call) -> Any:
    """Lower relax.nn.gelu; needs a current target."""
    dtype = str(type_of(call.args[0]).dtype)
    if not has_function(dtype, tvm.target.Target.current()):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(
        lambda x: te.compute(x.shape, lambda *at: tirx.call_intrin(dtype, GELU, x[at]), name="compute"),
        call.args[0],
        primfunc_name_hint="gelu",
    )
