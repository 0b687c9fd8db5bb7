"""Convert TFLite's pools, resizing, normalizations, reductions and sorting to Relax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.operation import Convert, Operation, to_channels_first, to_channels_last
from tvmflow.frontends.tensorflow.products import window_padding
from tvmflow.frontends.tensorflow.tflite_graph import Array
from tvmflow.ir.tvm_compat import type_of

_RELAX = relax.op


def _pool(o: Operation, function: Callable[..., Any], value: Any) -> Any:
    options = o.options
    kernel, strides = (
        [int(options.filterHeight), int(options.filterWidth)],
        [int(options.strideH), int(options.strideW)],
    )
    before, behind = window_padding(int(options.padding), o.shape(0)[1:3], kernel, strides)
    return o.emit(function(value, pool_size=kernel, strides=strides, padding=[*before, *behind], layout="NHWC"))


def _average_pool(o: Operation) -> Any:
    mean = _pool(o, _RELAX.nn.avg_pool2d, o.value(0))
    if o.tensor(0).is_quantized:
        mean = _round_mean(o, mean)
    return o.activated(mean)


def _round_mean(o: Operation, mean: Any) -> Any:
    """Round the mean of integers to the nearest, halves away from zero, as the runtime does: they are frequent.

    The mean is that of real numbers, from which the sum of the integers is computed again.
    """
    quantization, counts = o.tensor(0).quantization, _window_counts(o)
    assert quantization is not None
    scale, zero = float(quantization.scale[0]), int(quantization.zero[0])
    total = _RELAX.round(_RELAX.multiply(mean, o.constant(counts / scale, "float32")))
    total = o.emit(_RELAX.add(total, o.constant(counts * zero, "float32")))
    half = _RELAX.multiply(_RELAX.sign(total), o.constant(counts // 2, "float32"))
    rounded = _RELAX.trunc(_RELAX.divide(_RELAX.add(total, half), o.constant(counts, "float32")))
    shifted = _RELAX.subtract(rounded, o.constant(zero, "float32"))
    return o.emit(_RELAX.multiply(shifted, o.constant(scale, "float32")))


def _window_counts(o: Operation) -> Array:
    """Return how many elements besides padding each window reads: a number, or (1, OH, OW, 1)."""
    options, counts = o.options, []
    for extent, kernel, stride in zip(
        o.shape(0)[1:3], (options.filterHeight, options.filterWidth), (options.strideH, options.strideW), strict=True
    ):
        (before,), (behind,) = window_padding(int(options.padding), [extent], [int(kernel)], [int(stride)])
        ones = np.pad(np.ones(extent), (before, behind))
        starts = range(0, len(ones) - int(kernel) + 1, int(stride))
        counts.append(np.asarray([ones[start : start + int(kernel)].sum() for start in starts]))
    grid = np.outer(*counts)
    return grid.reshape(-1)[0] if np.all(grid == grid[0, 0]) else grid[None, :, :, None]


def _l2_pool(o: Operation) -> Any:
    x = o.value(0)
    return o.activated(_RELAX.sqrt(_pool(o, _RELAX.nn.avg_pool2d, o.emit(_RELAX.multiply(x, x)))))


def _resize_linear(o: Operation) -> Any:
    mode = "align_corners" if o.options.alignCorners else "half_pixel" if o.options.halfPixelCenters else "asymmetric"
    size = o.integers(1)
    if o.tensor(0).dtype == "int16":
        return _resize_in_integers(o, size)
    if o.options.alignCorners and 1 in size:
        mode = "asymmetric"
    image = to_channels_first(o, o.value(0))
    return to_channels_last(o, o.emit(_RELAX.image.resize2d(image, tuple(size), None, "NCHW", "linear", mode)))


def _resize_in_integers(o: Operation, size: list[int]) -> Any:
    """Interpolate as the runtime does between 16-bit integers: weights are multiples of 1 / 1024."""
    image = o.value(0)
    for axis, made in zip((1, 2), size, strict=True):
        extent = o.shape(0)[axis]
        step = ((1 << 10) * extent + made // 2) // made
        if o.options.alignCorners and made > 1:
            step = ((1 << 10) * (extent - 1) + (made - 1) // 2) // (made - 1)
        places = np.arange(made) * step
        if o.options.halfPixelCenters:
            places += step // 2 - (1 << 9)
        first = np.maximum(places // (1 << 10), 0)
        second = np.clip(-(-places // (1 << 10)), 0, extent - 1)
        share = (places - (first << 10)) / (1 << 10)
        column = np.ones(4, np.int64)
        column[axis] = made
        rows = [o.emit(_RELAX.take(image, o.constant(part, "int32"), axis=axis)) for part in (first, second)]
        change = o.emit(_RELAX.subtract(rows[1], rows[0]))
        image = o.emit(_RELAX.add(rows[0], _RELAX.multiply(change, o.constant(share.reshape(column), "float32"))))
    return image


def _resize_nearest(o: Operation) -> Any:
    image, size, pixels = o.value(0), o.integers(1), o.shape(0)[1:3]
    plain = not o.options.alignCorners and not o.options.halfPixelCenters
    if plain and all(made % extent == 0 for made, extent in zip(size, pixels, strict=True)):
        resized = _RELAX.image.resize2d(
            to_channels_first(o, image), tuple(size), None, "NCHW", "nearest_neighbor", "asymmetric", "floor"
        )
        return to_channels_last(o, o.emit(resized))
    for axis, extent, made in zip((1, 2), pixels, size, strict=True):
        image = o.emit(_RELAX.take(image, o.constant(_nearest(o, extent, made), "int32"), axis=axis))
    return image


def _nearest(o: Operation, extent: int, made: int) -> Array:
    """Return which pixel each pixel of a resized axis shows, in the runtime's float32."""
    align = bool(o.options.alignCorners) and made > 1
    scale = np.float32((extent - 1) / np.float32(made - 1)) if align else np.float32(extent / np.float32(made))
    offset = np.float32(0.5 if o.options.halfPixelCenters else 0)
    places = (np.arange(made, dtype=np.float32) + offset) * scale
    rounded = np.floor(places + np.float32(0.5)) if o.options.alignCorners else np.floor(places)
    return np.asarray(np.clip(rounded, 0, extent - 1), np.int32)


def _softmax(o: Operation) -> Any:
    x, beta = o.value(0), float(o.options.beta) if o.options is not None else 1.0
    if beta not in (0.0, 1.0):
        x = o.emit(_RELAX.multiply(x, o.number(beta)))
    return _RELAX.nn.softmax(x, axis=-1)


def _l2_normalization(o: Operation) -> Any:
    x = o.value(0)
    total = _RELAX.sum(_RELAX.multiply(x, x), [len(o.shape(0)) - 1], keepdims=True)
    return o.activated(_RELAX.divide(x, _RELAX.maximum(_RELAX.sqrt(total), o.number(1e-6))))


def _local_response(o: Operation) -> Any:
    """Divide by a power of the sum of the squares of the neighbouring channels."""
    options, x, radius = o.options, o.value(0), int(o.options.radius)
    rank, channels = len(o.shape(0)), o.shape(0)[-1]
    band = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels))) <= radius
    sums = _RELAX.matmul(o.emit(_RELAX.multiply(x, x)), o.constant(band, "float32"))
    assert rank >= 2
    base = _RELAX.add(_RELAX.multiply(sums, o.number(float(options.alpha))), o.number(float(options.bias)))
    return _RELAX.multiply(x, _RELAX.power(base, o.number(-float(options.beta))))


def _axes(o: Operation) -> list[int]:
    rank = len(o.shape(0))
    return sorted({axis % rank for axis in o.integers(1)})


def _reduction(function: Callable[..., Any]) -> Convert:
    def convert(o: Operation) -> Any:
        axes, keeps = _axes(o), bool(o.options is not None and o.options.keepDims)
        if not axes:
            return o.value(0)
        return function(o.value(0), axes, keepdims=keeps)

    return convert


def _mean(o: Operation) -> Any:
    if o.tensor(0).is_quantized or o.tensor(0).dtype.startswith("float"):
        return _reduction(_RELAX.mean)(o)
    count = int(np.prod([o.shape(0)[axis] for axis in _axes(o)]))
    total = o.emit(_reduction(_RELAX.sum)(o))
    dtype = o.tensor(0).dtype
    half = _RELAX.astype(_RELAX.floor_divide(_RELAX.abs(total), o.constant(count, dtype)), dtype)
    return _RELAX.multiply(_RELAX.sign(total), half)  # rounded towards zero, as in C


def _reduction_of_flags(function: Callable[..., Any]) -> Convert:
    def convert(o: Operation) -> Any:
        as_numbers = o.emit(_RELAX.astype(o.value(0), "int32"))
        made = function(as_numbers, _axes(o), keepdims=bool(o.options is not None and o.options.keepDims))
        return _RELAX.astype(o.emit(made), "bool")

    return convert


def _arg(function: Callable[..., Any]) -> Convert:
    def convert(o: Operation) -> Any:
        axis = o.integers(1)[0] % len(o.shape(0))
        return _as_type(o, function(o.value(0), axis=axis), o.output.dtype)

    return convert


def _as_type(o: Operation, value: Any, dtype: str) -> Any:
    value = o.emit(value)
    return value if str(type_of(value).dtype) == dtype else o.emit(_RELAX.astype(value, dtype))


def _cumulative_sum(o: Operation) -> Any:
    axis = o.integers(1)[0] % len(o.shape(0))
    x = o.value(0)
    if o.options.reverse:
        x = o.emit(_RELAX.flip(x, axis))
    x = o.emit(_RELAX.cumsum(x, axis, exclusive=bool(o.options.exclusive)))
    return _RELAX.flip(x, axis) if o.options.reverse else x


def _top_k(o: Operation) -> Any:
    (k,) = o.integers(1)
    found = o.emit(_RELAX.topk(o.value(0), k=k, axis=-1, ret_type="both", largest=True, dtype="int32"))
    return tuple(o.emit(relax.TupleGetItem(found, index)) for index in (0, 1))


def _fourier(o: Operation) -> Any:
    """Return a transform of real signals by two products with tables; the last axis is real and imaginary part."""
    height, width = o.integers(1)
    shape = o.shape(0)
    if height != 1 or len(shape) < 2 or shape[-2] != 1:
        raise o.unsupported("of more than one row")
    x = o.value(0)
    if shape[-1] < width:
        x = o.emit(_RELAX.nn.pad(x, [0, 0] * (len(shape) - 1) + [0, width - shape[-1]]))
    elif shape[-1] > width:
        x = o.emit(_RELAX.strided_slice(x, axes=[len(shape) - 1], begin=[0], end=[width]))
    angles = 2 * np.pi * (np.outer(np.arange(width), np.arange(width // 2 + 1)) % width) / width
    parts = [o.emit(_RELAX.matmul(x, o.constant(table, "float32"))) for table in (np.cos(angles), -np.sin(angles))]
    return _RELAX.stack(parts, axis=len(shape))


def _part(index: int) -> Convert:
    def convert(o: Operation) -> Any:
        rank = len(o.shape(0))
        part = _RELAX.strided_slice(o.stored(0), axes=[rank], begin=[index], end=[index + 1])
        return _RELAX.squeeze(o.emit(part), [rank])

    return convert


def _complex_magnitude(o: Operation) -> Any:
    pair = o.stored(0)
    return _RELAX.sqrt(_RELAX.sum(_RELAX.multiply(pair, pair), [len(o.shape(0))]))


WINDOWS: dict[str, Convert] = {
    "ARG_MAX": _arg(_RELAX.argmax),
    "ARG_MIN": _arg(_RELAX.argmin),
    "AVERAGE_POOL_2D": _average_pool,
    "COMPLEX_ABS": _complex_magnitude,
    "CUMSUM": _cumulative_sum,
    "IMAG": _part(1),
    "L2_NORMALIZATION": _l2_normalization,
    "L2_POOL_2D": _l2_pool,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
    "LOG_SOFTMAX": lambda o: _RELAX.nn.log_softmax(o.value(0), axis=-1),
    "MAX_POOL_2D": lambda o: o.activated(_pool(o, _RELAX.nn.max_pool2d, o.value(0))),
    "MEAN": _mean,
    "REAL": _part(0),
    "REDUCE_ALL": _reduction_of_flags(_RELAX.min),
    "REDUCE_ANY": _reduction_of_flags(_RELAX.max),
    "REDUCE_MAX": _reduction(_RELAX.max),
    "REDUCE_MIN": _reduction(_RELAX.min),
    "REDUCE_PROD": _reduction(_RELAX.prod),
    "RESIZE_BILINEAR": _resize_linear,
    "RESIZE_NEAREST_NEIGHBOR": _resize_nearest,
    "RFFT2D": _fourier,
    "SOFTMAX": _softmax,
    "SUM": _reduction(_RELAX.sum),
    "TOPK_V2": _top_k,
}
