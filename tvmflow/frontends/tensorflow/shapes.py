"""Convert TFLite's operators that move elements or make tensors from shapes to Relax.

Shapes are fixed, so what a file computes from them is known: such operators work on arrays too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.operation import Convert, Operation
from tvmflow.frontends.tensorflow.tflite_graph import Array

_RELAX = relax.op


def _move(in_numpy: Callable[[Array], Array], in_relax: Callable[[], Any], o: Operation) -> Any:
    """Return a moved input: an array if it is known, with its integers as stored."""
    return in_numpy(o.stored(0)) if o.is_known(0) else in_relax()


def _reshape_to(o: Operation, shape: Sequence[int]) -> Any:
    shape = [int(extent) for extent in shape]
    if o.is_complex(0):
        return _RELAX.reshape(o.stored(0), [*shape, 2])
    return _move(lambda x: x.reshape(shape), lambda: _RELAX.reshape(o.value(0), shape), o)


def _reshape(o: Operation) -> Any:
    shape: Sequence[int]
    if o.has(1) and o.is_known(1):
        shape = o.integers(1)
    elif o.options is not None and o.options.newShape is not None and len(o.options.newShape):
        shape = list(o.options.newShape)
    elif not o.has(1):
        shape = []
    else:
        raise o.unsupported("whose shape depends on data")
    if math.prod(shape) == 0 and math.prod(o.shape(0)) != 0:
        shape = []  # old files: [0] is a scalar
    return _reshape_to(o, shape)


def _squeeze(o: Operation) -> Any:
    shape = o.shape(0)
    axes = o.options.squeezeDims if o.options is not None else None
    chosen = {int(axis) % len(shape) for axis in axes} if axes is not None and len(axes) else set(range(len(shape)))
    return _reshape_to(o, [extent for axis, extent in enumerate(shape) if extent != 1 or axis not in chosen])


def _expand_dims(o: Operation) -> Any:
    shape = list(o.shape(0))
    axis = o.integers(1)[0]
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return _reshape_to(o, shape)


def _transpose(o: Operation) -> Any:
    axes = [axis % len(o.shape(0)) for axis in o.integers(1)]
    return _move(lambda x: x.transpose(axes), lambda: _RELAX.permute_dims(o.value(0), axes), o)


def _all_known(o: Operation) -> bool:
    return all(o.is_known(index) for index in range(len(o.node.inputs)))


def _concatenate(o: Operation) -> Any:
    axis = int(o.options.axis) % len(o.shape(0))
    if _all_known(o) and not o.output.is_quantized:
        return np.concatenate([o.stored(index) for index in range(len(o.node.inputs))], axis)
    return o.activated(_RELAX.concat(o.values(), axis=axis))


def _pack(o: Operation) -> Any:
    axis = int(o.options.axis) % (len(o.shape(0)) + 1)
    if _all_known(o) and not o.output.is_quantized:
        return np.stack([o.stored(index) for index in range(len(o.node.inputs))], axis)
    shape = list(o.shape(0))
    shape.insert(axis, 1)
    parts = [o.emit(_RELAX.reshape(value, shape)) for value in o.values()]
    return _RELAX.concat(parts, axis=axis) if len(parts) > 1 else parts[0]


def _unpack(o: Operation) -> Any:
    shape = list(o.shape(0))
    axis = int(o.options.axis) % len(shape)
    if o.is_known(0):
        return tuple(np.take(o.stored(0), place, axis) for place in range(shape[axis]))
    rest = shape[:axis] + shape[axis + 1 :]
    return tuple(o.emit(_RELAX.reshape(part, rest)) for part in _pieces(o, o.value(0), axis, [1] * shape[axis]))


def _pieces(o: Operation, value: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    """Emit consecutive pieces of a value along an axis."""
    starts = np.cumsum([0, *sizes]).tolist()
    if len(sizes) == 1:
        return [value]
    return [
        o.emit(_RELAX.strided_slice(value, axes=[axis], begin=[start], end=[start + size]))
        for start, size in zip(starts, sizes, strict=False)
    ]


def _split_at(o: Operation, data: int, axis: int, sizes: Sequence[int]) -> tuple[Any, ...]:
    if o.is_known(data):
        return tuple(np.split(o.stored(data), np.cumsum(sizes)[:-1].tolist(), axis))
    return tuple(_pieces(o, o.value(data), axis, sizes))


def _split(o: Operation) -> Any:
    axis = o.integers(0)[0] % len(o.shape(1))
    count = len(o.node.outputs)
    return _split_at(o, 1, axis, [o.shape(1)[axis] // count] * count)


def _split_v(o: Operation) -> Any:
    axis, sizes = o.integers(2)[0] % len(o.shape(0)), o.integers(1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = o.shape(0)[axis] - sum(sizes) - 1
    return _split_at(o, 0, axis, sizes)


def _slice(o: Operation) -> Any:
    begin, sizes = o.integers(1), o.integers(2)
    end = [extent if size == -1 else start + size for start, size, extent in zip(begin, sizes, o.shape(0), strict=True)]
    places = [slice(*pair) for pair in zip(begin, end, strict=True)]
    axes = list(range(len(begin)))
    return _move(
        lambda x: x[tuple(places)], lambda: _RELAX.strided_slice(o.value(0), axes=axes, begin=begin, end=end), o
    )


def _strided_slice(o: Operation) -> Any:
    """Convert STRIDED_SLICE: masks say which bounds are open, which axes are new and which vanish."""
    options, shape = o.options, o.shape(0)
    begin, end, strides = o.integers(1), o.integers(2), o.integers(3)
    if int(options.ellipsisMask or 0) or int(options.newAxisMask or 0):
        raise o.unsupported("with an ellipsis or new axes")
    places, kept = [], []
    for axis, extent in enumerate(shape):
        if axis >= len(begin):
            places.append(range(extent))
            kept.append(extent)
            continue
        bit = 1 << axis
        if int(options.shrinkAxisMask or 0) & bit:
            start = begin[axis] + extent if begin[axis] < 0 else begin[axis]
            places.append(range(start, start + 1))
            continue
        last = begin[axis] + end[axis] if getattr(options, "offset", False) else end[axis]
        bounds = slice(
            None if int(options.beginMask or 0) & bit else begin[axis],
            None if int(options.endMask or 0) & bit else last,
            strides[axis],
        )
        places.append(range(extent)[bounds])
        kept.append(len(places[-1]))
    if o.is_known(0):
        return o.stored(0)[np.ix_(*places)].reshape(kept) if shape else o.stored(0)
    return _RELAX.reshape(_take_ranges(o, o.value(0), shape, places), kept)


def _take_ranges(o: Operation, value: Any, shape: Sequence[int], places: Sequence[range]) -> Any:
    """Emit the part of a value at a range of each axis; a range may run backwards."""
    chosen = [axis for axis, place in enumerate(places) if place != range(shape[axis])]
    forward = [places[axis] if places[axis].step > 0 else places[axis][::-1] for axis in chosen]
    if chosen:
        value = o.emit(
            _RELAX.strided_slice(
                value,
                axes=chosen,
                begin=[place.start for place in forward],
                end=[place[-1] + 1 if len(place) else place.start for place in forward],
                strides=[place.step for place in forward],
            )
        )
    for axis in chosen:
        if places[axis].step < 0 and len(places[axis]) > 1:
            value = o.emit(_RELAX.flip(value, axis))
    return value


def _pad(o: Operation) -> Any:
    widths = o.integers(1)
    if min(widths, default=0) < 0:
        raise o.unsupported("with negative widths")
    fill = float(o.array(2).reshape(-1)[0]) if o.has(2) else 0.0
    pairs = np.reshape(widths, (-1, 2)).tolist()
    if o.is_known(0) and not o.output.is_quantized:
        return np.pad(o.stored(0), pairs, constant_values=fill)
    return _RELAX.nn.pad(o.value(0), widths, pad_value=fill)


def _mirror_pad(o: Operation) -> Any:
    """Repeat elements in front of and behind each axis: mode 0 leaves out the edge, mode 1 repeats it."""
    value, edge = o.value(0), 1 - int(o.options.mode or 0)
    for axis, (before, behind) in enumerate(np.reshape(o.integers(1), (-1, 2)).tolist()):
        extent = o.shape(0)[axis]
        parts = []
        if before:
            parts.append(_reversed_part(o, value, axis, edge, edge + before))
        parts.append(value)
        if behind:
            parts.append(_reversed_part(o, value, axis, extent - edge - behind, extent - edge))
        if len(parts) > 1:
            value = o.emit(_RELAX.concat(parts, axis=axis))
    return value


def _reversed_part(o: Operation, value: Any, axis: int, first: int, end: int) -> Any:
    part = o.emit(_RELAX.strided_slice(value, axes=[axis], begin=[first], end=[end]))
    return o.emit(_RELAX.flip(part, axis)) if end - first > 1 else part


def _tile(o: Operation) -> Any:
    value, counts = o.value(0), o.integers(1)
    for axis, count in enumerate(counts):
        if count > 1:
            value = o.emit(_RELAX.concat([value] * count, axis=axis))
    if 0 in counts:
        raise o.unsupported("zero times")
    return value


def _broadcast_to(o: Operation) -> Any:
    shape = o.integers(1)
    return _move(lambda x: np.broadcast_to(x, shape).copy(), lambda: _RELAX.broadcast_to(o.value(0), shape), o)


def _broadcast_arguments(o: Operation) -> Any:
    return np.asarray(np.broadcast_shapes(tuple(o.integers(0)), tuple(o.integers(1))), o.output.dtype)


def _fill(o: Operation) -> Any:
    shape = o.integers(0)
    if o.is_known(1):
        return np.full(shape, o.stored(1).reshape(-1)[0])
    return _RELAX.broadcast_to(o.value(1), shape)


def _range(o: Operation) -> Any:
    start, end, step = (o.array(index).reshape(-1)[0] for index in range(3))
    return np.arange(start, end, step).astype(o.output.dtype)


def _reverse(o: Operation) -> Any:
    value = o.value(0)
    for axis in o.integers(1):
        value = o.emit(_RELAX.flip(value, axis % len(o.shape(0))))
    return value


def _rearrange(o: Operation, value: Any, split: Sequence[int], axes: Sequence[int], shape: Sequence[int]) -> Any:
    """Emit a reshape, a transposition and another reshape."""
    moved = o.emit(_RELAX.permute_dims(o.emit(_RELAX.reshape(value, list(split))), list(axes)))
    return o.emit(_RELAX.reshape(moved, list(shape)))


def _depth_to_space(o: Operation) -> Any:
    n, height, width, channels = o.shape(0)
    block = int(o.options.blockSize)
    rest = channels // block**2
    split = (n, height, width, block, block, rest)
    return _rearrange(o, o.value(0), split, [0, 1, 3, 2, 4, 5], (n, height * block, width * block, rest))


def _space_to_depth(o: Operation) -> Any:
    n, height, width, channels = o.shape(0)
    block = int(o.options.blockSize)
    split = (n, height // block, block, width // block, block, channels)
    made = (n, height // block, width // block, channels * block**2)
    return _rearrange(o, o.value(0), split, [0, 1, 3, 2, 4, 5], made)


def _space_to_batch(o: Operation) -> Any:
    blocks, widths = o.integers(1), np.reshape(o.integers(2), (-1, 2))
    n, *rest = o.shape(0)
    count = len(blocks)
    tail = [0, 0] * (len(rest) - count)
    value = o.emit(_RELAX.nn.pad(o.value(0), [0, 0, *widths.reshape(-1).tolist(), *tail]))
    padded = [rest[axis] + int(widths[axis].sum()) for axis in range(count)]
    split = [n]
    for extent, block in zip(padded, blocks, strict=True):
        split += [extent // block, block]
    outer, inner = [1 + 2 * axis for axis in range(count)], [2 + 2 * axis for axis in range(count)]
    behind = list(range(1 + 2 * count, 1 + 2 * count + len(rest) - count))
    made = [n * math.prod(blocks), *(e // b for e, b in zip(padded, blocks, strict=True)), *rest[count:]]
    return _rearrange(o, value, [*split, *rest[count:]], [*inner, 0, *outer, *behind], made)


def _batch_to_space(o: Operation) -> Any:
    blocks, crops = o.integers(1), np.reshape(o.integers(2), (-1, 2)).tolist()
    n, *rest = o.shape(0)
    count, kept = len(blocks), n // math.prod(blocks)
    axes = [count]
    for axis in range(count):
        axes += [count + 1 + axis, axis]
    axes += list(range(2 * count + 1, 1 + count + len(rest)))
    made = [kept, *(extent * block for extent, block in zip(rest[:count], blocks, strict=True)), *rest[count:]]
    value = _rearrange(o, o.value(0), [*blocks, kept, *rest], axes, made)
    if not any(map(any, crops)):
        return value
    begin = [first for first, _ in crops]
    end = [made[1 + axis] - last for axis, (_, last) in enumerate(crops)]
    return _RELAX.strided_slice(value, axes=[1 + axis for axis in range(count)], begin=begin, end=end)


SHAPES: dict[str, Convert] = {
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "BROADCAST_ARGS": _broadcast_arguments,
    "BROADCAST_TO": _broadcast_to,
    "CONCATENATION": _concatenate,
    "DEPTH_TO_SPACE": _depth_to_space,
    "EXPAND_DIMS": _expand_dims,
    "FILL": _fill,
    "MIRROR_PAD": _mirror_pad,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "RANGE": _range,
    "RANK": lambda o: np.asarray(len(o.shape(0)), np.int32),
    "RESHAPE": _reshape,
    "REVERSE_V2": _reverse,
    "SHAPE": lambda o: np.asarray(o.shape(0), o.output.dtype),
    "SLICE": _slice,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPACE_TO_DEPTH": _space_to_depth,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
}
