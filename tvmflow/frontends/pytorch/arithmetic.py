"""Convert elementwise operators of PyTorch, in the type to which PyTorch promotes their arguments."""

from __future__ import annotations

import math
from typing import Any

from tvmflow.frontends.pytorch.calls import Call, Convert, constant, type_name
from tvmflow.ir.tvm_compat import constant_value

_OVERLOADS = ("Tensor", "Scalar", "Tensor_Scalar", "Tensor_Tensor", "default")


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _operands(call: Call, dtype: str) -> tuple[Any, Any]:
    return call.value("self", dtype), call.value("exponent" if "exponent" in call.given else "other", dtype)


def _differ(call: Call, a: Any, b: Any) -> Any:
    """Return whether two booleans differ."""
    return call.r.not_equal(call.r.astype(a, "int8"), call.r.astype(b, "int8"))


def _sum(call: Call, name: str = "add") -> Any:
    """Convert add, sub and rsub, with their factor; a sum of booleans is their disjunction."""
    dtype, alpha = call.dtype, call["alpha"]
    a, b = _operands(call, dtype)
    if dtype == "bool":
        return call.r.logical_or(a, b) if alpha in (None, 1, True) else a
    if name == "rsub":
        a, b, name = b, a, "subtract"
        a, b = (a, b if alpha in (None, 1) else call.r.multiply(b, constant(alpha, dtype)))
    elif alpha not in (None, 1):
        b = call.r.multiply(b, constant(alpha, dtype))
    return getattr(call.r, name)(a, b)


def _product(call: Call) -> Any:
    a, b = _operands(call, call.dtype)
    return call.r.logical_and(a, b) if call.dtype == "bool" else call.r.multiply(a, b)


def _comparison(name: str) -> Convert:
    def convert(call: Call) -> Any:
        dtype = call.promoted
        a, b = _operands(call, dtype)
        if dtype == "bool":
            a, b = call.r.astype(a, "int8"), call.r.astype(b, "int8")
        return getattr(call.r, name)(a, b)

    return convert


def _extreme(name: str) -> Convert:
    """Return a converter of the larger or smaller of two values, NaN if one is."""

    def convert(call: Call) -> Any:
        a, b = _operands(call, call.dtype)
        return extreme_of(call, name, a, b)

    return convert


def extreme_of(call: Call, name: str, a: Any, b: Any) -> Any:
    dtype, r = type_name(a), call.r
    if dtype == "bool":
        return (r.logical_or if name == "maximum" else r.logical_and)(a, b)
    if not _is_float(dtype):
        return getattr(r, name)(a, b)
    first = (r.greater if name == "maximum" else r.less)(a, b)
    return r.where(r.logical_or(first, r.not_equal(a, a)), a, b)


def _quotient(call: Call) -> Any:
    """Convert div with its rounding mode, and floor_divide."""
    r, dtype, mode = call.r, call.dtype, call.given.get("rounding_mode", "floor")
    if call.node.target.__name__ in ("div.Tensor", "div.Scalar"):
        mode = None
    a, b = _operands(call, dtype)
    if mode is None:
        return r.divide(a, b)
    if not _is_float(dtype):
        return _integer_quotient(call, a, _divisor(call, b), mode)
    if mode == "trunc":
        return r.trunc(r.divide(a, b))
    rest = r.mod(a, b)
    quotient = r.divide(r.subtract(a, rest), b)
    zero = constant(0, dtype)
    lower = r.logical_and(r.not_equal(rest, zero), _differ(call, r.less(rest, zero), r.less(b, zero)))
    whole = r.round(r.subtract(quotient, r.astype(lower, dtype)))
    return r.where(r.equal(b, zero), r.divide(a, b), whole)


def _divisor(call: Call, b: Any) -> Any:
    """Return an integer divisor, 1 in place of zero, at which the processor would stop."""
    dtype = type_name(b)
    if constant_value(b) is not None:
        return b
    return call.r.where(call.r.equal(b, constant(0, dtype)), constant(1, dtype), b)


def _integer_quotient(call: Call, a: Any, b: Any, mode: str) -> Any:
    r, dtype = call.r, type_name(a)
    if mode == "floor" or dtype.startswith("u"):
        return r.floor_divide(a, b)
    size = r.floor_divide(r.abs(a), r.abs(b))
    zero = constant(0, dtype)
    opposite = _differ(call, r.less(a, zero), r.less(b, zero))
    return r.where(opposite, r.negative(size), size)


def _remainder(call: Call) -> Any:
    """Convert remainder, which has the sign of the divisor."""
    r, dtype = call.r, call.dtype
    a, b = _operands(call, dtype)
    if not _is_float(dtype):
        return r.floor_mod(a, _divisor(call, b))
    rest, zero = r.mod(a, b), constant(0, dtype)
    opposite = _differ(call, r.less(rest, zero), r.less(b, zero))
    return r.where(r.logical_and(r.not_equal(rest, zero), opposite), r.add(rest, b), rest)


def _fmod(call: Call) -> Any:
    """Convert fmod, which has the sign of the dividend."""
    r, dtype = call.r, call.dtype
    a, b = _operands(call, dtype)
    if _is_float(dtype):
        return r.mod(a, b)
    b = _divisor(call, b)
    return r.subtract(a, r.multiply(_integer_quotient(call, a, b, "trunc"), b))


_EXPONENT_BITS = 10  # of an integer power whose exponent is a tensor


def _power(call: Call) -> Any:
    r, dtype, exponent = call.r, call.dtype, call["exponent"]
    a, b = _operands(call, dtype)
    if dtype == "bool":
        return r.logical_or(a, r.logical_not(b))
    if not _is_float(dtype):
        return _integer_power(call, a, b, exponent)
    if not call.is_tensor("exponent"):
        if exponent in (0, 1, 2, 3, -1, 0.5, -0.5):
            return _simple_power(call, a, exponent)
        if not float(exponent).is_integer():
            return _root_power(call, a, exponent)
    return r.power(a, b)


def _root_power(call: Call, a: Any, exponent: float) -> Any:
    return call.r.power(a, constant(exponent, call.dtype))


def _simple_power(call: Call, a: Any, exponent: float) -> Any:
    r, one = call.r, constant(1, call.dtype)
    if exponent == 0:
        return r.ones_like(a)
    if exponent in (0.5, -0.5):
        return r.sqrt(a) if exponent > 0 else r.rsqrt(a)
    if exponent == -1:
        return r.divide(one, a)
    value = a
    for _ in range(int(exponent) - 1):
        value = r.multiply(value, a)
    return value


def _integer_power(call: Call, a: Any, b: Any, exponent: Any) -> Any:
    """Return an integer power by squaring; one with a negative exponent is zero but for 1 and -1."""
    r, dtype = call.r, call.dtype
    one, zero = constant(1, dtype), constant(0, dtype)
    if not call.is_tensor("exponent"):
        value, square, left = one, a, int(exponent)
        while left:
            value = r.multiply(value, square) if left & 1 else value
            left >>= 1
            square = r.multiply(square, square) if left else square
        return r.expanded(value, call.out_shape)
    value, square, left = one, a, r.abs(b)
    for _ in range(_EXPONENT_BITS):
        odd = r.equal(r.bitwise_and(left, one), one)
        value = r.where(odd, r.multiply(value, square), value)
        left, square = r.right_shift(left, one), r.multiply(square, square)
    unit = r.equal(r.abs(a), one)
    return r.where(r.logical_or(r.greater_equal(b, zero), unit), value, zero)


def _bitwise(name: str) -> Convert:
    def convert(call: Call) -> Any:
        dtype = call.dtype
        a, b = _operands(call, dtype)
        if dtype == "bool" and name == "bitwise_xor":
            return _differ(call, a, b)
        return getattr(call.r, name.replace("bitwise", "logical") if dtype == "bool" else name)(a, b)

    return convert


def _shift(name: str) -> Convert:
    """Return a converter of shifts; one by more than the bits of the type leaves zeros, or the sign."""

    def convert(call: Call) -> Any:
        r, dtype = call.r, call.dtype
        a, b = _operands(call, dtype)
        bits = int("".join(filter(str.isdigit, dtype)))
        inside = r.logical_and(r.greater_equal(b, constant(0, dtype)), r.less(b, constant(bits, dtype)))
        if name == "left_shift":
            return r.where(inside, r.left_shift(a, r.where(inside, b, constant(0, dtype))), constant(0, dtype))
        return r.right_shift(a, r.where(inside, b, constant(bits - 1, dtype)))

    return convert


def _logical(name: str) -> Convert:
    def convert(call: Call) -> Any:
        a, b = _operands(call, "bool")
        if name == "logical_xor":
            return _differ(call, a, b)
        return getattr(call.r, name)(a, b)

    return convert


def _of_floats(name: str) -> Convert:
    """Return a converter of a function whose result is a float also for integers."""
    return lambda call: getattr(call.r, name)(call.value("self", call.dtype))


def _rounding(name: str) -> Convert:
    """Return a converter of a rounding function, which leaves integers as they are."""
    return lambda call: (
        getattr(call.r, name)(call.value("self")) if _is_float(call.dtype) else call.value("self", call.dtype)
    )


def _log1p(call: Call) -> Any:
    """Convert log1p, also near zero: log(u) * x / (u - 1) of u = 1 + x (Kahan)."""
    r, dtype = call.r, call.dtype
    x, one = call.value("self", dtype), constant(1, dtype)
    u = r.add(x, one)
    less = r.subtract(u, one)
    small = r.less(r.abs(x), constant(0.5, dtype))
    exact = r.where(r.equal(less, constant(0, dtype)), x, r.divide(r.multiply(r.log(u), x), less))
    return r.where(small, exact, r.log(u))


def _expm1(call: Call) -> Any:
    """Convert expm1, near zero by its series."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    series = constant(1 / 120, dtype)
    for factor in (1 / 24, 1 / 6, 1 / 2, 1.0):
        series = r.add(r.multiply(series, x), constant(factor, dtype))
    near = r.less(r.abs(x), constant(0.1, dtype))
    return r.where(near, r.multiply(series, x), r.subtract(r.exp(x), constant(1, dtype)))


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
        if not _is_float(type_name(x)):
            return r.expanded(constant(test == "isfinite", "bool"), call.out_shape)
        if test == "isnan":
            return r.not_equal(x, x)
        dtype = type_name(x)
        is_infinite = r.equal(r.abs(x), constant(math.inf, dtype))
        if test == "isinf":
            return is_infinite
        return r.less(r.abs(x), constant(math.inf, dtype))

    return convert


def _relu(call: Call) -> Any:
    x = call.value("self")
    return call.r.nn__relu(x) if _is_float(type_name(x)) else call.r.maximum(x, constant(0, type_name(x)))


def _clamp(call: Call) -> Any:
    """Convert clamp, also hardtanh; its upper bound wins, and NaN stays."""
    r, dtype = call.r, call.dtype
    x = call.value("self", dtype)
    names = ("min_val", "max_val") if "min_val" in call.given else ("min", "max")
    low, high = (call[name] for name in names)
    numbers = not any(hasattr(bound, "meta") for bound in (low, high))
    if numbers and _is_float(dtype):
        if low is not None and high is not None and low > high:
            return r.full_like(x, constant(high, dtype))
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


def _hypot(call: Call) -> Any:
    a, b = _operands(call, call.dtype)
    return call.r.sqrt(call.r.add(call.r.multiply(a, a), call.r.multiply(b, b)))


def _binary(name: str) -> Convert:
    return lambda call: getattr(call.r, name)(*_operands(call, call.dtype))


def _leaky_relu(call: Call) -> Any:
    return call.r.nn__leakyrelu(call.value("self"), float(call["negative_slope"]))


def _each(names: str, convert: Convert) -> dict[str, Convert]:
    return {f"{name}.{overload}": convert for name in names.split() for overload in _OVERLOADS}


_FLOAT_FUNCTIONS = {
    name: name
    for name in "acos acosh asin asinh atan atanh cos cosh erf exp log sigmoid sin sinh sqrt rsqrt tan tanh".split()
}

ARITHMETIC: dict[str, Convert] = {
    **_each("add", _sum),
    **_each("sub", lambda call: _sum(call, "subtract")),
    **_each("rsub", lambda call: _sum(call, "rsub")),
    **_each("mul", _product),
    **_each("div true_divide floor_divide", _quotient),
    "div.Tensor_mode": _quotient,
    "div.Scalar_mode": _quotient,
    **_each("remainder", _remainder),
    **_each("fmod", _fmod),
    "pow.Scalar": _power,
    **_each("pow", _power),
    **_each("eq", _comparison("equal")),
    **_each("ne", _comparison("not_equal")),
    **_each("lt", _comparison("less")),
    **_each("le", _comparison("less_equal")),
    **_each("gt", _comparison("greater")),
    **_each("ge", _comparison("greater_equal")),
    **_each("maximum", _extreme("maximum")),
    **_each("minimum", _extreme("minimum")),
    **_each("bitwise_and __and__", _bitwise("bitwise_and")),
    **_each("bitwise_or __or__", _bitwise("bitwise_or")),
    **_each("bitwise_xor __xor__", _bitwise("bitwise_xor")),
    **_each("bitwise_left_shift __lshift__", _shift("left_shift")),
    **_each("bitwise_right_shift __rshift__", _shift("right_shift")),
    "bitwise_left_shift.Tensor_Scalar": _shift("left_shift"),
    "bitwise_right_shift.Tensor_Scalar": _shift("right_shift"),
    **_each("logical_and", _logical("logical_and")),
    **_each("logical_or", _logical("logical_or")),
    **_each("logical_xor", _logical("logical_xor")),
    **_each("atan2", _binary("atan2")),
    **_each("hypot", _hypot),
    **{f"{name}.default": _of_floats(operator) for name, operator in _FLOAT_FUNCTIONS.items()},
    "erfc.default": lambda call: call.r.subtract(
        constant(1.0, call.dtype), call.r.erf(call.value("self", call.dtype))
    ),
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
    "neg.default": lambda call: call.r.negative(call.value("self")),
    "_neg_view.default": lambda call: call.r.negative(call.value("self")),
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
    "leaky_relu.default": _leaky_relu,
}
