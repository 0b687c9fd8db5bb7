"""Convert MXNet's operators that move elements: shapes, slices, pads, lookups, resizes; and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.mxnet.operands import Operands, constant

Converter = Callable[[Operands], Any]


def reshape(o: Operands) -> Any:
    requested = o.integers("shape", ())
    if not requested or o.flag("reverse"):
        raise o.unsupported(f"shape={o.attrs.get('shape')} and reverse={o.attrs.get('reverse', 'False')}")
    return relax.op.reshape(o.values[0], _requested_shape(o, requested))


def _requested_shape(o: Operands, requested: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that codes ask for: 0 an axis as it is, -1 the rest of the elements, -2 all further axes as they
    are, -3 the product of two axes, -4 two axes for one, of the next two sizes.
    """
    shape, sizes, at, left = o.shape, list[int](), 0, list(requested)
    while left:
        code = left.pop(0)
        taken = shape[at : at + (2 if code == -3 else 1)]
        if code == -2:
            sizes, at = [*sizes, *shape[at:]], len(shape)
            continue
        if (code in (0, -3) and len(taken) < (2 if code == -3 else 1)) or code < -4 or (code == -4 and len(left) < 2):
            raise o.wrong("shape")
        if code == -4:
            one, two = left.pop(0), left.pop(0)
            known = max(one, two) if -1 in (one, two) else one
            if not taken or known < 1 or taken[0] % known:
                raise o.wrong("shape")
            sizes += [taken[0] // known if one == -1 else one, taken[0] // known if two == -1 else two]
        else:
            sizes.append(math.prod(taken) if code in (0, -3) else code)
        at += 2 if code == -3 else 1
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // max(known, 1)
    return tuple(sizes)


def _slice(o: Operands) -> Any:
    begin, end = o.optional_integers("begin"), o.optional_integers("end")
    step = o.optional_integers("step") or (None,) * len(begin)
    if not len(begin) == len(end) == len(step) <= len(o.shape) or any((one or 1) < 1 for one in step):
        raise o.unsupported(f"step={o.attrs.get('step')}")
    return relax.op.strided_slice(
        o.values[0],
        axes=list(range(len(begin))),
        begin=[first or 0 for first in begin],
        end=[size if last is None else last for last, size in zip(end, o.shape, strict=False)],
        strides=[one or 1 for one in step],
    )


def _slice_axis(o: Operands) -> Any:
    axis = o.axis("axis", 0)
    begin, end = o.integer("begin", 0), o.integer("end", o.shape[axis])
    return relax.op.strided_slice(o.values[0], axes=[axis], begin=[begin], end=[end])


def _slice_like(o: Operands) -> Any:
    wanted = o.shape_of(o.values[1])
    axes = [axis % len(o.shape) for axis in o.integers("axes", tuple(range(len(o.shape))))]
    return relax.op.strided_slice(o.values[0], axes=axes, begin=[0] * len(axes), end=[wanted[axis] for axis in axes])


def _crop(o: Operands) -> Any:
    """Crop height and width to those of a second operand, or to h_w."""
    sizes = o.shape_of(o.values[1])[2:] if len(o.values) > 1 else o.integers("h_w", (0, 0))
    offsets = o.integers("offset", (0, 0))
    if o.flag("center_crop"):
        offsets = tuple((have - size) // 2 for have, size in zip(o.shape[2:], sizes, strict=True))
    ends = [first + size for first, size in zip(offsets, sizes, strict=True)]
    return relax.op.strided_slice(o.values[0], axes=[2, 3], begin=list(offsets), end=ends)


def _split(o: Operands) -> Any:
    """Return the parts of equal size along an axis, a list."""
    count, axis = o.integer("num_outputs", 1), o.axis("axis", 1)
    if count < 1 or o.shape[axis] % count:
        raise o.wrong("num_outputs")
    size = o.shape[axis] // count
    parts = [
        relax.op.strided_slice(o.values[0], axes=[axis], begin=[at * size], end=[at * size + size])
        for at in range(count)
    ]
    return [relax.op.squeeze(o.emit(part), [axis]) for part in parts] if o.flag("squeeze_axis") else parts


def _stack(o: Operands) -> Any:
    axis = o.integer("axis", 0)
    axis += (len(o.shape) + 1) * (axis < 0)
    return relax.op.concat([o.emit(relax.op.expand_dims(value, axis)) for value in o.values], axis=axis)


def _swap_axes(o: Operands) -> Any:
    order, one, two = list(range(len(o.shape))), o.axis("dim1", 0), o.axis("dim2", 0)
    order[one], order[two] = order[two], order[one]
    return relax.op.permute_dims(o.values[0], order)


def _pad(o: Operands) -> Any:
    widths, mode = list(o.integers("pad_width", ())), o.attrs.get("mode", "constant")
    if mode == "constant":
        return relax.op.nn.pad(o.values[0], widths, pad_value=o.number("constant_value", 0.0))
    value = o.values[0]
    for axis, size in enumerate(o.shape):
        before, after = widths[2 * axis : 2 * axis + 2]
        if before or after:
            places = np.pad(np.arange(size), (before, after), "reflect" if mode == "reflect" else "edge")
            value = o.emit(relax.op.take(value, relax.const(places.astype(np.int64), "int64"), axis=axis))
    return value


def _topk(o: Operands) -> Any:
    """Return the largest or smallest values of an axis, their places, or both; all are floats."""
    kind, count = o.attrs.get("ret_typ", "indices"), o.integer("k", 1)
    if kind not in ("value", "indices", "both") or not o.integers("axis", (-1,)) or count < 1:
        raise o.unsupported(f"ret_typ={kind}, axis={o.attrs.get('axis')} and k={count}")
    options = {"axis": o.axis("axis", -1), "largest": not o.flag("is_ascend"), "dtype": "int32"}
    both = o.emit(relax.op.topk(o.values[0], count, ret_type="both", **options))
    values, places = both[0], relax.op.astype(both[1], "float32")
    return {"value": [values], "indices": [places], "both": [values, places]}[kind]


def _flip(o: Operands) -> Any:
    value = o.values[0]
    for axis in o.integers("axis", ()):
        value = o.emit(relax.op.flip(value, axis % len(o.shape)))
    return value


def _repeat(o: Operands) -> Any:
    if not o.integers("axis", ()):
        raise o.unsupported("no axis")
    return relax.op.repeat(o.values[0], o.integer("repeats", 1), o.axis("axis", 0))


def _upsampling(o: Operands) -> Any:
    if o.attrs.get("sample_type", "nearest") != "nearest" or len(o.values) != 1:
        raise o.unsupported(f"sample_type={o.attrs.get('sample_type')} and {len(o.values)} operands")
    scale = o.integer("scale", 1)
    return relax.op.repeat(o.emit(relax.op.repeat(o.values[0], scale, 2)), scale, 3)


def _bilinear_resize(o: Operands) -> Any:
    if o.attrs.get("mode", "size") != "size" or len(o.values) != 1:
        raise o.unsupported(f"mode={o.attrs.get('mode')}")
    sizes: tuple[int, ...] = (o.integer("height", 1), o.integer("width", 1))
    if "scale_height" in o.attrs or "scale_width" in o.attrs:
        scales = o.number("scale_height", 1.0), o.number("scale_width", 1.0)
        sizes = tuple(int(size * scale) for size, scale in zip(o.shape[2:], scales, strict=True))
    rule = "align_corners" if o.flag("align_corners", True) else "half_pixel"
    return relax.op.image.resize2d(
        o.values[0], sizes, layout="NCHW", method="linear", coordinate_transformation_mode=rule
    )


def _adaptive_pool(o: Operands) -> Any:
    sizes = o.integers("output_size", (1,))
    return relax.op.nn.adaptive_avg_pool2d(o.values[0], list(sizes * 2 if len(sizes) == 1 else sizes))


def _lookup(table: Any, indices: Any, rows: int, axis: int = 0) -> Any:
    """Take rows by float indices, which are cut to integers and clipped to the table."""
    clipped = relax.op.clip(relax.op.astype(indices, "int64"), 0, rows - 1)
    return relax.op.take(table, clipped, axis=axis)


def _embedding(o: Operands) -> Any:
    return _lookup(o.values[1], o.values[0], o.array(1).shape[0])


def _take(o: Operands) -> Any:
    if o.attrs.get("mode", "clip") != "clip":
        raise o.unsupported(f"mode={o.attrs['mode']}")
    axis = o.axis("axis", 0)
    return _lookup(o.values[0], o.values[1], o.shape[axis], axis)


def _matrix_product(o: Operands) -> Any:
    operands = []
    for value, is_transposed in zip(o.values, (o.flag("transpose_a"), o.flag("transpose_b")), strict=True):
        axes = list(range(len(o.shape_of(value))))
        if o.op == "dot" and len(axes) > 2:
            raise o.unsupported(f"{len(axes)} axes")
        order = [*axes[:-2], *axes[-2:][::-1]]
        operands.append(o.emit(relax.op.permute_dims(value, order)) if is_transposed else value)
    return relax.op.matmul(*operands)


def _depth_to_space(o: Operands) -> Any:
    n, c, h, w = o.shape
    b = o.integer("block_size", 1)
    parts = o.emit(relax.op.reshape(o.values[0], (n, b, b, c // (b * b), h, w)))
    return relax.op.reshape(o.emit(relax.op.permute_dims(parts, [0, 3, 4, 1, 5, 2])), (n, c // (b * b), h * b, w * b))


def _space_to_depth(o: Operands) -> Any:
    n, c, h, w = o.shape
    b = o.integer("block_size", 1)
    parts = o.emit(relax.op.reshape(o.values[0], (n, c, h // b, b, w // b, b)))
    return relax.op.reshape(o.emit(relax.op.permute_dims(parts, [0, 3, 5, 1, 2, 4])), (n, c * b * b, h // b, w // b))


def _broadcast(o: Operands) -> Any:
    wanted = o.shape_of(o.values[1]) if len(o.values) > 1 else o.integers("shape", ())
    return relax.op.broadcast_to(o.values[0], tuple(size or have for size, have in zip(wanted, o.shape, strict=True)))


def _broadcast_axis(o: Operands) -> Any:
    sizes = list(o.shape)
    for axis, size in zip(o.integers("axis", ()), o.integers("size", ()), strict=True):
        sizes[axis] = size
    return relax.op.broadcast_to(o.values[0], tuple(sizes))


def _filled(number: float) -> Converter:
    return lambda o: constant(np.full(o.integers("shape", ()), o.number("value", number)))


def _arange(o: Operands) -> Any:
    start, stop = o.number("start", 0.0), o.number("stop", math.inf)
    if stop == math.inf:  # one number is the end
        start, stop = 0.0, start
    return constant(np.repeat(np.arange(start, stop, o.number("step", 1.0)), o.integer("repeat", 1)))


def _cast(o: Operands) -> Any:
    if o.attrs.get("dtype") not in ("float16", "float32", "float64"):
        raise o.unsupported(f"dtype={o.attrs.get('dtype')}")
    return o.values[0]


MOVES: dict[str, Converter] = {
    "Reshape": reshape,
    "reshape": reshape,
    "transpose": lambda o: relax.op.permute_dims(o.values[0], list(o.integers("axes", ())) or None),
    "expand_dims": lambda o: relax.op.expand_dims(o.values[0], o.integer("axis", 0)),
    "squeeze": lambda o: relax.op.squeeze(o.values[0], list(o.integers("axis", ())) or None),
    "Concat": lambda o: relax.op.concat(list(o.values), axis=o.axis("dim", 1)),
    "concat": lambda o: relax.op.concat(list(o.values), axis=o.axis("dim", 1)),
    "slice": _slice,
    "crop": _slice,
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    "Crop": _crop,
    "SliceChannel": _split,
    "split": _split,
    "stack": _stack,
    "topk": _topk,
    "tile": lambda o: relax.op.tile(o.values[0], list(o.integers("reps", ()))),
    "repeat": _repeat,
    "Pad": _pad,
    "pad": _pad,
    "SwapAxis": _swap_axes,
    "swapaxes": _swap_axes,
    "reverse": _flip,
    "flip": _flip,
    "UpSampling": _upsampling,
    "_contrib_BilinearResize2D": _bilinear_resize,
    "_contrib_AdaptiveAvgPooling2D": _adaptive_pool,
    "Embedding": _embedding,
    "take": _take,
    "dot": _matrix_product,
    "batch_dot": _matrix_product,
    "depth_to_space": _depth_to_space,
    "space_to_depth": _space_to_depth,
    "broadcast_like": _broadcast,
    "broadcast_to": _broadcast,
    "broadcast_axis": _broadcast_axis,
    "broadcast_axes": _broadcast_axis,
    "_zeros": _filled(0.0),
    "_ones": _filled(1.0),
    "_full": _filled(0.0),
    "zeros_like": lambda o: relax.op.zeros_like(o.values[0]),
    "ones_like": lambda o: relax.op.ones_like(o.values[0]),
    "_arange": _arange,
    "Cast": _cast,
    "cast": _cast,
    "amp_cast": _cast,
}
