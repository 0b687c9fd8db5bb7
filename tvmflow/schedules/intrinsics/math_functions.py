"""Lower exp, erf and tanh to vectorizable arithmetic, which TVM's LLVM backend leaves to scalar calls.

TVM lowers exp and erf to calls of the C library for each lane; softmax, sigmoid, swish and mish use the former, GELU
the latter. Its tanh is four exponentials and two divisions, and loses all digits of small numbers (1 - exp(-2 * x)).
With AVX-512, sigmoid takes fewer steps than exp, since a result near 0 need not be right to its last digit, and erf
needs no division.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
from tvm import tirx

from tvmflow.ir.tir import packed_words as words
from tvmflow.ir.tir.avx512 import FLOOR, WIDE, piecewise, remainder, scale
from tvmflow.ir.tir.erf import ERF_DENOMINATOR, ERF_DIGITS, ERF_END, ERF_NUMERATOR, ERF_PIECES, ERF_PIECES_END
from tvmflow.ir.tvm_compat import dtype_of, register_intrin_lowering
from tvmflow.schedules.intrinsics.arm_functions import call_function
from tvmflow.targets.cpu_features import has_wide_vectors, reduces_floats

_LOWEST, _HIGHEST = -104.0, 89.0  # results beyond: 0 and infinity
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = (
    0.693145751953125,
    1.4286068203094172e-06,
)  # the high part has 15 bits, so that its product with n is exact
_SHIFT = 12582912.0  # 1.5 * 2**23: added to a float32, it leaves the nearest integer in the lowest bits
_POLYNOMIAL = (0.001381459878757596, 0.008368716575205326, 0.04166838899254799, 0.1666652113199234, 0.4999999403953552)
"""exp(r) = 1 + r + r**2 * p(r) for |r| <= ln(2) / 2, minimax in relative error (3e-9), highest power first."""

_POWER_OF_TWO = (0.0018671305, 0.00901703, 0.055799913, 0.24016444, 0.6931513, 1.0)
"""2**f for 0 <= f <= 1, error of our fit: 1.4e-7 of the result, highest power first."""

_TANH_END = 9.0  # tanh is 1 in float32 beyond
_TANH_NUMERATOR = (0.999999943, 0.129190229, 0.00292053602, 9.26506489e-06, -1.27716276e-08, 1.82275202e-11)
_TANH_DENOMINATOR = (1.0, 0.462523062, 0.023762262, 0.000228067382)
"""tanh(x) / x for |x| <= 9 is the quotient of these, in powers of x**2, lowest first; error of our fit: 6.9e-8."""


def _clamp(value: Any, lowest: float, highest: float) -> Any:
    """Return a value clamped to limits; NaN stays NaN.

    Select is not used: the time of TVM's simplifier doubles with each nested condition.
    """
    dtype = dtype_of(value)
    below = tirx.call_llvm_pure_intrin(dtype, "llvm.minimum", value, tirx.const(highest, dtype))
    return tirx.call_llvm_pure_intrin(dtype, "llvm.maximum", below, tirx.const(lowest, dtype))


def _exp(call: Any) -> Any:
    """Return exp of float32 within one unit in the last place, including infinities, NaN and subnormal results."""
    dtype, x = dtype_of(call), call.args[0]
    integer = dtype.replace("float", "int")

    def real(value: float) -> Any:
        return tirx.const(value, dtype)

    def whole(value: int) -> Any:
        return tirx.const(value, integer)

    def power(exponent: Any) -> Any:
        return tirx.reinterpret(dtype, (exponent + whole(127)) << whole(23))

    clipped = tirx.Var("clipped", dtype)
    shifted = tirx.Var("shifted", dtype)
    nearest = shifted - real(_SHIFT)
    rest = tirx.Var("rest", dtype)
    sum_ = real(_POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        sum_ = sum_ * rest + real(coefficient)
    sum_ = sum_ * (rest * rest) + rest + real(1.0)
    target = tvm.target.Target.current()
    if dtype == WIDE and target is not None and has_wide_vectors(target):
        found = scale(sum_, nearest)
    else:
        n = tirx.Var("n", integer)
        half = n >> whole(1)  # two steps, so that subnormal results are rounded once and large ones overflow
        found = sum_ * power(half) * power(n - half)
        found = tirx.Let(n, tirx.reinterpret(integer, shifted) - whole(0x4B400000), found)
    found = tirx.Let(rest, clipped - nearest * real(_LN2_HIGH) - nearest * real(_LN2_LOW), found)
    found = tirx.Let(shifted, clipped * real(_LOG2_E) + real(_SHIFT), found)
    return tirx.Let(clipped, _clamp(x, _LOWEST, _HIGHEST), found)


def _sigmoid(call: Any) -> Any:
    """Return 1 / (1 + exp(-x)); infinities give 1 and 0, NaN stays NaN.

    AVX-512 needs no limits, as `reduce` and `scalef` take infinities. Relative error there: at most 3e-7, and 7.5e-8
    times -x more for x < 0, since x is multiplied by log2(e) with one rounding. arm64 has a function for it.
    """
    found = call_function(call)
    if found is not None:
        return found
    dtype, x = dtype_of(call), call.args[0]
    one, target = tirx.const(1.0, dtype), tvm.target.Target.current()
    if dtype != WIDE or target is None or not reduces_floats(target):
        return call  # TVM's own lowering, by exp
    exponent, rest = tirx.Var("exponent", dtype), tirx.Var("rest", dtype)
    power = tirx.const(_POWER_OF_TWO[0], dtype)
    for coefficient in _POWER_OF_TWO[1:]:
        power = power * rest + tirx.const(coefficient, dtype)
    found = tirx.Let(rest, remainder(exponent, FLOOR), one / (one + scale(power, exponent)))
    return tirx.Let(exponent, x * tirx.const(-_LOG2_E, dtype), found)


def _erf(call: Any) -> Any:
    """Return erf of float32 with a relative error of at most 2.7e-7; infinities give 1 and -1, NaN stays NaN."""
    target = tvm.target.Target.current()
    if dtype_of(call) == WIDE and target is not None and reduces_floats(target):
        return _in_pieces(call.args[0])
    return _rational(call.args[0], ERF_END, ERF_NUMERATOR, ERF_DENOMINATOR)


def _in_pieces(x: Any) -> Any:
    """Return erf of 16 lanes by the polynomials of pieces."""
    bounded, size = tirx.Var("bounded", WIDE), tirx.Var("size", WIDE)
    found = tirx.Let(
        size, tirx.call_llvm_pure_intrin(WIDE, "llvm.fabs", bounded), piecewise(size, ERF_PIECES, ERF_DIGITS)
    )
    return tirx.Let(bounded, _clamp(x, -ERF_PIECES_END, ERF_PIECES_END), bounded * found)


def _tanh(call: Any) -> Any:
    """Return tanh of float32 with a relative error of at most 3.5e-7, at most 1; infinities give 1 and -1, NaN stays
    NaN.
    """
    return _clamp(_rational(call.args[0], _TANH_END, _TANH_NUMERATOR, _TANH_DENOMINATOR), -1.0, 1.0)


def _rational(x: Any, end: float, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Any:
    """Return x * numerator(x**2) / denominator(x**2), coefficients lowest first, with x clamped to end."""
    dtype = dtype_of(x)
    bounded, square = tirx.Var("bounded", dtype), tirx.Var("square", dtype)

    def polynomial(coefficients: tuple[float, ...]) -> Any:
        found = tirx.const(coefficients[-1], dtype)
        for coefficient in reversed(coefficients[:-1]):
            found = found * square + tirx.const(coefficient, dtype)
        return found

    found = tirx.Let(square, bounded * bounded, bounded * polynomial(numerator) / polynomial(denominator))
    return tirx.Let(bounded, _clamp(x, -end, end), found)


def _lowering(name: str, lower: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the lowering of a function: that of float32, which float16 is widened to, and others are left to LLVM."""

    def chosen(call: Any) -> Any:
        dtype, x = dtype_of(call), call.args[0]
        if dtype.startswith("float16"):
            wide = dtype.replace("float16", "float32")
            return lower(tirx.call_intrin(wide, call.op, x.astype(wide))).astype(dtype)
        return lower(call) if dtype.startswith("float32") else tirx.call_llvm_pure_intrin(dtype, f"llvm.{name}", x)

    return chosen


@cache
def register() -> None:
    """Register our lowerings of functions and of dot products of words with TVM, and vectorization of nearbyint."""
    for name in ("nearbyint", "erf"):
        tvm.ir.register_op_attr(f"tirx.{name}", "TVectorizable", True)
    for name, lower in (("exp", _exp), ("erf", _erf), ("tanh", _tanh)):
        register_intrin_lowering(f"tirx.{name}", "llvm", _lowering(name, lower), 99)
    register_intrin_lowering("tirx.sigmoid", "llvm", _sigmoid, 99)
    words.register()
    register_intrin_lowering(words.WORD, "llvm", words.lower_word)
    register_intrin_lowering(words.DOT, "llvm", words.lower_dot)
