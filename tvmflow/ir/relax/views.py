"""Where the values of a view lie in what it is a view of: reshapes, transposes and slices as one index, so that none is
a copy.

A chain of such operators is applied to the numbers 0, 1, 2, ... of the source's places, and an index is read off the
result. Knows nothing of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tvmflow.ir.relax.graph import Array
from tvmflow.ir.tvm_compat import constant_value, operator_of, shape_of

_NOWHERE = -1  # the place of a filling


class View(NamedTuple):
    """source: the Relax value that is looked at; places: for each value of the view, its place in the flat source, less
    than 0 for none.
    """

    source: Any
    places: Array


def views_of(value: Any, made: Callable[[Any], Any]) -> Iterator[View]:
    """Yield a value as a view of itself, then of each value that it was moved from, the next first. made: the
    expression of a variable.
    """
    shape = shape_of(value)
    places = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    yield View(value, places)
    while (step := _step(value, made)) is not None:
        value, move = step
        source = shape_of(value)
        moved = move(np.arange(math.prod(source), dtype=np.int64).reshape(source))
        places = np.where(places < 0, _NOWHERE, moved.ravel()[places])
        yield View(value, places)


def view_of(value: Any, made: Callable[[Any], Any]) -> View:
    """Return a value as a view of what all operators that only move values took it from."""
    return list(views_of(value, made))[-1]


def keeps_order(shape: Sequence[int], axes: Sequence[Any]) -> bool:
    """Whether a transpose leaves all values where they are: it moves axes of one step only."""
    longer = [int(axis) for axis in axes if shape[int(axis)] > 1]
    return longer == sorted(longer)


def is_move(call: Any) -> bool:
    """Whether a call only moves the values of its first argument, or is part of what does."""
    return hasattr(call, "tuple_value") or operator_of(call) in {*_MOVES, "relax.take"}


def _step(value: Any, made: Callable[[Any], Any]) -> tuple[Any, Callable[[Array], Array]] | None:
    """Return what an operator moves and how, None where it does anything else."""
    call = made(value)
    if hasattr(call, "tuple_value"):  # one part of a split
        parts, index = made(call.tuple_value), int(call.index)
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
    if name not in _MOVES or (name == "relax.nn.pad" and str(call.attrs.pad_mode) != "constant"):
        return None
    return call.args[0], lambda x: _MOVES[name](x, call)


def sliced(x: Array, call: Any) -> Array:
    """Return what a call of strided_slice takes of an array."""
    axes, begin, end = ([int(getattr(v, "value", v)) for v in call.args[i].fields] for i in (1, 2, 3))
    strides = [int(getattr(v, "value", v)) for v in call.args[4].fields] if len(call.args) > 4 else [1] * len(axes)
    index: list[Any] = [slice(None)] * x.ndim
    for axis, *parts in zip(axes, begin, end, strides, strict=True):
        index[axis] = slice(*parts)
    return np.asarray(x[tuple(index)])


def _permuted(x: Array, call: Any) -> Array:
    axes = call.attrs.axes
    return np.transpose(x, None if axes is None else [int(axis) for axis in axes])


def _padded(x: Array, call: Any) -> Array:
    return np.pad(x, np.reshape([int(w) for w in call.attrs.pad_width], (-1, 2)), constant_values=_NOWHERE)


_MOVES: dict[str, Callable[[Array, Any], Array]] = {
    "relax.permute_dims": _permuted,
    "relax.strided_slice": sliced,
    "relax.nn.pad": _padded,
    "relax.broadcast_to": lambda x, call: np.broadcast_to(x, shape_of(call)),
    **{
        f"relax.{name}": lambda x, call: x.reshape(shape_of(call))
        for name in ("reshape", "expand_dims", "squeeze", "flatten")
    },
}


class Index(NamedTuple):
    """An index of an array's axes by coordinates: for each axis a constant, and terms (coordinate, divisor, modulus or
    0, factor).
    """

    axes: tuple[tuple[int, tuple[tuple[int, int, int, int], ...]], ...]

    def text(self, *coordinates: str) -> str:
        """Return the index as an expression, its axes separated by commas; () of a value without axes."""
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
    """Return the index into an array of a shape that places, by coordinates, are; None where it has no such form."""
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
    """Return numbers that start with 0 as a sum of digits of their positions: (divisor, modulus, factor), modulus 0 for
    none.
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
