"""Know which operators of Relax read or write at indices that are data, and whether an index is bounded.

TVM's kernels for them check nothing: an index outside of its tensor reads or writes memory beside it. So the import
bounds each index by two constants, and what was imported is checked for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.ir.relax.recurrent import RECURRENT, recurrence_of
from tvmflow.ir.tvm_compat import Call, Expr, constant_value, operator_of, shape_of, type_of

Array = np.ndarray[Any, Any]
_MOST_PIXELS = float(1 << 14)  # of a region's coordinates in the image that it is cut from, which is smaller
_TAKES = ("clip", "wrap")  # the modes that check
_INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class Bounds:
    """The least and the largest value of an operand, broadcastable to it."""

    operand: int
    least: Any  # numbers or arrays of numpy
    most: Any


def index_bounds(call: Expr) -> Bounds | None:
    """Return the bounds that the indices of a call need, None for operators that check, or take none."""
    name = operator_of(call)
    if name in ("relax.gather_elements", "relax.scatter_elements"):
        shape = shape_of(call.args[0])
        return _of_extents(shape[int(call.attrs.axis) % len(shape)])
    if name in ("relax.gather_nd", "relax.scatter_nd"):
        first = int(call.attrs.batch_dims) if name == "relax.gather_nd" else 0
        return _of_extents(shape_of(call.args[0])[first : first + shape_of(call.args[1])[-1]])
    if name == RECURRENT:
        recurrence = recurrence_of(call)
        if "lengths" not in recurrence.operands:
            return None
        times = recurrence.sizes(shape_of(call.args[recurrence.operands.index("gates")]))[0]
        return Bounds(recurrence.operands.index("lengths"), np.int64(0), np.int64(times))
    if name == "relax.vision.roi_align":
        most = _MOST_PIXELS / max(abs(float(call.attrs.spatial_scale)), 2.0**-10)
        images = shape_of(call.args[0])[0]
        coordinates = np.full(4, most, np.float32)
        return Bounds(1, np.append(np.float32(0), -coordinates), np.append(np.float32(images - 1), coordinates))
    return None


def _of_extents(extents: Any) -> Bounds:
    most = np.asarray(extents, np.int64) - 1
    return Bounds(1, np.zeros_like(most), most)


def unbounded_index(call: Expr, value_of: Callable[[Any], Any]) -> str:
    """Return why the indices of a call may lie outside of its tensor, '' if they cannot. value_of: the value that is
    bound to a variable, or the expression itself.
    """
    name = operator_of(call)
    if name == "relax.take":
        return "" if str(call.attrs.mode) in _TAKES else "a lookup that checks no index"
    if name == "relax.strided_slice":
        return "a slice that checks no bound" if bool(call.attrs.assume_inbound) else ""
    if name == "relax.nn.pad":
        widths, most = [int(width) for width in call.attrs.pad_width], [size - 1 for size in shape_of(call.args[0])]
        reflects = str(call.attrs.pad_mode) == "reflect"
        is_wide = reflects and any(max(widths[2 * at : 2 * at + 2]) > size for at, size in enumerate(most))
        return f"a reflection by {widths} of {[size + 1 for size in most]}" if is_wide else ""
    bounds = index_bounds(call)
    if bounds is None or is_bounded(call.args[bounds.operand], bounds, value_of):
        return ""
    return f"{name} with indices that may lie outside of its tensor"


def is_bounded(index: Expr, bounds: Bounds, value_of: Callable[[Any], Any]) -> bool:
    """Return whether an operand is constant and inside of bounds, or min(max(x, constant), constant) or the other way
    round. A number that is not finite must be replaced before.
    """
    if np.any(bounds.most < bounds.least):
        return False
    index = value_of(index)
    tensor = constant_value(index)
    if tensor is not None:
        return _lies_in(tensor.numpy(), bounds)
    inner, limits = index, {}
    for _ in range(2):
        name, parts = operator_of(inner), list(getattr(inner, "args", ()))
        limit = constant_value(value_of(parts[1])) if len(parts) == 2 else None
        if name not in ("relax.minimum", "relax.maximum") or name in limits or limit is None:
            return False
        limits[name] = limit.numpy()
        inner = value_of(parts[0])
    if not all(_lies_in(limit, bounds) for limit in limits.values()):
        return False
    return str(type_of(index).dtype) in _INTEGERS or _is_number(inner, value_of)


def _lies_in(values: Array, bounds: Bounds) -> bool:
    return bool(((bounds.least <= values) & (values <= bounds.most)).all())  # NaN does not


def _is_number(value: Expr, value_of: Callable[[Any], Any]) -> bool:
    """Return whether a value is where(isnan(x), constant, x)."""
    if operator_of(value) != "relax.where":
        return False
    condition, number = (value_of(part) for part in value.args[:2])
    constant = constant_value(number)
    return (
        operator_of(condition) == "relax.isnan"
        and condition.args[0].same_as(value.args[2])
        and constant is not None
        and bool(np.isfinite(constant.numpy()).all())
    )


def bound(call: Call, emit: Callable[[Any], Any], value_of: Callable[[Any], Any]) -> Call:
    """Return a call with bounded indices: they count from the end if they are negative and the operator says so, are
    moved to the nearest place otherwise. emit: binds a new value.
    """
    from tvm import relax

    bounds = index_bounds(call)
    if bounds is None or is_bounded(call.args[bounds.operand], bounds, value_of):
        return call
    index = call.args[bounds.operand]
    counts_from_end = operator_of(call) == "relax.scatter_elements"
    tensor = constant_value(value_of(index))
    if tensor is not None:
        values = np.nan_to_num(tensor.numpy())
        values = np.where((values < 0) & counts_from_end, values + bounds.most + 1, values)
        return _with(call, bounds, _constant(np.clip(values, bounds.least, bounds.most), tensor.dtype))
    if "float" in str(type_of(index).dtype):
        index = emit(relax.op.where(emit(relax.op.isnan(index)), relax.const(0.0, str(type_of(index).dtype)), index))
    elif str(type_of(index).dtype) not in _INTEGERS:
        index = emit(relax.op.astype(index, "int64"))
    dtype = str(type_of(index).dtype)
    if counts_from_end:
        zero, extent = relax.const(0, dtype), relax.const(int(bounds.most) + 1, dtype)
        index = emit(relax.op.where(emit(relax.op.less(index, zero)), emit(relax.op.add(index, extent)), index))
    index = emit(relax.op.maximum(index, _constant(bounds.least, dtype)))
    index = emit(relax.op.minimum(index, _constant(bounds.most, dtype)))
    return _with(call, bounds, index)


def _constant(values: Any, dtype: Any) -> Any:
    from tvm import relax

    return relax.const(values.astype(str(dtype)), str(dtype))


def _with(call: Call, bounds: Bounds, index: Any) -> Call:
    from tvm import relax

    arguments = [index if at == bounds.operand else argument for at, argument in enumerate(call.args)]
    return relax.Call(call.op, arguments, call.attrs)
