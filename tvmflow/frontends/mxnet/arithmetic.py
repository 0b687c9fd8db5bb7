"""Convert MXNet's operators that compute element by element, and its reductions.

All values are float32: comparisons give 0 or 1, places of maxima are whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import relax

from tvmflow.frontends.mxnet.operands import Operands, constant

Converter = Callable[[Operands], Any]


def _unary(name: str) -> Converter:
    return lambda o: getattr(relax.op, name)(o.values[0])


def same(o: Operands) -> Any:
    return o.values[0]


def _binary(name: str) -> Converter:
    return lambda o: _applied(name, o.values[0], o.values[1])


def _with_scalar(name: str, reverse: bool = False) -> Converter:
    def build(o: Operands) -> Any:
        scalar = constant(o.number("scalar", 0.0))
        operands = (scalar, o.values[0]) if reverse else (o.values[0], scalar)
        return _applied(name, *operands)

    return build


def _applied(name: str, a: Any, b: Any) -> Any:
    if name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"):
        return relax.op.astype(getattr(relax.op, name)(a, b), "float32")
    if name.startswith("logical_"):
        zero = constant(0.0)
        both = (relax.op.not_equal(a, zero), relax.op.not_equal(b, zero))
        return relax.op.astype(getattr(relax.op, name)(*both), "float32")
    return getattr(relax.op, name)(a, b)


def _logical_not(o: Operands) -> Any:
    return relax.op.astype(relax.op.equal(o.values[0], constant(0.0)), "float32")


def _softplus(o: Operands) -> Any:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)), which overflows nowhere."""
    x = o.values[0]
    small = relax.op.exp(relax.op.negative(relax.op.abs(x)))
    return relax.op.add(relax.op.nn.relu(x), relax.op.log(relax.op.add(constant(1.0), small)))


def _softsign(o: Operands) -> Any:
    return relax.op.divide(o.values[0], relax.op.add(constant(1.0), relax.op.abs(o.values[0])))


def _hard_sigmoid(o: Operands) -> Any:
    line = relax.op.multiply(o.values[0], constant(o.number("alpha", 0.2)))
    return relax.op.clip(relax.op.add(line, constant(o.number("beta", 0.5))), 0, 1)


def _rounded_away(o: Operands) -> Any:
    """Round halves away from zero."""
    x = o.values[0]
    whole = relax.op.floor(relax.op.add(relax.op.abs(x), constant(0.5)))
    return relax.op.multiply(relax.op.sign(x), whole)


def activation(o: Operands) -> Any:
    table: dict[str, Converter] = {
        "relu": lambda o: relax.op.nn.relu(o.values[0]),
        "sigmoid": _unary("sigmoid"),
        "tanh": _unary("tanh"),
        "softrelu": _softplus,
        "softsign": _softsign,
    }
    kind = o.attrs.get("act_type", "")
    if kind not in table:
        raise o.unsupported(f"act_type={kind}")
    return table[kind](o)


def leaky_relu(o: Operands) -> Any:
    kind, x = o.attrs.get("act_type", "leaky"), o.values[0]
    if kind == "leaky":
        return relax.op.nn.leakyrelu(x, o.number("slope", 0.25))
    if kind == "rrelu":  # without training: the mean of its bounds
        return relax.op.nn.leakyrelu(x, (o.number("lower_bound", 0.125) + o.number("upper_bound", 0.334)) / 2)
    if kind == "prelu":
        return relax.op.nn.prelu(x, o.values[1], axis=1)
    if kind == "gelu":
        return relax.op.nn.gelu(x)
    if kind == "elu":
        return _elu(x, o.number("slope", 0.25))
    if kind == "selu":
        return relax.op.multiply(_elu(x, 1.6732632423543772), constant(1.0507009873554805))
    raise o.unsupported(f"act_type={kind}")


def _elu(x: Any, slope: float) -> Any:
    below = relax.op.subtract(relax.op.exp(relax.op.minimum(x, constant(0.0))), constant(1.0))
    return relax.op.add(relax.op.nn.relu(x), relax.op.multiply(constant(slope), below))


def _axes(o: Operands) -> list[int]:
    """Return the axes of a reduction: those named, or with `exclude` all others."""
    count, named = len(o.shape), o.integers("axis", ())
    axes = [axis % count for axis in named] or list(range(count))
    return [axis for axis in range(count) if axis not in axes] if named and o.flag("exclude") else axes


def _reduced(name: str) -> Converter:
    """A reduction of all axes gives one element with an axis of its own."""

    def build(o: Operands) -> Any:
        axes = _axes(o)
        value = getattr(relax.op, name)(o.values[0], axis=axes, keepdims=o.flag("keepdims"))
        is_scalar = len(axes) == len(o.shape) and not o.flag("keepdims")
        return relax.op.reshape(o.emit(value), (1,)) if is_scalar else value

    return build


def _norm(o: Operands) -> Any:
    order = o.integer("ord", 2)
    if order not in (1, 2):
        raise o.unsupported(f"ord={order}")
    x = o.values[0]
    inner = relax.op.abs(x) if order == 1 else relax.op.multiply(x, x)
    total = o.emit(_reduced("sum")(Operands(o.name, o.op, (o.emit(inner),), (None,), o.attrs, o.builder)))
    return total if order == 1 else relax.op.sqrt(total)


def _place(name: str) -> Converter:
    def build(o: Operands) -> Any:
        if not o.integers("axis", ()):
            raise o.unsupported("no axis")
        found = getattr(relax.op, name)(o.values[0], axis=o.axis("axis", 0), keepdims=o.flag("keepdims"))
        return relax.op.astype(found, "float32")

    return build


def _l2_normalization(o: Operands) -> Any:
    count, mode, x = len(o.shape), o.attrs.get("mode", "instance"), o.values[0]
    axes = {"instance": list(range(1, count)), "channel": [1], "spatial": list(range(2, count))}.get(mode)
    if not axes:
        raise o.unsupported(f"mode={mode}")
    total = relax.op.sum(o.emit(relax.op.multiply(x, x)), axis=axes, keepdims=True)
    return relax.op.divide(x, relax.op.sqrt(relax.op.add(total, constant(o.number("eps", 1e-10)))))


def normalized(o: Operands, value: Any, axes: list[int], epsilon: float) -> Any:
    """Return a value less its mean over axes, divided by its deviation."""
    centered = o.emit(relax.op.subtract(value, relax.op.mean(value, axis=axes, keepdims=True)))
    variance = relax.op.mean(o.emit(relax.op.multiply(centered, centered)), axis=axes, keepdims=True)
    return relax.op.divide(centered, relax.op.sqrt(relax.op.add(variance, constant(epsilon))))


def _instance_norm(o: Operands) -> Any:
    spatial = list(range(2, len(o.shape)))
    normal = normalized(o, o.values[0], spatial, o.number("eps", 1e-3))
    gamma, beta = (o.array(at).reshape(1, -1, *(1 for _ in spatial)) for at in (1, 2))
    return relax.op.add(relax.op.multiply(normal, constant(gamma)), constant(beta))


def _layer_norm(o: Operands) -> Any:
    return relax.op.nn.layer_norm(*o.values[:3], axes=[o.axis("axis", -1)], epsilon=o.number("eps", 1e-5))


_UNARY = "abs exp log sqrt rsqrt square negative sign floor ceil trunc sin cos tan sinh cosh erf sigmoid tanh"
_OTHER_NAMES = {"arcsin": "asin", "arccos": "acos", "arctan": "atan", "fix": "trunc", "_np_negative": "negative"}
_OTHER_NAMES |= {"arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh"}
_PAIRS = {
    "add": ("elemwise_add", "broadcast_add", "broadcast_plus", "_Plus", "_plus", "_add"),
    "subtract": ("elemwise_sub", "broadcast_sub", "broadcast_minus", "_Minus", "_minus", "_sub"),
    "multiply": ("elemwise_mul", "broadcast_mul", "_Mul", "_mul"),
    "divide": ("elemwise_div", "broadcast_div", "_Div", "_div"),
    "power": ("broadcast_power", "_power", "_Power", "pow"),
    "maximum": ("broadcast_maximum", "_maximum", "_Maximum"),
    "minimum": ("broadcast_minimum", "_minimum", "_Minimum"),
    "equal": ("broadcast_equal", "_equal", "_Equal"),
    "not_equal": ("broadcast_not_equal", "_not_equal", "_Not_Equal"),
    "greater": ("broadcast_greater", "_greater", "_Greater"),
    "greater_equal": ("broadcast_greater_equal", "_greater_equal", "_Greater_Equal"),
    "less": ("broadcast_lesser", "_lesser", "_Lesser"),
    "less_equal": ("broadcast_lesser_equal", "_lesser_equal", "_Lesser_Equal"),
    "logical_and": ("broadcast_logical_and", "_logical_and"),
    "logical_or": ("broadcast_logical_or", "_logical_or"),
    "logical_xor": ("broadcast_logical_xor", "_logical_xor"),
}
_SCALARS = {
    "add": ("_plus_scalar", "_PlusScalar"),
    "subtract": ("_minus_scalar", "_MinusScalar"),
    "multiply": ("_mul_scalar", "_MulScalar"),
    "divide": ("_div_scalar", "_DivScalar"),
    "power": ("_power_scalar", "_PowerScalar"),
    "maximum": ("_maximum_scalar", "_MaximumScalar"),
    "minimum": ("_minimum_scalar", "_MinimumScalar"),
    "equal": ("_equal_scalar", "_EqualScalar"),
    "not_equal": ("_not_equal_scalar", "_NotEqualScalar"),
    "greater": ("_greater_scalar", "_GreaterScalar"),
    "greater_equal": ("_greater_equal_scalar", "_GreaterEqualScalar"),
    "less": ("_lesser_scalar", "_LesserScalar"),
    "less_equal": ("_lesser_equal_scalar", "_LesserEqualScalar"),
}
_REVERSED = {
    "subtract": ("_rminus_scalar", "_RMinusScalar"),
    "divide": ("_rdiv_scalar", "_RDivScalar"),
    "power": ("_rpower_scalar", "_RPowerScalar"),
}

ARITHMETIC: dict[str, Converter] = {
    **{name: _unary(name) for name in _UNARY.split()},
    **{theirs: _unary(ours) for theirs, ours in _OTHER_NAMES.items()},
    **{theirs: _binary(ours) for ours, names in _PAIRS.items() for theirs in names},
    **{theirs: _with_scalar(ours) for ours, names in _SCALARS.items() for theirs in names},
    **{theirs: _with_scalar(ours, reverse=True) for ours, names in _REVERSED.items() for theirs in names},
    **{name: _reduced(name) for name in ("sum", "mean", "max", "min", "prod")},
    **{f"{name}_axis": _reduced(name) for name in ("sum", "max", "min")},
    "norm": _norm,
    "argmax": _place("argmax"),
    "argmin": _place("argmin"),
    "argmax_channel": lambda o: relax.op.astype(relax.op.argmax(o.values[0], axis=1), "float32"),
    "add_n": lambda o: reduce(relax.op.add, o.values),
    "ElementWiseSum": lambda o: reduce(relax.op.add, o.values),
    "relu": lambda o: relax.op.nn.relu(o.values[0]),
    "softsign": _softsign,
    "hard_sigmoid": _hard_sigmoid,
    "round": _rounded_away,
    "rint": lambda o: relax.op.ceil(relax.op.subtract(o.values[0], constant(0.5))),  # halves down
    "logical_not": _logical_not,
    "reciprocal": lambda o: relax.op.divide(constant(1.0), o.values[0]),
    "cbrt": lambda o: relax.op.multiply(
        relax.op.sign(o.values[0]), relax.op.power(relax.op.abs(o.values[0]), constant(1 / 3))
    ),
    "expm1": lambda o: relax.op.subtract(relax.op.exp(o.values[0]), constant(1.0)),
    "log1p": lambda o: relax.op.log(relax.op.add(constant(1.0), o.values[0])),
    "log2": lambda o: relax.op.multiply(relax.op.log(o.values[0]), constant(1 / math.log(2))),
    "log10": lambda o: relax.op.multiply(relax.op.log(o.values[0]), constant(1 / math.log(10))),
    "rcbrt": lambda o: relax.op.divide(
        relax.op.sign(o.values[0]), relax.op.power(relax.op.abs(o.values[0]), constant(1 / 3))
    ),
    "clip": lambda o: relax.op.clip(o.values[0], o.number("a_min", -math.inf), o.number("a_max", math.inf)),
    "smooth_l1": lambda o: _smooth_l1(o.values[0], o.number("scalar", 1.0) ** 2),
    "where": lambda o: relax.op.where(relax.op.not_equal(o.values[0], constant(0.0)), *o.values[1:3]),
    "L2Normalization": _l2_normalization,
    "InstanceNorm": _instance_norm,
    "LayerNorm": _layer_norm,
    "LogisticRegressionOutput": _unary("sigmoid"),
    "LinearRegressionOutput": same,
    "MAERegressionOutput": same,
}


def _smooth_l1(x: Any, square: float) -> Any:
    size = relax.op.abs(x)
    inside = relax.op.multiply(relax.op.multiply(x, x), constant(square / 2))
    outside = relax.op.subtract(size, constant(0.5 / square))
    return relax.op.where(relax.op.less(size, constant(1 / square)), inside, outside)
