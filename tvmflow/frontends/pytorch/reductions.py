"""Convert reductions, scans and sorts of PyTorch: negative axes, scalars, and PyTorch's result types."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, highest, lowest, promoted_type, shape_of

_MOST_COMPARED = 1 << 22  # elements of a scan that compares every pair of places


def _axes(call: Call, rank: int) -> list[int]:
    """Return the reduced axes; all for none."""
    axes = call["dim"]
    axes = [axes] if isinstance(axes, int) else list(axes or range(rank))
    return sorted({axis % rank for axis in axes}) if rank else []


def _operand(call: Call, dtype: str | None = None) -> Any:
    """Return the argument, a number as a row of one."""
    return call.r.as_row(call.value("self", dtype))


def _reduce(call: Call, name: str, value: Any) -> Any:
    rank = len(shape_of(value))
    axes = _axes(call, rank)
    return call.r.shaped(getattr(call.r, name)(value, axes, bool(call["keepdim"])), call.out_shape)


def _reduction(name: str) -> Convert:
    """Return a converter of sum, prod, amax and amin, in the type of the result."""

    def convert(call: Call) -> Any:
        dtype = call.dtype
        if dtype != "bool":
            return _reduce(call, name, _operand(call, dtype))
        name_of_bits = {"sum": "max", "prod": "min"}.get(name, name)
        return call.r.cast(_reduce(call, name_of_bits, call.r.astype(_operand(call), "int8")), "bool")

    return convert


def _any_or_all(name: str) -> Convert:
    def convert(call: Call) -> Any:
        bits = call.r.astype(_operand(call, "bool"), "int8")
        return call.r.astype(_reduce(call, name, bits), call.dtype)  # of 0 or 1; FuseAttention knows it by this cast

    return convert


def _mean(call: Call) -> Any:
    return _reduce(call, "mean", _operand(call, call.dtype))


def _variance(call: Call) -> Any:
    """Convert var, with its correction of the number of values."""
    x, r, dtype = _operand(call, call.dtype), call.r, call.dtype
    count = math.prod(shape_of(x)[axis] for axis in _axes(call, len(shape_of(x))))
    correction = 1 if call.given.get("correction", 1) is None else call.given.get("correction", 1)
    if call.given.get("unbiased") is False:
        correction = 0
    found = _reduce(call, "variance", x)
    if not correction:
        return found
    return r.multiply(found, constant(count / (count - correction) if count > correction else math.nan, dtype))


def _argument(name: str) -> Convert:
    """Return a converter of argmax and argmin: the first of equal values."""

    def convert(call: Call) -> Any:
        x, r = _sortable(call, _operand(call)), call.r
        if call["dim"] is None:
            x = r.reshape(x, (-1,))
            return r.shaped(getattr(r, name)(x, 0, False), call.out_shape)
        return r.shaped(getattr(r, name)(x, call["dim"] % len(shape_of(x)), bool(call["keepdim"])), call.out_shape)

    return convert


def _sortable(call: Call, value: Any) -> Any:
    return call.r.astype(value, "int32") if type_name(value) in ("bool", "uint8", "int8", "int16") else value


def _extreme_and_place(name: str) -> Convert:
    """Return a converter of max and min along an axis: values, and the places of the first."""

    def convert(call: Call) -> Any:
        r, kind = call.r, type_name(call.value("self"))
        x = _sortable(call, _operand(call))
        shape = node_shapes(call)[0]
        axis, keep = call["dim"] % len(shape_of(x)), bool(call["keepdim"])
        value = r.cast(r.shaped(getattr(r, name)(x, [axis], keep), shape), kind)
        return value, r.shaped(getattr(r, f"arg{name}")(x, axis, keep), shape)

    return convert


def node_shapes(call: Call) -> list[tuple[int, ...]]:
    """Return the shapes of a call's several results."""
    return [tuple(one.shape) for one in call.node.meta["val"]]


def _cumulative(name: str) -> Convert:
    """Return a converter of cumsum and cumprod, in the type of the result: int64 for booleans and small integers."""

    def convert(call: Call) -> Any:
        x = _operand(call, call.dtype)
        axis = call["dim"] % len(shape_of(x))
        return call.r.shaped(getattr(call.r, name)(x, axis, call.dtype), call.out_shape)

    return convert


def _running_extreme(name: str) -> Convert:
    """Return a converter of cummax and cummin: the extreme of each beginning, and the place of its last occurrence."""

    def convert(call: Call) -> Any:
        r, kind = call.r, type_name(call.value("self"))
        x, shapes = _sortable(call, _operand(call)), node_shapes(call)
        shape = shape_of(x)
        extent = shape[call["dim"]]
        if math.prod(shape) * extent > _MOST_COMPARED:
            raise NotImplementedError(f"a scan of {extent} places over {math.prod(shape)} values")
        x, back = r.with_axis_last(x, call["dim"])
        dtype = type_name(x)
        worst = lowest(dtype) if name == "max" else highest(dtype)
        before = np.tril(np.ones((extent, extent), bool))
        spread = r.where(constant(before, "bool"), r.expand_dims(x, -2), constant(worst, dtype))
        best = getattr(r, name)(spread, [-1], False)
        is_best = r.logical_and(r.equal(r.expand_dims(x, -2), r.expand_dims(best, -1)), constant(before, "bool"))
        place = r.max(r.where(is_best, constant(np.arange(extent), "int64"), constant(-1, "int64")), [-1], False)
        best, place = r.moved_back(best, back), r.moved_back(place, back)
        return r.cast(r.shaped(best, shapes[0]), kind), r.shaped(place, shapes[1])

    return convert


def _in_order(call: Call, descending: bool, kept: tuple[int, int] | None = None) -> Any:
    """Return the sorted values along an axis and their places before. kept: the range of them that is returned."""
    r, kind = call.r, type_name(call.value("self"))
    x, shapes = _sortable(call, _operand(call)), node_shapes(call)
    axis = call["dim"] % len(shape_of(x))
    places = r.argsort(x, axis, descending, dtype="int64")
    if kept is not None:
        places = r.strided_slice(places, axes=[axis], begin=[kept[0]], end=[kept[1]])
    values = r.cast(r.gather_elements(x, places, axis), kind)
    return r.shaped(values, shapes[0]), r.shaped(places, shapes[1])


def _sort(call: Call) -> Any:
    """Convert sort: stable, of any type."""
    return _in_order(call, bool(call["descending"]))


def _argsort(call: Call) -> Any:
    x = _sortable(call, _operand(call))
    axis = call["dim"] % len(shape_of(x))
    return call.r.shaped(call.r.argsort(x, axis, bool(call["descending"]), dtype="int64"), call.out_shape)


def _kth(call: Call, place: int) -> Any:
    """Return the value at a place of the sorted values along an axis, and its place before."""
    return _in_order(call, False, (place, place + 1))


def _median_of_axis(call: Call) -> Any:
    shape = call.shape("self") or (1,)
    return _kth(call, (shape[call["dim"] % len(shape)] - 1) // 2)


def _median(call: Call) -> Any:
    r, kind = call.r, call.dtype
    x = r.reshape(_sortable(call, call.value("self")), (-1,))
    places = r.argsort(x, 0, False, dtype="int64")
    middle = (shape_of(x)[0] - 1) // 2
    place = r.strided_slice(places, axes=[0], begin=[middle], end=[middle + 1])
    return r.cast(r.shaped(r.take(x, place, axis=0), call.out_shape), kind)


def _bucketize(call: Call) -> Any:
    """Convert bucketize and searchsorted: how many borders lie below each value."""
    r = call.r
    if call.given.get("sorter") is not None:
        raise NotImplementedError("a sorter")
    of_rows = "sorted_sequence" in call.given
    borders = call["sorted_sequence" if of_rows else "boundaries"]
    values = call["self"]
    right = bool(call["right"]) or call.given.get("side") == "right"
    dtype = promoted_type(borders, values)
    count = call.shape("sorted_sequence" if of_rows else "boundaries")
    a = r.expand_dims(call.of(values, dtype), -1)
    b = call.of(borders, dtype)
    b = r.expand_dims(b, -2) if len(count) > 1 else b
    if math.prod(call.out_shape) * count[-1] > _MOST_COMPARED:
        raise NotImplementedError(f"{count[-1]} borders of {math.prod(call.out_shape)} values")
    below = (r.less_equal if right else r.less)(b, a)
    return r.shaped(r.sum(r.astype(below, call.dtype), [-1], False), call.out_shape)


def _norm(call: Call) -> Any:
    """Convert linalg_vector_norm."""
    return norm_of(call, _operand(call, call.dtype), float(call["ord"]), functools.partial(_reduce, call))


def norm_of(call: Call, values: Any, order: float, reduce: Callable[[str, Any], Any]) -> Any:
    """Return a norm of any order; the count of values other than zero for order 0. reduce: by the name of a
    reduction.
    """
    r, dtype = call.r, type_name(values)
    x = r.abs(values)
    if math.isinf(order):
        return reduce("max" if order > 0 else "min", x)
    if order == 0:
        return reduce("sum", r.astype(r.not_equal(x, constant(0, dtype)), dtype))
    if order == 1:
        return reduce("sum", x)
    if order == 2:
        return r.sqrt(reduce("sum", r.multiply(x, x)))
    return r.power(reduce("sum", r.power(x, constant(order, dtype))), constant(1 / order, dtype))


REDUCTIONS: dict[str, Convert] = {
    **dict.fromkeys(("sum.default", "sum.dim_IntList"), _reduction("sum")),
    **dict.fromkeys(("prod.default", "prod.dim_int"), _reduction("prod")),
    **dict.fromkeys(("amax.default", "max.default"), _reduction("max")),
    **dict.fromkeys(("amin.default", "min.default"), _reduction("min")),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _any_or_all("max")),
    **dict.fromkeys(("all.default", "all.dim", "all.dims"), _any_or_all("min")),
    **dict.fromkeys(("mean.default", "mean.dim"), _mean),
    **dict.fromkeys(("var.correction", "var.dim", "var.default"), _variance),
    "argmax.default": _argument("argmax"),
    "argmin.default": _argument("argmin"),
    "max.dim": _extreme_and_place("max"),
    "min.dim": _extreme_and_place("min"),
    "cumsum.default": _cumulative("cumsum"),
    "cumprod.default": _cumulative("cumprod"),
    "cummax.default": _running_extreme("max"),
    "cummin.default": _running_extreme("min"),
    **dict.fromkeys(("sort.default", "sort.stable"), _sort),
    **dict.fromkeys(("argsort.default", "argsort.stable"), _argsort),
    "topk.default": lambda call: _in_order(call, bool(call["largest"]), (0, int(call["k"]))),
    "kthvalue.default": lambda call: _kth(call, int(call["k"]) - 1),
    "median.dim": _median_of_axis,
    "median.default": _median,
    **dict.fromkeys(("bucketize.Tensor", "bucketize.Scalar", "searchsorted.Tensor", "searchsorted.Scalar"), _bucketize),
    "linalg_vector_norm.default": _norm,
}
