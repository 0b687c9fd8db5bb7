"""Convert elementwise operators of PyTorch, in the type to which PyTorch promotes their arguments."""

from __future__ import annotations

from typing import Any

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, is_float
from tvmflow.ir.tvm_compat import constant_value

_OVERLOADS = ("Tensor", "Scalar", "Tensor_Scalar", "Tensor_Tensor", "default")


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
    if not is_float(dtype):
        return getattr(r, name)(a, b)
    first = (r.greater if name == "maximum" else r.less)(a, b)
    return r.where(r.logical_or(first, r.isnan(a)), a, b)


def _quotient(call: Call) -> Any:
    """Convert div with its rounding mode, and floor_divide."""
    r, dtype, mode = call.r, call.dtype, call.given.get("rounding_mode", "floor")
    if call.node.target.__name__ in ("div.Tensor", "div.Scalar"):
        mode = None
    a, b = _operands(call, dtype)
    if mode is None:
        return r.divide(a, b)
    if not is_float(dtype):
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
    if not is_float(dtype):
        return r.floor_mod(a, _divisor(call, b))
    rest, zero = r.mod(a, b), constant(0, dtype)
    opposite = _differ(call, r.less(rest, zero), r.less(b, zero))
    return r.where(r.logical_and(r.not_equal(rest, zero), opposite), r.add(rest, b), rest)


def _fmod(call: Call) -> Any:
    """Convert fmod, which has the sign of the dividend."""
    r, dtype = call.r, call.dtype
    a, b = _operands(call, dtype)
    if is_float(dtype):
        return r.mod(a, b)
    b = _divisor(call, b)
    return r.subtract(a, r.multiply(_integer_quotient(call, a, b, "trunc"), b))


_EXPONENT_BITS = 10  # of an integer power whose exponent is a tensor


def _power(call: Call) -> Any:
    r, dtype, exponent = call.r, call.dtype, call["exponent"]
    a, b = _operands(call, dtype)
    if dtype == "bool":
        return r.logical_or(a, r.logical_not(b))
    if not is_float(dtype):
        return _integer_power(call, a, b, exponent)
    if not call.is_tensor("exponent"):
        if exponent in (0, 1, 2, 3, -1, 0.5, -0.5):
            return _simple_power(call, a, exponent)
        if not float(exponent).is_integer():
            return r.power(a, constant(exponent, dtype))
    return r.power(a, b)


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


def _hypot(call: Call) -> Any:
    a, b = _operands(call, call.dtype)
    return call.r.sqrt(call.r.add(call.r.multiply(a, a), call.r.multiply(b, b)))


def _binary(name: str) -> Convert:
    return lambda call: getattr(call.r, name)(*_operands(call, call.dtype))


def _each(names: str, convert: Convert) -> dict[str, Convert]:
    return {f"{name}.{overload}": convert for name in names.split() for overload in _OVERLOADS}


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
}
