"""Lower reductions to a single value in two steps: along columns, in vectors, then along the row that is left."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvmflow.ir.tvm_compat import Call, Expr, shape_of

_LEAST = 4096  # elements, below which two kernels cost more than they save
_COLUMNS = (1024, 512, 256, 128, 64, 192, 160, 96, 32)  # of the first step, the most preferred first


def reduction_legalizers() -> dict[str, Any]:
    """Return operator -> function (builder, call) -> Relax expression, for LegalizeOps."""
    return {f"relax.{name}": _legalize for name in ("sum", "mean", "max", "min", "prod")}


def _legalize(builder: Any, call: Call) -> Any:
    (value,), count = call.args, math.prod(shape_of(call.args[0]))
    columns = next((one for one in _COLUMNS if count % one == 0), None)
    if math.prod(shape_of(call)) != 1 or count < _LEAST or columns is None:
        return _as_tvm(builder, call)
    name = str(call.op.name).removeprefix("relax.")
    step = getattr(relax.op, "sum" if name == "mean" else name)
    table = builder.emit(_as_tvm(builder, relax.op.reshape(value, (count // columns, columns))))
    row = builder.emit(_as_tvm(builder, step(table, axis=[0])))
    made = _as_tvm(builder, getattr(relax.op, name)(row, axis=[0], keepdims=True))
    if name == "mean":  # of the columns' sums
        rows = relax.const(columns / count, str(call.ty.dtype))
        made = _as_tvm(builder, relax.op.multiply(builder.emit(made), rows))
    return _as_tvm(builder, relax.op.reshape(builder.emit(made), shape_of(call)))


def _as_tvm(builder: Any, call: Expr) -> Any:
    """Return an operator call as TVM lowers it."""
    call = builder.normalize(call)
    return call.op.get_attr("FLegalize")(builder, call)
