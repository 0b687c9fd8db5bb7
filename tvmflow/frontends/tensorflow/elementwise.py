"""Convert TFLite's elementwise operators to Relax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.lookup_tables import by_table
from tvmflow.frontends.tensorflow.operation import Convert, Operation
from tvmflow.ir.tvm_compat import type_of

_RELAX = relax.op


def _unary(function: Callable[[Any], Any]) -> Convert:
    return lambda o: function(o.value(0))


def _binary(function: Callable[[Any, Any], Any]) -> Convert:
    return lambda o: o.activated(function(o.value(0), o.value(1)))


def _dtype(value: Any) -> str:
    return str(type_of(value).dtype)


def _is_float(o: Operation, index: int = 0) -> bool:
    return o.tensor(index).is_quantized or o.tensor(index).dtype.startswith("float")


def _clip(low: float, high: float) -> Convert:
    return lambda o: _RELAX.clip(o.value(0), low, high)


def _elu(o: Operation) -> Any:
    x = o.value(0)
    negative = _RELAX.subtract(_RELAX.exp(_RELAX.minimum(x, o.number(0.0))), o.number(1.0))
    return _RELAX.add(_RELAX.nn.relu(x), negative)


def _leaky_relu(o: Operation) -> Any:
    alpha = float(o.options.alpha) if o.options is not None else 0.0
    if 0 <= alpha <= 1:
        return _RELAX.nn.leakyrelu(o.value(0), alpha)
    x = o.value(0)
    return _RELAX.where(_RELAX.greater(x, o.number(0.0)), x, _RELAX.multiply(x, o.number(alpha)))


def _prelu(o: Operation) -> Any:
    x, alpha = o.value(0), o.value(1)
    negative = _RELAX.multiply(_RELAX.minimum(x, o.number(0.0)), alpha)
    return _RELAX.add(_RELAX.nn.relu(x), negative)


def _hard_swish(o: Operation) -> Any:
    x = o.value(0)
    gate = _RELAX.clip(_RELAX.add(x, o.number(3.0)), 0, 6)
    return _RELAX.divide(_RELAX.multiply(x, gate), o.number(6.0))


def _gelu(o: Operation) -> Any:
    function = _RELAX.nn.gelu_tanh if o.options is not None and o.options.approximate else _RELAX.nn.gelu
    return function(o.value(0))


def _cast(o: Operation) -> Any:
    target = o.output.dtype
    x, dtype = o.stored(0), o.tensor(0).dtype
    if o.is_known(0):
        return x.astype(target)
    if target == "bool":
        return _RELAX.not_equal(x, o.constant(0, dtype))
    if dtype.startswith("float") and not target.startswith("float"):
        x = o.emit(_RELAX.trunc(x))
    return x if dtype == target else _RELAX.astype(x, target)


def _bitcast(o: Operation) -> Any:
    if not o.is_known(0):
        raise o.unsupported("of a computed value")
    return o.array(0).view(np.dtype(o.output.dtype)).reshape(o.output.shape)


def _divide(o: Operation) -> Any:
    if _is_float(o):
        return o.activated(_RELAX.divide(o.value(0), o.value(1)))
    return o.activated(_truncated_quotient(o, o.value(0), o.value(1)))


def _truncated_quotient(o: Operation, x: Any, y: Any) -> Any:
    """Emit a quotient of integers rounded towards zero, as in C."""
    floor = o.emit(_RELAX.floor_divide(x, y))
    rest = o.emit(_RELAX.subtract(x, _RELAX.multiply(floor, y)))
    zero = o.constant(0, _dtype(x))
    is_between = _RELAX.logical_and(_RELAX.less(floor, zero), _RELAX.not_equal(rest, zero))
    return _RELAX.add(floor, _RELAX.astype(o.emit(is_between), _dtype(x)))


def _check_not_quantized(o: Operation) -> None:
    if o.tensor(0).is_quantized:
        raise o.unsupported("of quantized numbers, of which LiteRT divides the integers as they are stored")


def _floor_divide(o: Operation) -> Any:
    _check_not_quantized(o)
    x, y = o.value(0), o.value(1)
    return _RELAX.floor(_RELAX.divide(x, y)) if _is_float(o) else _RELAX.floor_divide(x, y)


def _floor_mod(o: Operation) -> Any:
    _check_not_quantized(o)
    x, y = o.value(0), o.value(1)
    if not _is_float(o):
        return _RELAX.floor_mod(x, y)
    rest = o.emit(_RELAX.subtract(x, _RELAX.multiply(_RELAX.trunc(_RELAX.divide(x, y)), y)))
    zero = o.constant(0, "float32")
    differs = _RELAX.logical_and(
        _RELAX.not_equal(rest, zero), _RELAX.logical_xor(_RELAX.less(rest, zero), _RELAX.less(y, zero))
    )
    return _RELAX.where(o.emit(differs), _RELAX.add(rest, y), rest)


def _power(o: Operation) -> Any:
    if _is_float(o):
        return _RELAX.power(o.value(0), o.value(1))
    if not o.is_known(1) or len(set(o.integers(1))) != 1 or not 0 <= (exponent := o.integers(1)[0]) <= 64:
        raise o.unsupported("of integers with an exponent that is computed, not one number, or negative")
    result = o.emit(_RELAX.full_like(o.value(0), o.constant(1, o.tensor(0).dtype)))
    for _ in range(exponent):
        result = o.emit(_RELAX.multiply(result, o.value(0)))
    return result


def _squared_difference(o: Operation) -> Any:
    difference = o.emit(_RELAX.subtract(o.value(0), o.value(1)))
    return _RELAX.multiply(difference, difference)


def _add_n(o: Operation) -> Any:
    total, *others = o.values()
    for value in others:
        total = o.emit(_RELAX.add(total, value))
    return total


def _select(o: Operation) -> Any:
    """Choose elements; in the old form a vector of conditions chooses whole rows."""
    condition = o.value(0)
    rank, data = len(o.shape(0)), len(o.shape(1))
    if o.node.name == "SELECT" and rank == 1 and data > 1:
        condition = o.emit(_RELAX.reshape(condition, [-1] + [1] * (data - 1)))
    return _RELAX.where(condition, o.value(1), o.value(2))


def _compare(function: Callable[[Any, Any], Any]) -> Convert:
    return lambda o: function(o.value(0), o.value(1))


def _fake_quantize(o: Operation) -> Any:
    options, x = o.options, o.value(0)
    low, high = (1 if options.narrowRange else 0), 2 ** int(options.numBits) - 1
    scale = (float(options.max) - float(options.min)) / (high - low)
    zero = low - float(options.min) / scale
    nudged = low if zero < low else high if zero > high else math.floor(zero + 0.5)
    bounds = ((low - nudged) * scale, (high - nudged) * scale)
    steps = _RELAX.divide(_RELAX.subtract(_RELAX.clip(x, *bounds), o.number(bounds[0])), o.number(scale))
    rounded = _RELAX.floor(_RELAX.add(steps, o.number(0.5)))
    return _RELAX.add(_RELAX.multiply(rounded, o.number(scale)), o.number(bounds[0]))


def _same(o: Operation) -> Any:
    """QUANTIZE and DEQUANTIZE: only the type of the output differs."""
    if o.is_known(0) and not o.output.is_quantized:
        return o.array(0).astype(o.output.dtype)
    return (
        o.value(0)
        if o.tensor(0).dtype in ("float32", "int8", "uint8", "int16")
        else _RELAX.astype(o.value(0), "float32")
    )


ELEMENTWISE: dict[str, Convert] = {
    "ABS": lambda o: _RELAX.abs(o.value(0)),
    "ADD": _binary(_RELAX.add),
    "ADD_N": _add_n,
    "ATAN2": _binary(_RELAX.atan2),
    "BITCAST": _bitcast,
    "BITWISE_XOR": _binary(_RELAX.bitwise_xor),
    "CAST": _cast,
    "CEIL": _unary(_RELAX.ceil),
    "COS": _unary(_RELAX.cos),
    "DENSIFY": lambda o: o.stored(0),
    "DEQUANTIZE": _same,
    "DIV": _divide,
    "ELU": _elu,
    "EQUAL": _compare(_RELAX.equal),
    "EXP": by_table(_unary(_RELAX.exp)),
    "FAKE_QUANT": _fake_quantize,
    "FLOOR": _unary(_RELAX.floor),
    "FLOOR_DIV": _floor_divide,
    "FLOOR_MOD": _floor_mod,
    "GELU": by_table(_gelu),
    "GREATER": _compare(_RELAX.greater),
    "GREATER_EQUAL": _compare(_RELAX.greater_equal),
    "HARD_SWISH": _hard_swish,
    "LEAKY_RELU": _leaky_relu,
    "LESS": _compare(_RELAX.less),
    "LESS_EQUAL": _compare(_RELAX.less_equal),
    "LOG": by_table(_unary(_RELAX.log)),
    "LOGICAL_AND": _compare(_RELAX.logical_and),
    "LOGICAL_NOT": _unary(_RELAX.logical_not),
    "LOGICAL_OR": _compare(_RELAX.logical_or),
    "LOGISTIC": _unary(_RELAX.sigmoid),
    "MAXIMUM": _binary(_RELAX.maximum),
    "MINIMUM": _binary(_RELAX.minimum),
    "MUL": _binary(_RELAX.multiply),
    "NEG": _unary(_RELAX.negative),
    "NOT_EQUAL": _compare(_RELAX.not_equal),
    "POW": _power,
    "PRELU": _prelu,
    "QUANTIZE": _same,
    "RELU": lambda o: _RELAX.nn.relu(o.value(0)) if _is_float(o) else _RELAX.maximum(o.value(0), o.number(0)),
    "RELU6": _clip(0, 6),
    "RELU_0_TO_1": _clip(0, 1),
    "RELU_N1_TO_1": _clip(-1, 1),
    "RIGHT_SHIFT": _binary(_RELAX.right_shift),
    "ROUND": _unary(_RELAX.round),
    "RSQRT": by_table(_unary(_RELAX.rsqrt)),
    "SELECT": _select,
    "SELECT_V2": _select,
    "SIGN": lambda o: _RELAX.sign(o.value(0)),
    "SIN": _unary(_RELAX.sin),
    "SQRT": _unary(_RELAX.sqrt),
    "SQUARE": lambda o: _RELAX.multiply(o.value(0), o.value(0)),
    "SQUARED_DIFFERENCE": _squared_difference,
    "SUB": _binary(_RELAX.subtract),
    "TANH": _unary(_RELAX.tanh),
    "ZEROS_LIKE": lambda o: _RELAX.zeros_like(o.stored(0)),
    "STABLEHLO_ADD": _compare(_RELAX.add),
    "STABLEHLO_MAXIMUM": _compare(_RELAX.maximum),
    "STABLEHLO_MINIMUM": _compare(_RELAX.minimum),
    "STABLEHLO_MULTIPLY": _compare(_RELAX.multiply),
    "STABLEHLO_SHIFT_LEFT": _compare(_RELAX.left_shift),
}
