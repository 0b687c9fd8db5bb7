"""Convert operators of PyTorch that read and write at indices: indexing, gathers, scatters, strided views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, highest, lowest, node_shape, node_type, shape_of

_SMALL = ("bool", "uint8", "int8", "int16")


def _strides(extents: Sequence[int]) -> list[int]:
    return [math.prod(extents[place + 1 :]) for place in range(len(extents))]


def _positive(call: Call, index: Any, extent: int) -> Any:
    """Return indices from the start, in int64."""
    r = call.r
    index = r.astype(index, "int64")
    return r.where(r.less(index, constant(0, "int64")), r.add(index, constant(extent, "int64")), index)


def _select(call: Call) -> Any:
    """Convert select; for negative indices TVM reads before the tensor."""
    extent = call.shape("self")[call["dim"]]
    return call.r.take(call.value("self"), constant(call["index"] % extent, "int64"), axis=call["dim"])


def _take_rows(call: Call) -> Any:
    """Convert index_select; a number counts as a row of one."""
    r, x = call.r, call.r.as_row(call.value("self"))
    axis = call["dim"] % len(shape_of(x))
    index = r.reshape(_positive(call, call.value("index"), shape_of(x)[axis]), (-1,))
    return r.shaped(r.take(x, index, axis=axis), call.out_shape)


def _take_flat(call: Call) -> Any:
    r, x = call.r, call.r.reshape(call.value("self"), (-1,))
    return r.take(x, _positive(call, call.value("index"), shape_of(x)[0]), axis=0)


class _Places:
    """Indices along some axes of a tensor, as one index along the product of these axes, which are moved together.

    order: the axes in the order in which the product stands at `first`; place: the Relax value of the index.
    """

    def __init__(self, call: Call, indices: Sequence[Any]) -> None:
        chosen = [(axis, one) for axis, one in enumerate(indices) if one is not None]
        if any(node_type(one) in ("bool", "uint8") for _, one in chosen):
            raise NotImplementedError("a mask as index: its shape depends on values")
        r, shape = call.r, call.shape("self")
        axes = [axis for axis, _ in chosen]
        self.first = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
        self.order = [axis for axis in range(len(shape)) if axis not in axes]
        self.order[self.first : self.first] = axes
        self.shape = [shape[axis] for axis in self.order]
        self.count = len(axes)
        extents = self.shape[self.first : self.first + self.count]
        self.flat_shape = [*self.shape[: self.first], math.prod(extents), *self.shape[self.first + self.count :]]
        self.place: Any = None
        for extent, stride, (_, one) in zip(extents, _strides(extents), chosen, strict=True):
            index = _positive(call, call.of(one), extent)
            term = index if stride == 1 else r.multiply(index, constant(stride, "int64"))
            self.place = term if self.place is None else r.add(self.place, term)

    def moved(self, call: Call, value: Any) -> Any:
        """Return a tensor with the indexed axes together, as one."""
        if self.order != list(range(len(self.order))):
            value = call.r.permute_dims(value, self.order)
        return call.r.shaped(value, self.flat_shape)

    def back(self, call: Call, value: Any) -> Any:
        value = call.r.shaped(value, self.shape)
        if self.order == list(range(len(self.order))):
            return value
        return call.r.permute_dims(value, [self.order.index(axis) for axis in range(len(self.order))])


def _index(call: Call) -> Any:
    """Convert indexing by integer tensors of broadcastable shapes, along any axes."""
    places = _Places(call, call["indices"])
    found = call.r.take(places.moved(call, call.value("self")), places.place, axis=places.first)
    return call.r.shaped(found, call.out_shape)


def _index_put(call: Call) -> Any:
    """Convert assignment to indexed places, or addition; by a mask for one value."""
    r, kind = call.r, call.dtype
    indices = call["indices"]
    given = [one for one in indices if one is not None]
    if len(given) == 1 and node_type(given[0]) == "bool":
        return _put_by_mask(call)
    places = _Places(call, indices)
    work = _work_type(kind)
    moved = places.moved(call, call.value("self", work))
    before, rest = places.flat_shape[: places.first], places.flat_shape[places.first + 1 :]
    index_shape = shape_of(places.place)
    values = call.r.expanded(call.value("values", work), (*before, *index_shape, *rest))
    index = r.reshape(places.place, (*([1] * len(before)), *index_shape, *([1] * len(rest))))
    full = (*before, math.prod(index_shape), *rest)
    index = r.shaped(r.expanded(index, (*before, *index_shape, *rest)), full)
    reduction = "add" if call["accumulate"] else "update"
    found = r.scatter_elements(moved, index, r.shaped(values, full), places.first, reduction)
    return r.cast(places.back(call, found), kind)


def _put_by_mask(call: Call) -> Any:
    r, kind, indices = call.r, call.dtype, call["indices"]
    lead, mask = next((place, one) for place, one in enumerate(indices) if one is not None)
    work, shape = _work_type(kind), call.shape("self")
    x, chosen = call.value("self", work), call.of(mask)
    rest = shape[lead + len(node_shape(mask)) :]
    given = call.shape("values")
    axis = len(given) - 1 - len(rest)  # of the places that are set
    if math.prod(given) == 1:
        values = r.reshape(call.value("values", work), ())
    elif axis < 0 or given[axis] == 1:  # the same for each place
        places = [1] * (len(shape) - lead - len(rest))
        values = r.reshape(call.value("values", work), (*given[: max(axis, 0)], *places, *given[axis + 1 :]))
    else:
        count = math.prod(node_shape(mask))
        rows = r.expanded(call.value("values", work), (*shape[:lead], given[axis], *rest))
        values = r.take(rows, r.reshape(_ranks(call, chosen), (count,)), axis=lead)
        values = r.reshape(values, shape)
    values = r.add(x, values) if call["accumulate"] else values
    extents = (*([1] * lead), *node_shape(mask), *([1] * len(rest)))
    return r.cast(r.where(r.reshape(chosen, extents), values, x), kind)


def _ranks(call: Call, mask: Any) -> Any:
    """Return how many places of a mask before each one are set: where its value lies among those that are read."""
    r = call.r
    flat = r.cumsum(r.astype(r.reshape(mask, (-1,)), "int64"), 0, "int64")
    return r.maximum(r.subtract(flat, constant(1, "int64")), constant(0, "int64"))


def _masked_scatter(call: Call) -> Any:
    r, kind, work = call.r, call.dtype, _work_type(call.dtype)
    mask = r.expanded(call.value("mask"), call.out_shape)
    values = r.take(r.reshape(call.value("source", work), (-1,)), _ranks(call, mask), axis=0)
    x = r.expanded(call.value("self", work), call.out_shape)
    return r.cast(r.where(mask, r.reshape(values, call.out_shape), x), kind)


def _work_type(dtype: str) -> str:
    return "int32" if dtype in _SMALL else dtype


_REDUCTIONS = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _scatter(call: Call) -> Any:
    """Convert scatter, scatter_add and scatter_reduce; values beyond the indices are not read."""
    r, kind, work = call.r, call.dtype, _work_type(call.dtype)
    name = call.node.target.__name__
    x, index = r.as_row(call.value("self", work)), r.as_row(r.astype(call.value("index"), "int64"))
    rank = len(shape_of(x))
    extents = shape_of(index)
    if not math.prod(extents):
        return call.value("self")
    source = call["src"] if "src" in call.given else call["value"]
    values = call.of(source, work)
    if not hasattr(source, "meta"):
        values = r.broadcast_to(values, extents)
    values = r.as_row(values)
    cut = [axis for axis in range(rank) if shape_of(values)[axis] != extents[axis]]
    if cut:
        values = r.strided_slice(values, axes=cut, begin=[0] * len(cut), end=[extents[axis] for axis in cut])
    reduction = "add" if name.startswith("scatter_add") else call["reduce"] or ""
    axis = call["dim"] % rank
    found = _reduce_into(call, x, index, values, axis, reduction)
    return r.cast(r.shaped(found, call.out_shape), kind)


def _reduce_into(call: Call, x: Any, index: Any, values: Any, axis: int, reduction: str) -> Any:
    """Scatter with a reduction; without `include_self` the places written to begin at its neutral value."""
    r, dtype = call.r, type_name(x)
    if call.given.get("include_self") is False:
        neutral = {"prod": 1, "amax": lowest(dtype), "amin": highest(dtype)}.get(reduction, 0)
        start = r.expanded(constant(neutral, dtype), shape_of(values))
        x = r.scatter_elements(x, index, start, axis, "update")
    if reduction != "mean":
        return r.scatter_elements(x, index, values, axis, _REDUCTIONS.get(reduction, "update"))
    total = r.scatter_elements(x, index, values, axis, "add")
    ones = r.expanded(constant(1, dtype), shape_of(values))
    include = call.given.get("include_self") is not False
    count = r.scatter_elements(r.expanded(constant(int(include), dtype), shape_of(x)), index, ones, axis, "add")
    count = r.maximum(count, constant(1, dtype))
    return r.divide(total, count) if "float" in dtype else r.floor_divide(total, count)


def _gather(call: Call) -> Any:
    r = call.r
    x, index = r.as_row(call.value("self")), r.as_row(r.astype(call.value("index"), "int64"))
    axis = call["dim"] % len(shape_of(x))
    return r.shaped(r.gather_elements(x, index, axis), call.out_shape)


def _take_constant(call: Call, value: Any, places: Any) -> Any:
    """Return the elements of a tensor at constant places of its rows, all in one."""
    flat = call.r.reshape(value, (-1,))
    return call.r.shaped(call.r.take(flat, constant(np.asarray(places).reshape(-1), "int64"), axis=0), call.out_shape)


def _as_strided(call: Call) -> Any:
    """Convert a view by strides of a tensor without gaps."""
    storage = call["self"].meta["val"]
    if not storage.is_contiguous() or storage.storage_offset():
        raise NotImplementedError("strides of a view")
    places = np.asarray(call["storage_offset"] or 0)
    for extent, stride in zip(call["size"], call["stride"], strict=True):
        places = places[..., None] + np.arange(extent) * stride
    return _take_constant(call, call.value("self"), places)


def _diagonal(call: Call) -> Any:
    shape = call.shape("self")
    places = np.arange(math.prod(shape)).reshape(shape)
    return _take_constant(call, call.value("self"), places.diagonal(call["offset"], call["dim1"], call["dim2"]))


def _flip(call: Call) -> Any:
    value = call.value("self")
    for axis in call["dims"]:
        value = call.r.flip(value, axis % len(call.shape("self")))
    return value


def _unfold(call: Call) -> Any:
    """Convert unfold: windows along an axis, with the places in a window as the last axis."""
    r, shape = call.r, call.shape("self") or (1,)
    axis, size, step = call["dimension"] % len(shape), call["size"], call["step"]
    value = r.shaped(call.value("self"), shape)
    places = np.arange((shape[axis] - size) // step + 1)[:, None] * step + np.arange(size)
    value = r.take(value, constant(places, "int64"), axis=axis)
    value = r.permute_dims(value, [at for at in range(len(shape) + 1) if at != axis + 1] + [axis + 1])
    return r.shaped(value, call.out_shape)


def _replace_places(call: Call, x: Any, values: Any, axis: int, places: Any) -> Any:
    """Return a tensor with values at constant places along an axis, read from both of them."""
    extent = shape_of(x)[axis]
    chosen = np.arange(extent)
    chosen[places] = extent + np.arange(len(chosen[places]))
    return call.r.take(call.r.concat([x, values], axis=axis), constant(chosen, "int64"), axis=axis)


def _slice_scatter(call: Call) -> Any:
    shape = call.shape("self")
    axis = call["dim"] % len(shape)
    places = slice(call["start"], call["end"], call["step"])
    if not len(np.arange(shape[axis])[places]):
        return call.value("self")
    return _replace_places(call, call.value("self"), call.value("src", call.dtype), axis, places)


def _select_scatter(call: Call) -> Any:
    shape = call.shape("self")
    axis = call["dim"] % len(shape)
    values = call.r.expand_dims(call.value("src", call.dtype), axis)
    return _replace_places(call, call.value("self"), values, axis, [call["index"] % shape[axis]])


def _squeeze(call: Call) -> Any:
    shape, axes = call.shape("self"), call["dim"]
    axes = range(len(shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    removed = sorted({axis % len(shape) for axis in axes if shape and shape[axis] == 1})
    return call.r.squeeze(call.value("self"), removed) if removed else call.value("self")


def _cat(call: Call) -> Any:
    """Convert cat, in the common type; empty rows of no other axes count as nothing."""
    parts = [one for one in call["tensors"] if node_shape(one) != (0,) or len(call.out_shape) == 1]
    parts = [one for one in parts if math.prod(node_shape(one))] or parts
    axis = call["dim"] % len(call.out_shape)
    if len(parts) == 1:
        return call.of(parts[0], call.dtype)
    return call.r.concat([call.of(one, call.dtype) for one in parts], axis=axis)


def _pad(call: Call) -> Any:
    """Convert constant_pad_nd, also with a negative number of places, which cuts."""
    r, kind, shape = call.r, call.dtype, call.shape("self")
    value = call.value("self", _work_type(kind))
    pairs = [call["pad"][at : at + 2] for at in range(0, len(call["pad"]), 2)][::-1]
    pairs = [(0, 0)] * (len(shape) - len(pairs)) + pairs
    cut = [axis for axis, pair in enumerate(pairs) if min(pair) < 0]
    if cut:
        value = r.strided_slice(
            value,
            axes=cut,
            begin=[max(0, -pairs[axis][0]) for axis in cut],
            end=[shape[axis] + min(0, pairs[axis][1]) for axis in cut],
        )
    widths = [max(0, side) for pair in pairs for side in pair]
    if any(widths):
        value = r.nn__pad(value, widths, "constant", float(call["value"] or 0))
    return r.cast(value, kind)


def _repeat(call: Call) -> Any:
    return call.r.tile(call.value("self"), list(call["repeats"])) if call["repeats"] else call.value("self")


def _filled(call: Call) -> Any:
    """Convert full and fill, of one value."""
    value = next((call[name] for name in ("fill_value", "value", "s") if name in call.given), None)
    return call.r.expanded(call.of(value, call.dtype), call.out_shape)


def _ones(value: int) -> Convert:
    return lambda call: call.r.expanded(constant(value, call.dtype), call.out_shape)


INDEXING: dict[str, Convert] = {
    "select.int": _select,
    "index_select.default": _take_rows,
    "take.default": _take_flat,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "scatter.src": _scatter,
    "scatter.value": _scatter,
    "scatter.reduce": _scatter,
    "scatter.value_reduce": _scatter,
    "scatter_add.default": _scatter,
    "scatter_reduce.two": _scatter,
    "masked_scatter.default": _masked_scatter,
    "gather.default": _gather,
    "as_strided.default": _as_strided,
    "diagonal.default": _diagonal,
    "flip.default": _flip,
    "unfold.default": _unfold,
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _select_scatter,
    "squeeze.default": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "cat.default": _cat,
    "constant_pad_nd.default": _pad,
    "expand.default": lambda call: call.r.expanded(call.value("self"), call.out_shape),
    "repeat.default": _repeat,
    "unsqueeze.default": lambda call: call.r.expand_dims(call.value("self"), call["dim"] % len(call.out_shape)),
    "full.default": _filled,
    "full_like.default": _filled,
    "fill.Scalar": _filled,
    "fill.Tensor": _filled,
    "scalar_tensor.default": _filled,
    "zeros_like.default": _ones(0),
    "ones_like.default": _ones(1),
    "new_zeros.default": _ones(0),
    "new_ones.default": _ones(1),
    "new_full.default": _filled,
    "zeros.default": _ones(0),
    "ones.default": _ones(1),
    "empty.memory_format": _ones(0),
    "empty_like.default": _ones(0),
    "empty_strided.default": _ones(0),
    "empty_permuted.default": _ones(0),
    "new_empty.default": _ones(0),
}
