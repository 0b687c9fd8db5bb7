"""Convert elementwise operators, with ONNX's edge cases: NaN, infinities, integer division, bounds."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
from tvm import te, tirx, topi

from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of, is_float
from tvmflow.support.dtypes import numpy_dtype


def number(value: float, dtype: str) -> np.ndarray[Any, Any]:
    """Return a scalar constant of a TVM dtype."""
    return np.asarray(value).astype(numpy_dtype(dtype))


def like(value: Value, constant: float) -> np.ndarray[Any, Any]:
    return number(constant, dtype_of(value))


def _relu(node: Node) -> Value:
    x = node.inputs[0]
    return node.emitter.nn__relu(x) if is_float(x) else node.emitter.maximum(x, like(x, 0))


def _clip(node: Node) -> Value:
    """Clip with constant bounds is Relax's operator, which later passes recognize as an activation."""
    x, r = node.inputs[0], node.emitter
    low, high = (node.input(place) for place in (1, 2))
    if "min" in node.attributes:
        low = like(x, node.attributes["min"])
    if "max" in node.attributes:
        high = like(x, node.attributes["max"])
    if is_float(x) and all(bound is None or isinstance(bound, np.ndarray) for bound in (low, high)):
        bounds = [
            default if bound is None or np.isnan(bound.astype(np.float64)).all() else float(bound.reshape(-1)[0])
            for bound, default in ((low, -np.inf), (high, np.inf))
        ]
        bounds[0] = min(bounds)  # ONNX: all values are the larger bound's when min > max
        if bounds == [-np.inf, np.inf]:
            return x
        return r.nn__relu(x) if bounds == [0.0, np.inf] else r.clip(x, *bounds)
    if low is not None:
        x = _larger(node, x, _scalar(node, low))
    return x if high is None else _smaller(node, x, _scalar(node, high))


def _scalar(node: Node, bound: Value) -> Value:
    return node.emitter.reshape_to(bound, ())


def _larger(node: Node, a: Value, b: Value) -> Value:
    """Return the maximum, NaN where one is NaN: x86's and LLVM's maximum returns the second operand for one of NaN."""
    return _with_nan(node, "maximum", a, b)


def _smaller(node: Node, a: Value, b: Value) -> Value:
    return _with_nan(node, "minimum", a, b)


def _with_nan(node: Node, operator: str, a: Value, b: Value) -> Value:
    r = node.emitter
    if isinstance(b, np.ndarray):
        a, b = b, a
    if not is_float(b):
        return getattr(r, operator)(a, b)
    found = getattr(r, operator)(a, b)  # b where either is NaN
    if isinstance(a, np.ndarray) and not np.isnan(a.astype(np.float32)).any():
        return found
    return r.where(r.isnan(a), a, found)


def _variadic(node: Node, combine: Any) -> Value:
    return functools.reduce(lambda a, b: combine(node, a, b), node.inputs)


def _add(node: Node, a: Value, b: Value) -> Value:
    return node.emitter.add(a, b)


def _mean(node: Node) -> Value:
    total = _variadic(node, _add)
    return total if len(node.inputs) == 1 else node.emitter.divide(total, like(total, len(node.inputs)))


def _isinf(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    x = r.cast(x, "float32") if dtype_of(x) in ("float16", "bfloat16") else x
    positive, negative = (node.attributes[f"detect_{sign}"] for sign in ("positive", "negative"))
    if positive and negative:
        return r.isinf(x)
    if not positive and not negative:
        return np.zeros(dims(x), bool)
    largest = float(np.finfo(dtype_of(x)).max)
    # Compared with the largest number: comparisons with infinity are folded away.
    return r.greater(x, like(x, largest)) if positive else r.less(x, like(x, -largest))


def _isnan(node: Node) -> Value:
    x = node.inputs[0]
    return node.emitter.isnan(node.emitter.cast(x, "float32") if dtype_of(x) == "bfloat16" else x)


def _mod(node: Node) -> Value:
    a, b = node.inputs
    r, dtype = node.emitter, dtype_of(a)
    if not is_float(a):
        if dtype.startswith("u"):
            return r.mod(a, b)
        return r.mod(a, b) if node.attributes["fmod"] else r.floor_mod(a, b)
    wide = "float64" if dtype == "float64" else "float32"
    x, y = r.cast(a, wide), r.cast(b, wide)

    rest = r.mod(x, y)  # with the sign of the dividend
    if not node.attributes["fmod"]:  # the sign of the divisor, as Python's
        differs = r.less(r.multiply(r.sign(rest), r.sign(y)), like(rest, 0))
        return r.cast(r.where(differs, r.add(rest, y), rest), dtype)
    return r.cast(rest, dtype)


def _div(node: Node) -> Value:
    a, b = node.inputs
    r = node.emitter
    if is_float(a):
        return r.divide(a, b)
    if dtype_of(a).startswith("u"):
        return r.floor_divide(a, b)

    def quotient(p: Any, q: Any) -> Any:
        shape = [int(size) for size in np.broadcast_shapes(dims(a), dims(b))]
        p, q = topi.broadcast_to(p, shape), topi.broadcast_to(q, shape)
        return te.compute(shape, lambda *at: tirx.truncdiv(p[at], q[at]), name="quotient")

    return r.te(quotient, a, b, name="quotient")


def _pow(node: Node) -> Value:
    base, exponent = node.inputs
    r, dtype = node.emitter, dtype_of(base)
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and (exponent.ndim <= len(dims(base))):
        value = float(exponent.reshape(-1)[0])
        if value == 1.0:
            return base
        if value == 2.0:
            return r.multiply(base, base)
        if is_float(base) and value in (0.5, -0.5):
            return r.sqrt(base) if value > 0 else r.rsqrt(base)
    if is_float(base):
        return r.power(base, r.cast(exponent, dtype))
    # Integers: exact up to 2**53, beyond which doubles have no odd numbers.
    found = r.power(r.cast(base, "float64"), r.cast(exponent, "float64"))
    return r.cast(found, dtype)


def _bit_shift(node: Node) -> Value:
    """Shifts by the width and more give 0 (or the sign); negative ones go the other way, as numpy's and ONNX's do."""
    a, b = node.inputs
    left = node.text("direction") == "LEFT"
    dtype = dtype_of(a)
    width = np.dtype(dtype).itemsize * 8

    def shift(p: Any, q: Any) -> Any:
        shape = [int(size) for size in np.broadcast_shapes(dims(a), dims(b))]
        p, q = topi.broadcast_to(p, shape), topi.broadcast_to(q, shape)
        last = tirx.const(width - 1, dtype)

        def at(*index: Any) -> Any:
            x, by = p[index], q[index]
            outside = by > last
            if not dtype.startswith("u"):
                outside = tirx.any(outside, by < tirx.const(0, dtype))
            inside = tirx.Select(outside, tirx.const(0, dtype), by)
            if left:
                return tirx.Select(outside, tirx.const(0, dtype), x << inside)
            sign = tirx.const(0, dtype) if dtype.startswith("u") else x >> last
            return tirx.Select(outside, sign, x >> inside)

        return te.compute(shape, at, name="shift")

    return node.emitter.te(shift, a, b, name="shift")


def _bit_cast(node: Node) -> Value:
    x = node.inputs[0]
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"]))
    if np.dtype(numpy_dtype(dtype)).itemsize != np.dtype(numpy_dtype(dtype_of(x))).itemsize:
        raise RefusedNodeError("a type of another width")
    if dtype_of(x) == "bool":
        return node.emitter.cast(x, dtype)
    if dtype == "bool":
        return node.emitter.not_equal(x, like(x, 0))

    def reinterpret(value: Any) -> Any:
        return te.compute(value.shape, lambda *at: tirx.reinterpret(dtype, value[at]), name="reinterpret")

    return node.emitter.te(reinterpret, x, name="reinterpret")


def _cast(node: Node) -> Value:
    return cast_to(node, node.inputs[0], str(onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"])))


_TYPES = frozenset("float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())


def cast_to(node: Node, x: Value, dtype: str) -> Value:
    """Cast as ONNX does: a number is true if it is not 0."""
    if dtype not in _TYPES:
        raise RefusedNodeError(f"values of {dtype} that are no constants")
    if dtype == dtype_of(x):
        return x
    if dtype == "bool":
        return node.emitter.not_equal(x, like(x, 0))
    return node.emitter.cast(x, dtype)


def in_float32(node: Node, x: Value) -> Value:
    """Return a 16-bit float as float32."""
    return node.emitter.cast(x, "float32") if dtype_of(x) in ("float16", "bfloat16") else x


def _sinh(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    dtype, x = dtype_of(x), in_float32(node, x)
    # Near 0 the difference of exponentials has no digits left: the series is exact there.
    square = r.multiply(x, x)
    factors = [1 / 5040, 1 / 120, 1 / 6, 1.0]
    series = functools.reduce(
        lambda total, factor: r.add(r.multiply(total, square), like(x, factor)), factors[1:], like(x, factors[0])
    )
    half = r.multiply(r.subtract(r.exp(x), r.exp(r.negative(x))), like(x, 0.5))
    return r.cast(r.where(r.less(r.abs(x), like(x, 0.5)), r.multiply(x, series), half), dtype)


def _cosh(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    dtype, x = dtype_of(x), in_float32(node, x)
    return r.cast(r.multiply(r.add(r.exp(x), r.exp(r.negative(x))), like(x, 0.5)), dtype)


def _elu(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    below = r.multiply(r.subtract(r.exp(r.minimum(like(x, 0), x)), like(x, 1)), like(x, node.attributes["alpha"]))
    return r.where(r.less(x, like(x, 0)), below, x)


def _celu(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    alpha = node.attributes["alpha"]
    inner = r.divide(r.minimum(like(x, 0), x), like(x, alpha))
    return r.where(r.less(x, like(x, 0)), r.multiply(r.subtract(r.exp(inner), like(x, 1)), like(x, alpha)), x)


def _sign(node: Node) -> Value:
    """TVM's sign of NaN is 0, and it has none of unsigned integers."""
    x, r = node.inputs[0], node.emitter
    if dtype_of(x).startswith("u"):
        return r.minimum(x, like(x, 1))
    return r.where(r.isnan(x), x, r.sign(x)) if dtype_of(x) in ("float32", "float64") else r.sign(x)


def _dropout(node: Node) -> Value:
    training = node.input(2)
    if training is not None and not (isinstance(training, np.ndarray) and not training.any()):
        ratio = node.input(1)
        if not isinstance(training, np.ndarray) or ratio is None or float(np.asarray(ratio).reshape(-1)[0]) != 0:
            raise RefusedNodeError("training_mode: export the model for inference")
    x = node.inputs[0]
    return (x, np.ones(dims(x), bool)) if node.outputs > 1 else x


def _shrink(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    limit, bias = (node.attributes[name] for name in ("lambd", "bias"))
    above = r.where(r.greater(x, like(x, limit)), r.subtract(x, like(x, bias)), like(x, 0))
    return r.where(r.less(x, like(x, -limit)), r.add(x, like(x, bias)), above)


def _swish(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    alpha = node.attributes.get("alpha", 1.0)
    if alpha == 1.0:
        return r.nn__silu(x)
    return r.multiply(x, r.sigmoid(r.multiply(x, like(x, alpha))))


ELEMENTWISE = {
    "Relu": _relu,
    "Clip": _clip,
    "Max": lambda node: _variadic(node, _larger),
    "Min": lambda node: _variadic(node, _smaller),
    "Sum": lambda node: _variadic(node, _add),
    "Mean": _mean,
    "IsInf": _isinf,
    "IsNaN": _isnan,
    "Mod": _mod,
    "Div": _div,
    "Pow": _pow,
    "BitShift": _bit_shift,
    "BitCast": _bit_cast,
    "Cast": _cast,
    "CastLike": lambda node: cast_to(node, node.inputs[0], dtype_of(node.inputs[1])),
    "Sinh": _sinh,
    "Cosh": _cosh,
    "Elu": _elu,
    "Celu": _celu,
    "Sign": _sign,
    "Dropout": _dropout,
    "Shrink": _shrink,
    "Swish": _swish,
}
