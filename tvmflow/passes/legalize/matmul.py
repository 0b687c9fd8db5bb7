"""Lower products of 16-bit floats with sums in float32, rounded once at the end."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.tvm_compat import Call, type_of
from tvmflow.passes.legalize.bfloat16 import legalize_astype
from tvmflow.targets.cpu_features import is_cpu

_NARROW = ("float16", "bfloat16")


def legalize_matmul(builder: Any, call: Call) -> Any:
    """Return the kernels of a matmul that no layout took.

    TVM sums in the type of the outputs: 600 products in float16 lose 0.6 % of the largest, and vectors of bfloat16 sums
    do not compile.
    """
    left, right = call.args
    dtype = str(call.ty.dtype)
    if dtype in _NARROW and str(type_of(left).dtype) == dtype and is_cpu(tvm.target.Target.current()):
        wide = builder.emit(_as_tvm(builder, relax.op.matmul(left, right, out_dtype="float32")))
        return legalize_astype(builder, builder.normalize(relax.op.astype(wide, dtype)))
    return _as_tvm(builder, call)


def _as_tvm(builder: Any, call: Any) -> Any:
    call = builder.normalize(call)
    return call.op.get_attr("FLegalize")(builder, call)
