"""Convert TFLite's operators that read or write elements at indices to Relax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.operation import Convert, Operation
from tvmflow.ir.tvm_compat import type_of

_RELAX = relax.op


def _gather(o: Operation) -> Any:
    rank = len(o.shape(0))
    axis = int(o.options.axis or 0) % rank if o.options is not None else 0
    batch = int(getattr(o.options, "batchDims", 0) or 0) % max(len(o.shape(1)), 1) if o.options is not None else 0
    if o.is_known(0) and o.is_known(1) and not batch:
        return np.take(o.stored(0), o.stored(1), axis)
    if not batch:
        return _RELAX.take(o.value(0), o.value(1), axis=axis)
    return _gather_in_batches(o, axis, batch)


def _gather_in_batches(o: Operation, axis: int, batch: int) -> Any:
    """Number the rows of all batches, and take them from one list."""
    shape, places = o.shape(0), o.shape(1)
    if axis < batch:
        raise o.unsupported("along an axis of the batch")
    order = [*range(batch), axis, *(a for a in range(batch, len(shape)) if a != axis)]
    data = o.value(0) if order == list(range(len(shape))) else o.emit(_RELAX.permute_dims(o.value(0), order))
    between, behind = shape[batch:axis], shape[axis + 1 :]
    rows = math.prod(shape[:batch])
    flat = o.emit(_RELAX.reshape(data, [rows * shape[axis], *between, *behind]))
    dtype = str(type_of(o.value(1)).dtype)
    offsets = np.arange(rows).reshape((*places[:batch], *[1] * (len(places) - batch))) * shape[axis]
    taken = o.emit(_RELAX.take(flat, o.emit(_RELAX.add(o.value(1), o.constant(offsets, dtype))), axis=0))
    if not between:
        return taken
    inner = len(places) - batch
    back = [
        *range(batch),
        *(batch + inner + at for at in range(len(between))),
        *range(batch, batch + inner),
        *(batch + inner + len(between) + at for at in range(len(behind))),
    ]
    return _RELAX.permute_dims(taken, back)


def _gather_nd(o: Operation) -> Any:
    """Take slices: indices (..., K) become numbers of the flattened first K axes."""
    shape, places = o.shape(0), o.shape(1)
    depth = places[-1]
    flat = o.emit(_RELAX.reshape(o.value(0), [math.prod(shape[:depth]), *shape[depth:]]))
    return _RELAX.take(flat, _numbers(o, o.value(1), shape[:depth], places), axis=0)


def _numbers(o: Operation, indices: Any, extents: tuple[int, ...], places: tuple[int, ...]) -> Any:
    """Emit the numbers of elements of a tensor from indices along its axes, the last axis of `indices`."""
    dtype = str(type_of(indices).dtype)
    steps = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    weighted = o.emit(_RELAX.multiply(indices, o.constant(steps, dtype)))
    return o.emit(_RELAX.sum(weighted, [len(places) - 1]))


def _scatter_nd(o: Operation) -> Any:
    """Add updates to zeros at indices, as a product with the matrix of which row goes where."""
    shape, places = o.integers(2), o.shape(0)
    depth = places[-1]
    rows = math.prod(shape[:depth])
    numbers = o.emit(_RELAX.reshape(_numbers(o, o.value(0), tuple(shape[:depth]), places), [-1]))
    return _RELAX.reshape(_sum_rows(o, numbers, o.value(1), rows, math.prod(shape[depth:])), shape)


def _sum_rows(o: Operation, numbers: Any, updates: Any, rows: int, width: int) -> Any:
    """Emit (rows, width): the sums of updates with the same number."""
    dtype = str(type_of(updates).dtype)
    flat = o.emit(_RELAX.reshape(updates, [-1, width]))
    return o.emit(_RELAX.matmul(_places(o, numbers, rows, dtype), flat))


def _places(o: Operation, numbers: Any, rows: int, dtype: str) -> Any:
    """Emit (rows, len(numbers)): 1 where a number is the row's."""
    kind = str(type_of(numbers).dtype)
    column = o.constant(np.arange(rows).reshape(-1, 1), kind)
    row = o.emit(_RELAX.reshape(numbers, [1, -1]))
    return o.emit(_RELAX.astype(o.emit(_RELAX.equal(column, row)), dtype))


def _segment_sum(o: Operation) -> Any:
    if o.node.name == "SEGMENT_SUM" and not o.is_known(1):
        raise o.unsupported("whose number of segments depends on data")
    rows = max(o.integers(1)) + 1 if o.node.name == "SEGMENT_SUM" else o.integers(2)[0]
    ranks = len(o.shape(1))
    rest = o.shape(0)[ranks:]
    numbers = o.emit(_RELAX.reshape(o.value(1), [-1]))
    return _RELAX.reshape(_sum_rows(o, numbers, o.value(0), rows, math.prod(rest)), [rows, *rest])


def _segment_extreme(o: Operation) -> Any:
    """Reduce each segment: elements of other segments are replaced by what changes nothing."""
    name = o.node.name.rsplit("_", 1)[1]
    function = {"MAX": _RELAX.max, "MIN": _RELAX.min, "PROD": _RELAX.prod}[name]
    rows, rest = o.integers(2)[0], o.shape(0)[len(o.shape(1)) :]
    dtype = o.tensor(0).dtype
    limits: Any = np.finfo(np.float32) if dtype.startswith("float") else np.iinfo(dtype)
    neutral = {"MAX": limits.min, "MIN": limits.max, "PROD": 1}[name]
    numbers = o.emit(_RELAX.reshape(o.value(1), [-1]))
    chosen = o.emit(_RELAX.reshape(_places(o, numbers, rows, "bool"), [rows, -1, 1]))
    data = o.emit(_RELAX.reshape(o.value(0), [1, -1, math.prod(rest)]))
    parts = o.emit(_RELAX.where(chosen, data, o.constant(neutral, dtype)))
    return _RELAX.reshape(o.emit(function(parts, [1])), [rows, *rest])


def _one_hot(o: Operation) -> Any:
    (depth,) = o.integers(1)
    rank, kind = len(o.shape(0)), o.tensor(0).dtype
    axis = int(o.options.axis) % (rank + 1)
    column = [1] * (rank + 1)
    column[axis] = depth
    shape = list(o.shape(0))
    shape.insert(axis, 1)
    indices = o.emit(_RELAX.reshape(o.value(0), shape))
    is_on = o.emit(_RELAX.equal(indices, o.constant(np.arange(depth).reshape(column), kind)))
    return _RELAX.where(is_on, o.value(2), o.value(3))


def _update_slice(o: Operation) -> Any:
    """Write a smaller tensor into a larger one at a known place."""
    shape, inner = o.shape(0), o.shape(1)
    begin = [max(0, min(start, extent - size)) for start, extent, size in zip(o.integers(2), shape, inner, strict=True)]
    widths = [
        width
        for start, extent, size in zip(begin, shape, inner, strict=True)
        for width in (start, extent - start - size)
    ]
    is_new = np.pad(np.ones(inner, bool), np.reshape(widths, (-1, 2)).tolist())
    moved = o.emit(_RELAX.nn.pad(o.value(1), widths))
    return _RELAX.where(o.constant(is_new), moved, o.value(0))


def _sparse_to_dense(o: Operation) -> Any:
    shape = o.integers(1)
    indices = o.array(0).astype(np.int64).reshape(-1, len(shape))
    if o.is_known(2):
        dense = np.full(shape, o.array(3).reshape(-1)[0])
        dense[tuple(indices.T)] = o.array(2)
        return dense
    raise o.unsupported("of computed values")


def _reverse_sequence(o: Operation) -> Any:
    """Reverse the first elements of each row: their number must be known."""
    lengths, axis, batch = o.integers(1), int(o.options.seqDim or 0), int(o.options.batchDim or 0)
    shape = o.shape(0)
    order = [batch, axis, *(a for a in range(len(shape)) if a not in (batch, axis))]
    moved = o.emit(_RELAX.permute_dims(o.value(0), order))
    rest = [shape[a] for a in order[2:]]
    flat = o.emit(_RELAX.reshape(moved, [shape[batch] * shape[axis], *rest]))
    places = np.arange(shape[batch] * shape[axis]).reshape(shape[batch], shape[axis])
    for row, length in enumerate(lengths):
        places[row, :length] = places[row, :length][::-1].copy()
    taken = o.emit(_RELAX.take(flat, o.constant(places, "int32"), axis=0))
    return _RELAX.permute_dims(taken, np.argsort(order).tolist())


def _diagonal(o: Operation) -> Any:
    shape = o.shape(0)
    column = o.emit(_RELAX.reshape(o.value(0), [*shape, 1]))
    dtype = o.tensor(0).dtype
    zeros = o.constant(0, "float32" if o.tensor(0).is_quantized else dtype)
    return _RELAX.where(o.constant(np.eye(shape[-1], dtype=bool)), column, zeros)


def _set_diagonal(o: Operation) -> Any:
    rows, columns = o.shape(0)[-2:]
    size = min(rows, columns)
    diagonal = o.emit(_RELAX.reshape(o.value(1), [*o.shape(1), 1]))
    if size < rows:
        widths = [0, 0] * (len(o.shape(1)) - 1) + [0, rows - size, 0, 0]
        diagonal = o.emit(_RELAX.nn.pad(diagonal, widths))
    return _RELAX.where(o.constant(np.eye(rows, columns, dtype=bool)), diagonal, o.value(0))


def _bucketize(o: Operation) -> Any:
    """Count the bounds that are not above each value."""
    bounds = np.asarray(o.options.boundaries, np.float32)
    x = o.emit(_RELAX.reshape(o.value(0), [*o.shape(0), 1]))
    if o.tensor(0).dtype != "float32":
        x = o.emit(_RELAX.astype(x, "float32"))
    reached = o.emit(_RELAX.astype(o.emit(_RELAX.greater_equal(x, o.constant(bounds))), "int32"))
    return _RELAX.sum(reached, [len(o.shape(0))])


INDEXING: dict[str, Convert] = {
    "BUCKETIZE": _bucketize,
    "DYNAMIC_UPDATE_SLICE": _update_slice,
    "EMBEDDING_LOOKUP": lambda o: _RELAX.take(o.value(1), o.value(0), axis=0),
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "MATRIX_DIAG": _diagonal,
    "MATRIX_SET_DIAG": _set_diagonal,
    "ONE_HOT": _one_hot,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "SCATTER_ND": _scatter_nd,
    "SEGMENT_SUM": _segment_sum,
    "SPARSE_TO_DENSE": _sparse_to_dense,
    "UNSORTED_SEGMENT_MAX": _segment_extreme,
    "UNSORTED_SEGMENT_MIN": _segment_extreme,
    "UNSORTED_SEGMENT_PROD": _segment_extreme,
    "UNSORTED_SEGMENT_SUM": _segment_sum,
}
