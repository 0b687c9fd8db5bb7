"""Convert TFLite's convolutions and matrix products to Relax.

Weights are stored as integers in quantized files. If only they are (dynamic range quantization), the runtime quantizes
each sample of the input to 8 bits, by its own smallest and largest value; so does what is emitted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.operation import (
    Convert,
    Operation,
    to_channels_first,
    to_channels_last,
    transposed,
)
from tvmflow.frontends.tensorflow.tflite_graph import Array

_RELAX = relax.op
_SAME, _VALID = 0, 1


def same_padding(extent: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return padding before and behind an axis so that the output has extent / stride elements, rounded up."""
    total = max((-(-extent // stride) - 1) * stride + kernel - extent, 0)
    return total // 2, total - total // 2


def window_padding(
    padding: int, extents: Sequence[int], kernels: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the paddings before and behind each axis."""
    if padding == _VALID:
        return [0] * len(extents), [0] * len(extents)
    pairs = [same_padding(*numbers) for numbers in zip(extents, kernels, strides, strict=True)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _weight(o: Operation, index: int) -> Array:
    """Return a weight as real numbers; it must be known."""
    return np.asarray(o.array(index), np.float32)


def _is_dynamic(o: Operation, data: int, weight: int) -> bool:
    """Whether the runtime quantizes the input, since only the weight is quantized."""
    return o.tensor(data).dtype == "float32" and o.tensor(weight).is_quantized


def _data(o: Operation, index: int, weight: int, rows: int = 1) -> Any:
    """Return an input as real numbers: what the runtime's integers stand for, if it quantizes the input.

    rows: axes that number the samples of which each has a scale of its own.
    """
    x = o.value(index)
    if not _is_dynamic(o, index, weight):
        return x
    axes = list(range(rows, len(o.shape(index))))
    if getattr(o.options, "asymmetricQuantizeInputs", True) is False:
        return _quantize_symmetric(o, x, axes)
    return _quantize_asymmetric(o, x, axes)


def _nonzero(o: Operation, scale: Any) -> Any:
    """Return scales with 1 in place of 0: such a sample holds zeros only."""
    scale = o.emit(scale)
    return o.emit(_RELAX.where(_RELAX.equal(scale, o.constant(0.0, "float32")), o.constant(1.0, "float32"), scale))


def _quantize_asymmetric(o: Operation, x: Any, axes: list[int]) -> Any:
    zero = o.constant(0.0, "float32")
    low = o.emit(_RELAX.minimum(_RELAX.min(x, axes, keepdims=True), zero))
    high = o.emit(_RELAX.maximum(_RELAX.max(x, axes, keepdims=True), zero))
    scale = _nonzero(o, _RELAX.multiply(_RELAX.subtract(high, low), o.constant(1 / 255, "float32")))
    offset = o.emit(_RELAX.round(_RELAX.subtract(o.constant(-128.0, "float32"), _RELAX.divide(low, scale))))
    steps = _RELAX.add(_RELAX.round(_RELAX.divide(x, scale)), offset)
    return o.emit(_RELAX.multiply(_RELAX.subtract(_RELAX.clip(o.emit(steps), -128, 127), offset), scale))


def _quantize_symmetric(o: Operation, x: Any, axes: list[int]) -> Any:
    largest = _RELAX.max(_RELAX.abs(x), axes, keepdims=True)
    scale = _nonzero(o, _RELAX.multiply(largest, o.constant(1 / 127, "float32")))
    steps = _RELAX.clip(_RELAX.round(_RELAX.divide(x, scale)), -127, 127)
    return o.emit(_RELAX.multiply(steps, scale))


def _bias(o: Operation, index: int, data: int, weight: int) -> Array:
    """Return a bias as real numbers; its scale, if not given, is the product of those of data and weight."""
    tensor, bias = o.tensor(index), o.stored(index)
    if not isinstance(bias, np.ndarray):
        raise o.unsupported("with a computed bias")
    if bias.dtype.kind == "f":
        return bias.astype(np.float32)
    if tensor.quantization is not None:
        return tensor.real(bias)
    scales = [o.tensor(at).quantization for at in (data, weight)]
    factors = [np.float64(1) if scale is None else scale.scale.astype(np.float64) for scale in scales]
    return np.asarray(bias * (factors[0] * factors[1]), np.float32)


def _finish(o: Operation, made: Any, bias: int, data: int, weight: int) -> Any:
    """Add the bias, if there is one, and apply the activation."""
    made = o.emit(made)
    if o.has(bias):
        made = o.emit(_RELAX.add(made, _bias_value(o, bias, data, weight)))
    return o.activated(made)


def _bias_value(o: Operation, index: int, data: int, weight: int) -> Any:
    return o.constant(_bias(o, index, data, weight)) if o.is_known(index) else o.value(index)


def _convolution(o: Operation) -> Any:
    kernel = _weight(o, 1)  # (O, KH, KW, I / groups)
    groups = o.shape(0)[3] // kernel.shape[3]
    return _slide(o, kernel.shape[1:3], kernel.transpose(1, 2, 3, 0), "HWIO", groups)


def _depthwise(o: Operation) -> Any:
    kernel, channels = _weight(o, 1), o.shape(0)[3]  # (1, KH, KW, C * multiplier)
    if channels > 1:
        return _slide(o, kernel.shape[1:3], kernel.transpose(1, 2, 3, 0), "HWOI", channels)
    return _slide(o, kernel.shape[1:3], kernel.transpose(1, 2, 0, 3), "HWIO", channels)


def _slide(o: Operation, window: tuple[int, ...], kernel: Array, layout: str, groups: int) -> Any:
    """Return a convolution of input 0 by a kernel, with the strides, dilation, padding and bias of the operator."""
    options, image = o.options, o.shape(0)[1:3]
    strides = [int(options.strideH), int(options.strideW)]
    dilation = [int(options.dilationHFactor), int(options.dilationWFactor)]
    extents = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    before, behind = window_padding(int(options.padding), image, extents, strides)
    made = _RELAX.nn.conv2d(
        _data(o, 0, 1),
        o.constant(kernel),
        strides=strides,
        padding=[*before, *behind],
        dilation=dilation,
        groups=groups,
        data_layout="NHWC",
        kernel_layout=layout,
    )
    return _finish(o, made, 2, 0, 1)


def _transposed_convolution(o: Operation) -> Any:
    """Convert TRANSPOSE_CONV: inputs are the shape of the output, the weight (O, KH, KW, I), the data and a bias."""
    kernel, options = _weight(o, 1), o.options
    shape = o.integers(0) if o.is_known(0) else list(o.output.shape)
    before, behind, beyond = _transposed_padding(
        int(options.padding),
        o.shape(2)[1:3],
        shape[1:3],
        kernel.shape[1:3],
        [int(options.strideH), int(options.strideW)],
    )
    made = _RELAX.nn.conv2d_transpose(
        to_channels_first(o, _data(o, 2, 1)),
        o.constant(kernel.transpose(3, 0, 1, 2)),
        strides=[int(options.strideH), int(options.strideW)],
        padding=[*before, *behind],
        output_padding=beyond,
    )
    made = o.emit(made)
    if o.has(3):
        made = o.emit(_RELAX.add(made, o.constant(_bias(o, 3, 2, 1).reshape(1, -1, 1, 1))))
    return to_channels_last(o, o.emit(o.activated(made)))


def _transposed_padding(
    padding: int, image: Sequence[int], output: Sequence[int], kernel: Sequence[int], strides: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return what a transposed convolution cuts off before and behind each axis, and adds behind it."""
    before, behind, beyond = [], [], []
    for pixels, made, size, stride in zip(image, output, kernel, strides, strict=True):
        full = (pixels - 1) * stride + size
        # As the runtime: the padding of a convolution from the output to `ceil(output / stride)` pixels.
        rows = -(-made // stride) if padding == _SAME else -(-(made - size + 1) // stride)
        first = max((rows - 1) * stride + size - made, 0) // 2
        before.append(first)
        behind.append(max(full - first - made, 0))
        beyond.append(max(made - (full - first), 0))
    return before, behind, beyond


def _convolution_3d(o: Operation) -> Any:
    options, kernel = o.options, _weight(o, 1)  # (KD, KH, KW, I / groups, O)
    strides = [int(options.strideD), int(options.strideH), int(options.strideW)]
    dilation = [int(options.dilationDFactor), int(options.dilationHFactor), int(options.dilationWFactor)]
    extents = [(size - 1) * step + 1 for size, step in zip(kernel.shape[:3], dilation, strict=True)]
    _, *image, channels = o.shape(0)
    before, behind = window_padding(int(options.padding), image, extents, strides)
    made = _RELAX.nn.conv3d(
        transposed(o, o.value(0), [0, 4, 1, 2, 3]),
        o.constant(kernel.transpose(4, 3, 0, 1, 2)),
        strides=strides,
        padding=[*before, *behind],
        dilation=dilation,
        groups=channels // kernel.shape[3],
    )
    return _finish(o, transposed(o, o.emit(made), [0, 2, 3, 4, 1]), 2, 0, 1)


def _transposed_convolution_3d(o: Operation) -> Any:
    kernel, options = _weight(o, 1), o.options  # (KD, KH, KW, O, I)
    strides = [int(options.strideD), int(options.strideH), int(options.strideW)]
    shape = o.integers(0)
    before, behind, beyond = _transposed_padding(
        int(options.padding), o.shape(2)[1:4], shape[1:4], kernel.shape[:3], strides
    )
    made = _RELAX.nn.conv3d_transpose(
        transposed(o, o.value(2), [0, 4, 1, 2, 3]),
        o.constant(kernel.transpose(4, 3, 0, 1, 2)),
        strides=strides,
        padding=[*before, *behind],
        output_padding=beyond,
    )
    return _finish(o, transposed(o, o.emit(made), [0, 2, 3, 4, 1]), 3, 2, 1)


def _fully_connected(o: Operation) -> Any:
    shape, units = o.shape(0), o.shape(1)[0]
    keeps_axes = bool(o.options is not None and o.options.keepNumDims)
    depth = o.shape(1)[1]
    x = _data_rows(o, depth)
    if o.is_known(1):
        weight = o.constant(_weight(o, 1).T)
    else:
        weight = transposed(o, o.value(1), [1, 0])
    made = _finish(o, _RELAX.matmul(x, weight), 2, 0, 1)
    if keeps_axes and len(shape) != 2:
        return _RELAX.reshape(o.emit(made), (*shape[:-1], units))
    return made


def _data_rows(o: Operation, depth: int) -> Any:
    """Return the input as (rows, depth), quantized for each row if the runtime does that."""
    x, shape = o.value(0), o.shape(0)
    rows = math.prod(shape) // depth
    if shape != (rows, depth):
        x = o.emit(_RELAX.reshape(x, (rows, depth)))
    if not _is_dynamic(o, 0, 1):
        return x
    quantize = _quantize_asymmetric if o.options.asymmetricQuantizeInputs else _quantize_symmetric
    return quantize(o, x, [1])


def _batch_matmul(o: Operation) -> Any:
    x, y = o.value(0), o.value(1)
    if o.options is not None and o.options.adjX:
        x = _swap_last(o, x, len(o.shape(0)))
    if o.tensor(0).dtype == "float32" and o.tensor(1).is_quantized:
        rank = len(o.shape(0))
        quantize = _quantize_asymmetric if o.options.asymmetricQuantizeInputs else _quantize_symmetric
        x = quantize(o, x, [rank - 1])
    if o.options is not None and o.options.adjY:
        y = _swap_last(o, y, len(o.shape(1)))
    if not o.tensor(0).is_quantized and not o.tensor(0).dtype.startswith("float"):
        return _RELAX.matmul(_RELAX.astype(x, "int32"), _RELAX.astype(y, "int32"))
    return _RELAX.matmul(x, y)


def _swap_last(o: Operation, value: Any, rank: int) -> Any:
    return transposed(o, value, [*range(rank - 2), rank - 1, rank - 2])


PRODUCTS: dict[str, Convert] = {
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _convolution,
    "CONV_3D": _convolution_3d,
    "CONV_3D_TRANSPOSE": _transposed_convolution_3d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "FULLY_CONNECTED": _fully_connected,
    "TRANSPOSE_CONV": _transposed_convolution,
}
