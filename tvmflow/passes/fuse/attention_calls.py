"""Tell what single calls around an attention do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.views import keeps_order
from tvmflow.ir.tvm_compat import Call, Expr, constant_value, operator_of, shape_of, type_of

_SAME_ORDER = {"relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.broadcast_to"}
_MOST_FACTOR = 1e30
# The kernel accumulates and keeps intermediate values in float32, to whatever type the network rounds them; in float16
# if the network sums in it and the processor has such tiles.
FLOATS = ("float32", "float16", "bfloat16")


def by_rows(places: Any, shape: tuple[int, int, int], flipped: bool) -> Any:
    """Return the elements of matrices by row; flipped: they are given by column."""
    batch, rows, columns = shape
    return places.reshape(batch, columns, rows).transpose(0, 2, 1) if flipped else places.reshape(shape)


def swaps_rows_and_columns(call: Call) -> bool:
    axes = [int(axis) for axis in call.attrs.axes or ()] if operator_of(call) == "relax.permute_dims" else []
    return len(axes) > 2 and axes == [*range(len(axes) - 2), len(axes) - 1, len(axes) - 2]


def compose_views(places: Any, inner: Any) -> Any:
    """Return the element indices of a view of a view, relative to the innermost source."""
    return np.where(places < 0, places, inner.ravel()[places])


def is_zero(value: Any) -> bool:
    """Return whether a value is a constant of zeros only."""
    tensor = constant_value(value)
    return tensor is not None and not tensor.numpy().any()


def is_over_last_axis(call: Call) -> bool:
    (*others, axis) = (int(one) for one in call.attrs.axis)
    return not others and axis in (-1, len(shape_of(call.args[0])) - 1)


def number_of(value: Any) -> float | None:
    tensor = constant_value(value)
    return float(tensor.numpy().reshape(())) if tensor is not None and tensor.numpy().size == 1 else None


def factor_of(call: Call) -> float | None:
    """Return the number by which a call multiplies its first argument, None for any other call."""
    name = operator_of(call)
    number = number_of(call.args[1]) if name in ("relax.multiply", "relax.divide") else None
    if not number or shape_of(call) != shape_of(call.args[0]):
        return None
    factor = number if name == "relax.multiply" else 1.0 / number
    return factor if abs(factor) < _MOST_FACTOR else None  # not infinity, and no NaN


def keeps_element_order(call: Call) -> bool:
    """Whether a call only changes the shape: no element is repeated, and only axes of extent 1 move."""
    name = operator_of(call)
    if name == "relax.permute_dims":
        return call.attrs.axes is not None and keeps_order(shape_of(call.args[0]), call.attrs.axes)
    return name in _SAME_ORDER and math.prod(shape_of(call.args[0])) == math.prod(shape_of(call))


def casts_float(call: Call) -> bool:
    """Whether a call casts between floating-point types."""
    return operator_of(call) == "relax.astype" and {str(type_of(one).dtype) for one in (call, call.args[0])} <= set(
        FLOATS
    )


def multiplied_type(product: Any) -> str:
    """Return the type of both operands of a matmul, float32 where a matmul of float16 sums in another type."""
    kinds = {str(type_of(one).dtype) for one in product.args}
    if len(kinds) > 1 or (kinds == {"float16"} and str(type_of(product).dtype) != "float16"):
        return "float32"
    return kinds.pop()


def variables_of(expression: Expr) -> Iterator[Any]:
    """Yield the variables that a call, a tuple or a tuple element reads."""
    if isinstance(expression, relax.Var):
        yield expression
    for part in (
        *getattr(expression, "args", ()),
        *getattr(expression, "fields", ()),
        getattr(expression, "tuple_value", None),
    ):
        if part is not None:
            yield from variables_of(part)
