"""Integers with scales: QuantizeLinear, DequantizeLinear, and the operators on quantized values.

Operators on quantized values are written as dequantize, the operator in float, quantize: the form that cells in int8
compute in integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tvmflow.frontends.onnx import tvm_converters
from tvmflow.frontends.onnx.converters.elementwise import like
from tvmflow.frontends.onnx.converters.spatial import convolve
from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of, is_float

_EIGHT_BITS = frozenset({"int8", "uint8"})


def dequantize(node: Node, x: Value, scale: Value, zero: Value | None, axis: int = 1) -> Value:
    """Return (x - zero) * scale in the type of the scale; per tensor or along an axis."""
    r = node.emitter
    if isinstance(x, np.ndarray) and dtype_of(x) not in ("int8", "uint8", "int32"):
        return _apply(node, x.astype(np.int32), scale, None if zero is None else zero.astype(np.int32), axis)
    zero = np.zeros(dims(scale), dtype_of(x)) if zero is None else zero
    scale, zero = _flat(node, scale), _flat(node, zero)
    constants = isinstance(scale, np.ndarray) and isinstance(zero, np.ndarray)
    if constants and dtype_of(x) in (*_EIGHT_BITS, "int32") and dtype_of(scale) == "float32":
        return r.dequantize(x, scale, zero, _axis(axis, x), "float32")
    return _apply(node, r.cast(x, "int32"), scale, r.cast(zero, "int32"), axis)


def _axis(axis: int, x: Value) -> int:
    rank = max(len(dims(x)), 1)
    return axis % rank if -rank <= axis < rank else 0


def _flat(node: Node, value: Value) -> Value:
    """Return a scalar or a vector; a vector of one number is a scalar."""
    size = int(np.prod(dims(value)))
    return node.emitter.reshape_to(value, () if size == 1 else (size,))


def _apply(node: Node, x: Value, scale: Value, zero: Value | None, axis: int) -> Value:
    r, dtype = node.emitter, dtype_of(scale)
    wide = dtype if dtype == "float64" else "float32"
    shape = _along(x, scale, axis)
    shifted = x if zero is None else r.subtract(x, r.reshape_to(zero, shape))
    return r.cast(r.multiply(r.cast(shifted, wide), r.reshape_to(r.cast(scale, wide), shape)), dtype)


def _along(x: Value, scale: Value, axis: int) -> list[int]:
    size = int(np.prod(dims(scale)))
    if size == 1:
        return []
    shape = [1] * len(dims(x))
    shape[_axis(axis, x)] = size
    return shape


def quantize(node: Node, x: Value, scale: Value, zero: Value | None, dtype: str, axis: int = 1) -> Value:
    """Return round(x / scale) + zero in an integer type, saturated."""
    r = node.emitter
    zero = np.zeros(dims(scale), dtype) if zero is None else zero
    scale, zero = _flat(node, scale), _flat(node, zero)
    constants = isinstance(scale, np.ndarray) and isinstance(zero, np.ndarray)
    if constants and dtype in _EIGHT_BITS and dtype_of(x) == "float32" and dtype_of(scale) == "float32":
        return r.quantize(x, scale, zero, _axis(axis, x), dtype)
    shape = _along(x, scale, axis)
    wide = "float64" if dtype_of(x) == "float64" else "float32"
    steps = r.round(r.divide(r.cast(x, wide), r.reshape_to(r.cast(scale, wide), shape)))
    limits = np.iinfo(dtype)
    shifted = r.add(steps, r.reshape_to(r.cast(zero, wide), shape))
    return r.cast(r.clip(shifted, float(limits.min), float(limits.max)), dtype)


def _quantize_linear(node: Node) -> Value:
    x, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    number = node.attributes.get("output_dtype", 0)
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(number)) if number else "uint8"
    dtype = dtype_of(zero) if zero is not None else dtype
    if not dtype.startswith(("int", "uint")) or dtype.endswith(("int4", "int2")):
        raise RefusedNodeError(f"to {dtype} of values that are no constants")
    axis = node.attributes.get("axis", 1)
    if not is_float(x):
        x = node.emitter.cast(x, "float32")
    if len(dims(scale)) > 1:
        scale, zero = _blocks(node, x, scale, zero, axis)
        r = node.emitter
        steps = r.round(r.divide(r.cast(x, "float32"), r.cast(scale, "float32")))
        shifted = steps if zero is None else r.add(steps, r.cast(zero, "float32"))
        return r.cast(r.clip(shifted, float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)), dtype)
    return quantize(node, x, scale, zero, dtype, axis)


def _dequantize_linear(node: Node) -> Value:
    x, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
    axis, r = node.attributes.get("axis", 1), node.emitter
    number = node.attributes.get("output_dtype", 0)
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(number)) if number else dtype_of(scale)
    if dtype_of(x) not in ("int8", "uint8", "int16", "uint16", "int32") and not isinstance(x, np.ndarray):
        raise RefusedNodeError(f"of {dtype_of(x)} values that are no constants")
    if len(dims(scale)) > 1:
        scale, zero = _blocks(node, x, scale, zero, axis)
        shifted = r.cast(x, "int32") if zero is None else r.subtract(r.cast(x, "int32"), r.cast(zero, "int32"))
        return r.cast(r.multiply(r.cast(shifted, "float32"), r.cast(scale, "float32")), dtype)
    return r.cast(dequantize(node, x, scale, zero, axis), dtype)


def _blocks(node: Node, x: Value, scale: Value, zero: Value | None, axis: int) -> tuple[Value, Value | None]:
    """Return scale and zero point for every element of x, from those of blocks along an axis."""
    axis = _axis(axis, x)
    size = node.attributes.get("block_size", 0) or -(-dims(x)[axis] // dims(scale)[axis])
    places = np.arange(dims(x)[axis]) // size

    def spread(value: Value) -> Value:
        if isinstance(value, np.ndarray):
            return np.take(value, places, axis)
        return node.emitter.take(value, places, axis)

    return spread(scale), None if zero is None else spread(zero)


# -- products ---------------------------------------------------------------------------------------------------------


def _shifted(node: Node, value: Value, zero: Value | None, axis: int) -> Value:
    """Return value - zero in int32; a vector of zero points lies along an axis."""
    r = node.emitter
    wide = r.cast(value, "int32")
    if zero is None:
        return wide
    zero = r.cast(zero, "int32")
    if len(dims(zero)) == 1:
        zero = r.reshape_to(zero, _along(value, zero, axis))
    if isinstance(wide, np.ndarray) and isinstance(zero, np.ndarray):
        return wide - zero
    if isinstance(zero, np.ndarray) and not zero.any():
        return wide
    return r.subtract(wide, zero)


def _matmul_integer(node: Node) -> Value:
    a, b = node.inputs[:2]
    left, right = _shifted(node, a, node.input(2), -2 % max(len(dims(a)), 2)), _shifted(node, b, node.input(3), -1)
    return node.emitter.matmul(left, right)


def _conv_integer(node: Node) -> Value:
    x = _shifted(node, node.inputs[0], node.input(2), 1)
    weight = _shifted(node, node.inputs[1], node.input(3), 0)
    return convolve(node, x, weight, None)


def _qlinear_matmul(node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    r = node.emitter
    product = r.cast(r.matmul(_shifted(node, a, a_zero, len(dims(a)) - 2), _shifted(node, b, b_zero, -1)), "float32")
    row = _vector_scale(node, a_scale, a, len(dims(a)) - 2)
    column = _vector_scale(node, b_scale, b, len(dims(b)) - 1)
    # As ONNX Runtime: the integer sum times one factor.
    factor = r.divide(r.multiply(row, column), r.cast(_flat(node, y_scale), "float32"))
    return _requantized(node, r.multiply(product, factor), y_zero)


def _vector_scale(node: Node, scale: Value, of: Value, axis: int) -> Value:
    flat = node.emitter.cast(scale, "float32")
    return node.emitter.reshape_to(flat, _along(of, flat, axis)) if len(dims(flat)) <= 1 else flat


def _requantized(node: Node, steps: Value, zero: Value) -> Value:
    r, dtype = node.emitter, dtype_of(zero)
    limits = np.iinfo(dtype)
    shifted = r.add(r.round(steps), r.cast(_flat(node, zero), "float32"))
    return r.cast(r.clip(shifted, float(limits.min), float(limits.max)), dtype)


def _qlinear_conv(node: Node) -> Value:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    bias, r = node.input(8), node.emitter
    if bias is not None:
        bias = dequantize(node, bias, np.asarray(x_scale * w_scale, np.float32), None, 0)
    data = dequantize(node, x, x_scale, x_zero)
    found = convolve(node, data, dequantize(node, weight, w_scale, w_zero, 0), None)
    if bias is not None:
        found = r.add(
            found,
            r.reshape_to(bias, [1, -1 if isinstance(bias, np.ndarray) else dims(bias)[0]] + [1] * (len(dims(x)) - 2)),
        )
    return quantize(node, found, y_scale, y_zero, dtype_of(y_zero))


def _qgemm(node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    bias, y_scale, y_zero = (node.input(place) for place in (6, 7, 8))
    r, alpha = node.emitter, node.attributes.get("alpha", 1.0)
    left = dequantize(node, a, a_scale, a_zero)
    right = dequantize(node, b, b_scale, b_zero, 0 if node.attributes.get("transB", 0) else 1)
    left = r.transpose(left, [1, 0]) if node.attributes.get("transA", 0) else left
    right = r.transpose(right, [1, 0]) if node.attributes.get("transB", 0) else right
    found = r.matmul(left, right)
    found = found if alpha == 1.0 else r.multiply(found, like(found, alpha))
    if bias is not None:
        scale = np.asarray(alpha * np.asarray(a_scale) * np.asarray(b_scale), np.float32)
        found = r.add(found, dequantize(node, bias, scale, None, len(dims(bias)) - 1))
    return found if y_scale is None else quantize(node, found, y_scale, y_zero, dtype_of(y_zero), 1)


def dynamic_quantize(node: Node, x: Value) -> tuple[Value, Value, Value]:
    """Return uint8 values, scale and zero point from the range of the values."""
    r = node.emitter
    low, high = r.minimum(r.min(x), np.float32(0)), r.maximum(r.max(x), np.float32(0))
    scale = r.divide(r.subtract(high, low), np.float32(255))
    zero = r.cast(r.round(r.clip(r.divide(r.negative(low), scale), 0.0, 255.0)), "uint8")
    return quantize(node, x, scale, zero, "uint8"), scale, zero


def _dynamic_quantize_matmul(node: Node) -> Value:
    x, b, b_scale = node.inputs[:3]
    a, a_scale, a_zero = dynamic_quantize(node, x)
    return scaled_product(node, a, b, a_scale, b_scale, a_zero, node.input(3), node.input(4))


def _matmul_integer_to_float(node: Node) -> Value:
    a, b, a_scale, b_scale = node.inputs[:4]
    return scaled_product(node, a, b, a_scale, b_scale, node.input(4), node.input(5), node.input(6))


def scaled_product(
    node: Node, a: Value, b: Value, a_scale: Value, b_scale: Value, a_zero: Value, b_zero: Value, bias: Value
) -> Value:
    """Return the product of integers with scales, in float."""
    r = node.emitter
    product = r.cast(r.matmul(_shifted(node, a, a_zero, -2), _shifted(node, b, b_zero, -1)), "float32")
    found = r.multiply(product, r.multiply(_flat(node, a_scale), _flat(node, b_scale)))
    return found if bias is None else r.add(found, bias)


# -- contrib operators on quantized values ----------------------------------------------------------------------------


def _binary(combine: Callable[[Any, Value, Value], Value]) -> Callable[[Node], Value]:
    def convert(node: Node) -> Value:
        a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (node.input(place) for place in range(8))
        found = combine(node.emitter, dequantize(node, a, a_scale, a_zero), dequantize(node, b, b_scale, b_zero))
        return quantize(node, found, scale, zero, dtype_of(a) if zero is None else dtype_of(zero))

    return convert


def _unary(compute: Callable[[Node, Value], Value]) -> Callable[[Node], Value]:
    def convert(node: Node) -> Value:
        x, x_scale, x_zero, scale, zero = (node.input(place) for place in range(5))
        found = compute(node, dequantize(node, x, x_scale, x_zero))
        return quantize(node, found, scale, zero, dtype_of(x) if zero is None else dtype_of(zero))

    return convert


def _leaky(node: Node, x: Value) -> Value:
    return node.emitter.nn__leakyrelu(x, node.attributes.get("alpha", 0.01))


def _global_mean(node: Node, x: Value) -> Value:
    first = 1 if node.attributes.get("channels_last", 0) else 2
    return node.emitter.mean(x, [first + axis for axis in range(len(dims(x)) - 2)], keepdims=True)


def _pooled(node: Node, x: Value) -> Value:
    if node.attributes.get("channels_last", 0):
        x = _channels_first(node, x)
    way = tvm_converters.converter_in_tvm("AveragePool", 19)
    found = node.emitter.builder.emit(way(Node(**{**vars(node), "inputs": (x,), "op": "AveragePool"})))
    return _channels_last(node, found) if node.attributes.get("channels_last", 0) else found


def _channels_first(node: Node, x: Value) -> Value:
    rank = len(dims(x))
    return node.emitter.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def _channels_last(node: Node, x: Value) -> Value:
    return node.emitter.transpose(x, [0, *range(2, len(dims(x))), 1])


def _max_pool_of_channels_last(node: Node) -> Value:
    from tvmflow.frontends.onnx.converters.spatial import SPATIAL

    x = _channels_first(node, node.inputs[0])
    found = SPATIAL["MaxPool"](Node(**{**vars(node), "inputs": (x,), "op": "MaxPool", "version": 12}))
    return _channels_last(node, node.emitter.builder.emit(found))


def _softmax(node: Node, x: Value) -> Value:
    return node.emitter.nn__softmax(x, node.attributes.get("axis", -1))


def _qlinear_concat(node: Node) -> Value:
    scale, zero, *rest = node.inputs
    parts = [dequantize(node, *rest[at : at + 3]) for at in range(0, len(rest), 3)]
    return quantize(node, node.emitter.concat(parts, node.attributes["axis"]), scale, zero, dtype_of(zero))


QUANTIZED = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": lambda node: dynamic_quantize(node, node.inputs[0]),
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
QUANTIZED_CONTRIB = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QGemm": _qgemm,
    "QLinearAdd": _binary(lambda r, a, b: r.add(a, b)),
    "QLinearMul": _binary(lambda r, a, b: r.multiply(a, b)),
    "QLinearSigmoid": _unary(lambda node, x: node.emitter.sigmoid(x)),
    "QLinearLeakyRelu": _unary(_leaky),
    "QLinearGlobalAveragePool": _unary(_global_mean),
    "QLinearAveragePool": _unary(_pooled),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearConcat": _qlinear_concat,
    "NhwcMaxPool": _max_pool_of_channels_last,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
}
