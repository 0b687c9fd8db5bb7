"""Convert complex numbers within a program, as pairs of real tensors; Fourier transforms as products with constants.

Inputs, outputs and weights are real. A transform of constant size n is a product with a matrix of n cosines and sines
by the number of its frequencies.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tvmflow.frontends.pytorch.calls import Call, Convert, constant, shape_of

_LONGEST = 4096  # of a transform: its matrix has as many rows


class Complex(NamedTuple):
    """Real and imaginary part: two Relax values of one shape."""

    real: Any
    imaginary: Any


def is_complex(node: Any) -> bool:
    """Return whether a node or one of its tensors is complex."""
    values = [part.meta.get("val") for part in (node, *node.all_input_nodes)]
    return any(getattr(value, "is_complex", bool)() for value in values)


def _part(call: Call, argument: Any) -> Complex:
    """Return an argument as a complex value: tensors and numbers, real or complex."""
    if hasattr(argument, "meta"):
        value = call.of(argument)
        if isinstance(value, Complex):
            return value
        value = call.r.cast(value, call.dtype)
        return Complex(value, call.r.zeros_like(value))
    number = complex(argument)
    return Complex(constant(number.real, call.dtype), constant(number.imag, call.dtype))


def _operands(call: Call) -> tuple[Complex, Complex]:
    names = list(call.given)
    return _part(call, call[names[0]]), _part(call, call[names[1]])


def _multiply(call: Call, a: Complex, b: Complex) -> Complex:
    r = call.r
    return Complex(
        r.subtract(r.multiply(a.real, b.real), r.multiply(a.imaginary, b.imaginary)),
        r.add(r.multiply(a.real, b.imaginary), r.multiply(a.imaginary, b.real)),
    )


def _expanded(call: Call, value: Complex) -> Complex:
    return Complex(*(call.r.expanded(part, call.out_shape) for part in value))


def _sum(name: str) -> Convert:
    def convert(call: Call) -> Complex:
        a, b = _operands(call)
        factor = call["alpha"]
        if factor not in (None, 1):
            b = _multiply(call, b, _part(call, factor))
        operation = getattr(call.r, name)
        return _expanded(call, Complex(operation(a.real, b.real), operation(a.imaginary, b.imaginary)))

    return convert


def _quotient(call: Call) -> Complex:
    r = call.r
    a, b = _operands(call)
    size = r.add(r.multiply(b.real, b.real), r.multiply(b.imaginary, b.imaginary))
    found = _multiply(call, a, Complex(b.real, r.negative(b.imaginary)))
    return _expanded(call, Complex(*(r.divide(part, size) for part in found)))


def _conjugate(call: Call) -> Complex:
    a = _part(call, call["self"])
    return Complex(a.real, call.r.negative(a.imaginary))


def _resolved(call: Call) -> Complex:
    return _part(call, call["self"])


def _absolute(call: Call) -> Any:
    r, a = call.r, _part(call, call["self"])
    return r.sqrt(r.add(r.multiply(a.real, a.real), r.multiply(a.imaginary, a.imaginary)))


def _angle(call: Call) -> Any:
    a = _part(call, call["self"])
    return call.r.atan2(a.imaginary, a.real)


def _exponential(call: Call) -> Complex:
    r, a = call.r, _part(call, call["self"])
    size = r.exp(a.real)
    return Complex(r.multiply(size, r.cos(a.imaginary)), r.multiply(size, r.sin(a.imaginary)))


def _polar(call: Call) -> Complex:
    r, size, angle = call.r, call.value("abs"), call.value("angle")
    return Complex(r.multiply(size, r.cos(angle)), r.multiply(size, r.sin(angle)))


def _as_real(call: Call) -> Any:
    return call.r.concat([call.r.expand_dims(part, -1) for part in _part(call, call["self"])], axis=-1)


def _as_complex(call: Call) -> Complex:
    value = call.value("self")
    axis = len(shape_of(value)) - 1
    return Complex(*(call.r.take(value, constant(place, "int64"), axis=axis) for place in (0, 1)))


def _matmul(call: Call) -> Complex:
    r = call.r
    a, b = _operands(call)
    return Complex(
        r.subtract(r.matmul(a.real, b.real), r.matmul(a.imaginary, b.imaginary)),
        r.add(r.matmul(a.real, b.imaginary), r.matmul(a.imaginary, b.real)),
    )


def _copy(call: Call) -> Any:
    """Convert a copy to another type; the imaginary part is dropped where the result is real."""
    value = _part(call, call["self"])
    return value if call.node.meta["val"].is_complex() else call.r.cast(value.real, call.dtype)


def _halves(call: Call, value: Any) -> list[Any]:
    """Return the two halves of the last axis."""
    shape = shape_of(value)
    half = shape[-1] // 2
    axis = len(shape) - 1
    return [call.r.strided_slice(value, axes=[axis], begin=[at], end=[at + half]) for at in (0, half)]


def _waves(rows: int, columns: int, count: int) -> tuple[Any, Any]:
    """Return cosine and sine of 2 pi r c / n, each (rows, columns)."""
    if count > _LONGEST:
        raise NotImplementedError(f"a Fourier transform of {count} values")
    turns = (np.arange(rows)[:, None] * np.arange(columns)) % count
    return np.cos(2 * np.pi * turns / count), np.sin(2 * np.pi * turns / count)


def _scale(call: Call, extents: list[int]) -> float:
    count = math.prod(extents)
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[int(call["normalization"])]


def _along(call: Call, value: Complex, axis: int, sign: int, scale: float) -> Complex:
    """Return the transform along an axis; sign: -1 forward, 1 inverse."""
    real, back = call.r.with_axis_last(value.real, axis)
    imaginary, _ = call.r.with_axis_last(value.imaginary, axis)
    count = shape_of(real)[-1]
    cosine, sine = (scale * part for part in _waves(count, count, count))
    sine = sign * sine
    matrix = np.block([[cosine, sine], [-sine, cosine]])
    joined = call.r.concat([real, imaginary], axis=len(shape_of(real)) - 1)
    parts = _halves(call, call.r.rows_times(joined, matrix))
    return Complex(*(call.r.moved_back(part, back) for part in parts))


def _of_real(call: Call) -> Complex:
    """Convert _fft_r2c: the last axis from real numbers, then the others."""
    axes = list(call["dim"])
    value, back = call.r.with_axis_last(call.value("self"), axes[-1])
    count = shape_of(value)[-1]
    frequencies = count // 2 + 1 if call["onesided"] else count
    scale = _scale(call, [call.shape("self")[axis] for axis in axes])
    cosine, sine = _waves(count, frequencies, count)
    parts = _halves(call, call.r.rows_times(value, scale * np.concatenate([cosine, -sine], axis=1)))
    found = Complex(*(call.r.moved_back(part, back) for part in parts))
    for axis in axes[:-1]:
        found = _along(call, found, axis, -1, 1.0)
    return found


def _of_complex(call: Call) -> Complex:
    """Convert _fft_c2c."""
    axes = list(call["dim"])
    scale = _scale(call, [call.shape("self")[axis] for axis in axes])
    value = _part(call, call["self"])
    for place, axis in enumerate(axes):
        value = _along(call, value, axis, -1 if call["forward"] else 1, 1.0 if place else scale)
    return value


def _to_real(call: Call) -> Any:
    """Convert _fft_c2r: the other axes inversely, then the last to real numbers."""
    axes, count = list(call["dim"]), int(call["last_dim_size"])
    value = _part(call, call["self"])
    for axis in axes[:-1]:
        value = _along(call, value, axis, 1, 1.0)
    (real, back), (imaginary, _) = (call.r.with_axis_last(part, axes[-1]) for part in value)
    frequencies = count // 2 + 1
    axis = len(shape_of(real)) - 1
    if shape_of(real)[-1] > frequencies:
        real, imaginary = (
            call.r.strided_slice(part, axes=[axis], begin=[0], end=[frequencies]) for part in (real, imaginary)
        )
    twice = np.full((frequencies, 1), 2.0)  # of a frequency and its mirror image
    twice[0] = 1
    if count % 2 == 0:
        twice[-1] = 1
    cosine, sine = _waves(frequencies, count, count)
    scale = _scale(call, [call.out_shape[at] for at in axes])
    matrix = scale * np.concatenate([twice * cosine, -twice * sine])
    found = call.r.rows_times(call.r.concat([real, imaginary], axis=axis), matrix)
    return call.r.moved_back(found, back)


def _part_at(place: int, value: Any) -> Any:
    return value[place] if isinstance(value, Complex) else value


def by_parts(own: Convert | None) -> Convert:
    """Return a converter that treats real and imaginary part alike."""

    def convert(call: Call) -> Complex:
        found = []
        for place in (0, 1):
            with call.replacing(functools.partial(_part_at, place)):
                found.append(call.by_tvm() if own is None else own(call))
        return Complex(*found)

    return convert


_ALIKE = """
view reshape _unsafe_view permute transpose slice select squeeze unsqueeze expand clone cat stack constant_pad_nd index
index_select flip roll repeat diagonal unfold as_strided sum mean alias neg _neg_view gather split_with_sizes
lift_fresh_copy copy slice_scatter select_scatter index_put where
""".split()

_BY_NAME: dict[str, Callable[[Call], Any]] = {
    "_fft_r2c": _of_real,
    "_fft_c2c": _of_complex,
    "_fft_c2r": _to_real,
    "view_as_real": _as_real,
    "view_as_complex": _as_complex,
    "complex": lambda call: _expanded(call, Complex(call.value("real"), call.value("imag"))),
    "polar": _polar,
    "abs": _absolute,
    "angle": _angle,
    "exp": _exponential,
    "mul": lambda call: _expanded(call, _multiply(call, *_operands(call))),
    "add": _sum("add"),
    "sub": _sum("subtract"),
    "div": _quotient,
    "mm": _matmul,
    "bmm": _matmul,
    **dict.fromkeys(("_conj", "conj_physical", "_conj_physical"), _conjugate),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), _resolved),
    "_to_copy": _copy,
    **dict.fromkeys(("full", "full_like"), lambda call: _expanded(call, _part(call, call["fill_value"]))),
}


@functools.cache
def names_of_complex() -> frozenset[str]:
    """Return the operators, without overloads, that convert complex numbers."""
    return frozenset([*_ALIKE, *_BY_NAME])


def complex_converter(name: str, own: Convert | None) -> Convert:
    """Return the converter of an operator of complex numbers. Raises NotImplementedError if there is none."""
    stem = name.split(".")[0]
    if stem in _BY_NAME:
        return _BY_NAME[stem]
    if stem in _ALIKE:
        return by_parts(own)
    raise NotImplementedError("complex numbers")
