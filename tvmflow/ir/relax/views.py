"""Express chains of reshapes, transposes and slices as one index into their source.

Nothing is copied then. The chain is applied to the element numbers 0, 1, 2, ... of the source, and an index is fitted
to the result. It knows nothing of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmflow.ir.relax.graph import Array
from tvmflow.ir.tvm_compat import Call, constant_value, operator_of, shape_of

_NOWHERE = -1  # element number of padding


class View(NamedTuple):
    """A view. source: the Relax value; places: element number in the flat source for each element, negative for
    padding.
    """

    source: Any
    places: Array


def views_of(value: Any, resolve: Callable[[Any], Any]) -> Iterator[View]:
    """Yield a value as a view of itself, then of each earlier value of its chain. made: returns the expression of a
    variable.
    """
    shape = shape_of(value)
    places = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    yield View(value, places)
    while (step := _step(value, resolve)) is not None:
        value, move = step
        source = shape_of(value)
        moved = move(np.arange(math.prod(source), dtype=np.int64).reshape(source))
        places = np.where(places < 0, _NOWHERE, moved.ravel()[places])
        yield View(value, places)


def view_of(value: Any, resolve: Callable[[Any], Any]) -> View:
    """Return a value as a view of the first value of its chain."""
    return list(views_of(value, resolve))[-1]


def keeps_order(shape: Sequence[int], axes: Sequence[Any]) -> bool:
    """Whether a transpose keeps the order of elements: it moves axes of extent 1 only."""
    longer = [int(axis) for axis in axes if shape[int(axis)] > 1]
    return longer == sorted(longer)


def is_rearrangement(call: Call) -> bool:
    """Whether a call only rearranges the elements of its first argument, or is part of such a chain."""
    return hasattr(call, "tuple_value") or operator_of(call) in {*_OPERATORS, "relax.take"}


def _step(value: Any, resolve: Callable[[Any], Any]) -> tuple[Any, Callable[[Array], Array]] | None:
    """Return the source of an operator that rearranges elements, and a function that applies it; None for any other."""
    call = resolve(value)
    if hasattr(call, "tuple_value"):  # a part of a split
        parts, index = resolve(call.tuple_value), int(call.index)
        if operator_of(parts) != "relax.split":
            return None
        at = parts.attrs.indices_or_sections
        cuts = [int(cut) for cut in at] if hasattr(at, "__len__") else int(getattr(at, "value", at))
        return parts.args[0], lambda x: np.split(x, cuts, axis=int(parts.attrs.axis))[index]
    name = operator_of(call)
    if name == "relax.take":
        at = constant_value(call.args[1])
        if at is None or at.numpy().ndim or call.attrs.axis is None:
            return None
        return call.args[0], lambda x: np.take(x, int(at.numpy()), axis=int(call.attrs.axis))
    if name not in _OPERATORS or (name == "relax.nn.pad" and str(call.attrs.pad_mode) != "constant"):
        return None
    return call.args[0], lambda x: _OPERATORS[name](x, call)


def slice_array(x: Array, call: Call) -> Array:
    """Return the slice of an array that a call of strided_slice takes."""
    axes, begin, end = ([int(getattr(v, "value", v)) for v in call.args[i].fields] for i in (1, 2, 3))
    strides = [int(getattr(v, "value", v)) for v in call.args[4].fields] if len(call.args) > 4 else [1] * len(axes)
    index: list[Any] = [slice(None)] * x.ndim
    for axis, *parts in zip(axes, begin, end, strides, strict=True):
        index[axis] = slice(*parts)
    return np.asarray(x[tuple(index)])


def _permute(x: Array, call: Call) -> Array:
    axes = call.attrs.axes
    return np.transpose(x, None if axes is None else [int(axis) for axis in axes])


def _pad(x: Array, call: Call) -> Array:
    return np.pad(x, np.reshape([int(w) for w in call.attrs.pad_width], (-1, 2)), constant_values=_NOWHERE)


_OPERATORS: dict[str, Callable[[Array, Any], Array]] = {
    "relax.permute_dims": _permute,
    "relax.strided_slice": slice_array,
    "relax.nn.pad": _pad,
    "relax.broadcast_to": lambda x, call: np.broadcast_to(x, shape_of(call)),
    **{
        f"relax.{name}": lambda x, call: x.reshape(shape_of(call))
        for name in ("reshape", "expand_dims", "squeeze", "flatten")
    },
}


class Index(NamedTuple):
    """The index of an array by coordinates: for each axis a constant, and terms (coordinate, divisor, modulus or 0,
    factor).
    """

    axes: tuple[tuple[int, tuple[tuple[int, int, int, int], ...]], ...]

    def text(self, *coordinates: str) -> str:
        """Return the index as an expression, its axes separated by commas; () for a scalar."""
        return ", ".join(self._axis(constant, terms, coordinates) for constant, terms in self.axes) or "()"

    @staticmethod
    def _axis(constant: int, terms: tuple[tuple[int, int, int, int], ...], coordinates: Sequence[str]) -> str:
        parts = [str(constant)] if constant or not terms else []
        for which, divisor, modulus, factor in terms:
            part = f"({coordinates[which]})"
            part += f" // {divisor}" if divisor > 1 else ""
            part += f" % {modulus}" if modulus else ""
            parts.append(f"{part} * {factor}" if factor != 1 else part)
        return " + ".join(parts)

    def at(self, *coordinates: Array) -> tuple[Array, ...]:
        """Return the index of each axis at coordinates, arrays that broadcast."""
        found = []
        for constant, terms in self.axes:
            value: Any = np.int64(constant)
            for which, divisor, modulus, factor in terms:
                digit = coordinates[which] // divisor
                value = value + (digit % modulus if modulus else digit) * factor
            found.append(np.asarray(value))
        return tuple(found)


def index_of(places: Array, shape: tuple[int, ...]) -> Index | None:
    """Return the index into an array that is equal to element numbers by coordinates, None if there is no such form."""
    if places.size == 0 or int(places.min()) < 0:
        return None
    axes = []
    for axis, extent in enumerate(shape):
        inner = math.prod(shape[axis + 1 :])
        along = places // inner % extent
        constant = int(along.flat[0])
        total: Any = np.int64(constant)
        terms: list[tuple[int, int, int, int]] = []
        for coordinate in range(places.ndim):
            line = along[tuple(slice(None) if i == coordinate else 0 for i in range(places.ndim))] - constant
            digits = _digits(line)
            if digits is None:
                return None
            terms += [(coordinate, *digit) for digit in digits]
            total = total + line.reshape([-1 if i == coordinate else 1 for i in range(places.ndim)])
        if not np.array_equal(np.broadcast_to(total, along.shape), along):
            return None
        axes.append((constant, tuple(terms)))
    return Index(tuple(axes))


def _digits(line: Array, divisor: int = 1) -> list[tuple[int, int, int]] | None:
    """Return a sequence that starts with 0 as a sum of digits of the position: (divisor, modulus, factor), modulus 0
    for none.
    """
    if not line.any():
        return []
    factor = int(line[1])
    breaks = np.flatnonzero(line != np.arange(len(line)) * factor)
    if not breaks.size:
        return [(divisor, 0, factor)]
    run = int(breaks[0])
    if len(line) % run or not np.array_equal(line, np.repeat(line[::run], run) + np.tile(line[:run], len(line) // run)):
        return None
    rest = _digits(line[::run], divisor * run)
    return None if rest is None else ([(divisor, run, factor)] if factor else []) + rest
