"""Convert elementwise functions of one tensor of PyTorch, choices between values, and casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.arithmetic import extreme_of
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, is_float, shape_of


def _of_floats(name: str) -> Convert:
    """Return a converter of a function whose result is a float also for integers."""
    return lambda call: getattr(call.r, name)(call.value("self", call.dtype))


def _rounding(name: str) -> Convert:
    """Return a converter of a rounding function, which leaves integers as they are."""
    return lambda call: (
        getattr(call.r, name)(call.value("self")) if is_float(call.dtype) else call.value("self", call.dtype)
    )


def _polynomial(call: Call, x: Any, factors: Sequence[float]) -> Any:
    """Return a polynomial of x, the factor of its highest power first."""
    value = constant(factors[0], call.dtype)
    for factor in factors[1:]:
        value = call.r.add(call.r.multiply(value, x), constant(factor, call.dtype))
    return value


def _log1p(call: Call) -> Any:
    """Convert log1p, near zero by its series: compilers take 1 + x - 1 for x."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    series = _polynomial(call, x, [(-1) ** (power + 1) / power for power in range(8, 0, -1)])
    near = r.less(r.abs(x), constant(0.1, dtype))
    return r.where(near, r.multiply(series, x), r.log(r.add(x, constant(1, dtype))))


def _expm1(call: Call) -> Any:
    """Convert expm1, near zero by its series."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    series = _polynomial(call, x, (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0))
    near = r.less(r.abs(x), constant(0.1, dtype))
    return r.where(near, r.multiply(series, x), r.subtract(r.exp(x), constant(1, dtype)))


def _cosh(call: Call) -> Any:
    """Convert cosh, which TVM has no code for."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    return r.multiply(r.add(r.exp(x), r.exp(r.negative(x))), constant(0.5, dtype))


def _sinh(call: Call) -> Any:
    """Convert sinh, which TVM has no code for; near zero by its series."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    series = _polynomial(call, r.multiply(x, x), (1 / 5040, 1 / 120, 1 / 6, 1.0))
    far = r.multiply(r.subtract(r.exp(x), r.exp(r.negative(x))), constant(0.5, dtype))
    return r.where(r.less(r.abs(x), constant(0.5, dtype)), r.multiply(series, x), far)


def _scaled_log(base: float) -> Convert:
    return lambda call: call.r.multiply(
        call.r.log(call.value("self", call.dtype)), constant(1 / math.log(base), call.dtype)
    )


def _absolute(call: Call) -> Any:
    x = call.value("self")
    return x if type_name(x) in ("bool", "uint8") else call.r.abs(x)


def _sign(call: Call) -> Any:
    x, r = call.value("self"), call.r
    dtype = type_name(x)
    if dtype == "bool":
        return x
    zero = constant(0, dtype)
    return r.subtract(r.astype(r.greater(x, zero), dtype), r.astype(r.less(x, zero), dtype))


def _is(test: str) -> Convert:
    """Return a converter of isnan, isinf and isfinite, which are known for integers."""

    def convert(call: Call) -> Any:
        r, x = call.r, call.value("self")
        if not is_float(type_name(x)):
            return r.expanded(constant(test == "isfinite", "bool"), call.out_shape)
        if test == "isnan":
            return r.isnan(x)
        return (r.equal if test == "isinf" else r.less)(r.abs(x), constant(math.inf, type_name(x)))

    return convert


def _relu(call: Call) -> Any:
    x = call.value("self")
    return call.r.nn__relu(x) if is_float(type_name(x)) else call.r.maximum(x, constant(0, type_name(x)))


def _clamp(call: Call) -> Any:
    """Convert clamp, also hardtanh; its upper bound wins, and NaN stays."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    names = ("min_val", "max_val") if "min_val" in call.given else ("min", "max")
    low, high = (call[name] for name in names)
    numbers = not any(hasattr(bound, "meta") for bound in (low, high))
    if numbers and is_float(dtype):
        if low is not None and high is not None and low > high:
            return r.expanded(constant(high, dtype), shape_of(x))
        if not any(bound is not None and math.isnan(bound) for bound in (low, high)):
            return r.clip(x, -math.inf if low is None else low, math.inf if high is None else high)
    if low is not None:
        x = extreme_of(call, "maximum", x, call.of(low, dtype))
    return x if high is None else extreme_of(call, "minimum", x, call.of(high, dtype))


def _where(call: Call) -> Any:
    dtype, r = call.dtype, call.r
    condition = call.value("condition", "bool")
    a, b = call.value("self", dtype), call.value("other", dtype)
    if dtype != "bool":
        return r.where(condition, a, b)
    return r.cast(r.where(condition, r.astype(a, "int8"), r.astype(b, "int8")), "bool")


def _copy(call: Call) -> Any:
    """Convert a copy to another type."""
    return call.value("self", call.dtype)


def _elu(call: Call) -> Any:
    """Convert elu, also for selu and celu, with its factors, which TVM ignores."""
    r, dtype, x = call.r, call.dtype, call.value("self")
    alpha, scale, inner = (constant(call[name], dtype) for name in ("alpha", "scale", "input_scale"))
    below = r.multiply(r.subtract(r.exp(r.multiply(x, inner)), constant(1.0, dtype)), alpha)
    return r.multiply(r.where(r.greater(x, constant(0.0, dtype)), x, below), scale)


def _negative(call: Call) -> Any:
    """Convert neg; TVM multiplies by -1, which unsigned integers do not have."""
    x = call.value("self")
    return call.r.subtract(constant(0, call.dtype), x) if call.dtype == "uint8" else call.r.negative(x)


def _angle(call: Call) -> Any:
    """Convert the angle of a real number: of negative ones pi, of NaN NaN."""
    r, dtype, x = call.r, call.dtype, call.value("self", call.dtype)
    zero = constant(0.0, dtype)
    of_number = r.where(r.less(x, zero), constant(math.pi, dtype), zero)
    return r.where(r.not_equal(x, x), x, of_number)


_FLOAT_FUNCTIONS = "acos acosh asin asinh atan atanh cos erf exp log sigmoid sin sqrt rsqrt tan tanh".split()

FUNCTIONS: dict[str, Convert] = {
    **{f"{name}.default": _of_floats(name) for name in _FLOAT_FUNCTIONS},
    "angle.default": _angle,
    "cosh.default": _cosh,
    "sinh.default": _sinh,
    "erfc.default": lambda call: call.r.subtract(constant(1.0, call.dtype), call.r.erf(call.value("self", call.dtype))),
    "log1p.default": _log1p,
    "expm1.default": _expm1,
    "log2.default": _scaled_log(2),
    "log10.default": _scaled_log(10),
    "reciprocal.default": lambda call: call.r.divide(constant(1, call.dtype), call.value("self", call.dtype)),
    "floor.default": _rounding("floor"),
    "ceil.default": _rounding("ceil"),
    "trunc.default": _rounding("trunc"),
    "round.default": _rounding("round"),
    "abs.default": _absolute,
    "sign.default": _sign,
    "neg.default": _negative,
    "_neg_view.default": _negative,
    "isnan.default": _is("isnan"),
    "isinf.default": _is("isinf"),
    "isfinite.default": _is("isfinite"),
    "logical_not.default": lambda call: call.r.logical_not(call.value("self", "bool")),
    "bitwise_not.default": lambda call: (
        call.r.logical_not(call.value("self")) if call.dtype == "bool" else call.r.bitwise_not(call.value("self"))
    ),
    "relu.default": _relu,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp,
    "clamp_min.default": _clamp,
    "clamp_min.Tensor": _clamp,
    "clamp_max.default": _clamp,
    "clamp_max.Tensor": _clamp,
    "hardtanh.default": _clamp,
    "where.self": _where,
    "where.ScalarOther": _where,
    "where.ScalarSelf": _where,
    "where.Scalar": _where,
    "_to_copy.default": _copy,
    "to.dtype": _copy,
    "elu.default": _elu,
    "leaky_relu.default": lambda call: call.r.nn__leakyrelu(call.value("self"), float(call["negative_slope"])),
}
