"""Operators of Relax that take indices that are data, and what they compute: an index outside means the nearest place.

In each case `x` has 4 rows of 5 numbers, or is an image of 4 by 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.recurrent import SIGMOID, TANH
from tvmflow.ir.relax.recurrent import Recurrence, recurrent

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[tuple[int, ...], str]]
_op = relax.op


@dataclass(frozen=True)
class Indexed:
    """inputs: shape and dtype by name. make: their variables -> a call. expected: the same in numpy, None where only
    the addresses are tested.
    """

    inputs: Shapes
    make: Callable[..., Any]
    expected: Callable[..., Array] | None = None


def module_of(*cases: Indexed) -> Any:
    """Return a module of some cases side by side: takes the inputs of all, returns the outputs of all."""
    builder = relax.BlockBuilder()
    variables = [
        [relax.Var(f"{name}{at}", relax.TensorType(*kind)) for name, kind in case.inputs.items()]
        for at, case in enumerate(cases)
    ]
    with builder.function("main", [one for own in variables for one in own]):
        with builder.dataflow():
            made = [builder.emit(case.make(*own)) for case, own in zip(cases, variables, strict=True)]
            output = builder.emit_output(builder.emit(relax.Tuple(made)) if len(made) > 1 else made[0])
        builder.emit_func_output(output)
    return builder.finalize()


def _clamped(index: Array, extents: Any, from_end: bool = False) -> Array:
    wide = np.where(from_end & (index < 0), index + np.asarray(extents, index.dtype), index)
    return np.clip(wide, 0, np.asarray(extents, np.int64) - 1).astype(np.int64)


def _take_along(axis: int) -> Callable[..., Array]:
    return lambda x, at: np.take_along_axis(x, _clamped(at, x.shape[axis]), axis)


def _scatter(axis: int, by: Any = None) -> Callable[..., Array]:
    def compute(x: Array, index: Array, values: Array) -> Array:
        made, index = x.copy(), _clamped(index, x.shape[axis], from_end=True)
        for place in np.ndindex(*index.shape):
            to = (*place[:axis], int(index[place]), *place[axis + 1 :])
            made[to] = values[place] if by is None else by(made[to], values[place])
        return made

    return compute


def _gather_nd(x: Array, index: Array) -> Array:
    return np.asarray(x[tuple(np.moveaxis(_clamped(index, x.shape[: index.shape[-1]]), -1, 0))])


def _gather_nd_of_batch(x: Array, index: Array) -> Array:
    return np.stack([_gather_nd(*one) for one in zip(x, index, strict=True)])


def _scatter_nd(x: Array, index: Array, values: Array) -> Array:
    made, index = x.copy(), _clamped(index, x.shape[: index.shape[-1]])
    for place in np.ndindex(*index.shape[:-1]):
        made[tuple(index[place])] += values[place]
    return made


def recurrent_layer(gates: Any, lengths: Any, **changed: Any) -> Any:
    """Return the call of a GRU in both directions, on 4 times of 2 samples."""
    kept = {"kind": "gru", "hidden": 6, "reverse": (False, True), "activations": (SIGMOID, TANH)} | changed
    weight = relax.const(np.linspace(-1, 1, 2 * 3 * 36).reshape(2, 3, 6, 6).astype(np.float32), "float32")
    return recurrent(Recurrence(**kept), {"gates": gates, "weight": weight, "lengths": lengths})


_X, _ROWS, _IMAGE = ((4, 5), "float32"), ((3, 5), "float32"), ((2, 3, 4, 5), "float32")


def _at(*shape: int, dtype: str = "int64") -> tuple[tuple[int, ...], str]:
    return shape, dtype


CASES: dict[str, Indexed] = {
    "take": Indexed(
        {"x": _X, "i": _at(7)}, lambda x, i: _op.take(x, i, 0, mode="fast"), lambda x, i: x[_clamped(i, 4)]
    ),
    "take of int32": Indexed(
        {"x": _X, "i": _at(7, dtype="int32")}, lambda x, i: _op.take(x, i, 1), lambda x, i: x[:, _clamped(i, 5)]
    ),
    "take of bytes": Indexed(
        {"x": _X, "i": _at(9, dtype="uint8")},
        lambda x, i: _op.take(x, i, 0, mode="nan"),
        lambda x, i: x[_clamped(i.astype(np.int64), 4)],
    ),
    "gather_elements": Indexed({"x": _X, "i": _at(3, 5)}, lambda x, i: _op.gather_elements(x, i, 0), _take_along(0)),
    "gather_elements of int32": Indexed(
        {"x": _X, "i": _at(4, 3, dtype="int32")}, lambda x, i: _op.gather_elements(x, i, 1), _take_along(1)
    ),
    "gather_nd": Indexed({"x": _X, "i": _at(6, 2)}, lambda x, i: _op.gather_nd(x, i, 0), _gather_nd),
    "gather_nd of rows": Indexed({"x": _X, "i": _at(6, 1)}, lambda x, i: _op.gather_nd(x, i, 0), _gather_nd),
    "gather_nd of a batch": Indexed(
        {"x": ((2, 4, 5), "float32"), "i": _at(2, 6, 2)}, lambda x, i: _op.gather_nd(x, i, 1), _gather_nd_of_batch
    ),
    "scatter_elements": Indexed(
        {"x": _X, "i": _at(3, 5), "v": _ROWS}, lambda x, i, v: _op.scatter_elements(x, i, v, 0), _scatter(0)
    ),
    "scatter_elements that adds": Indexed(
        {"x": _X, "i": _at(4, 5, dtype="int32"), "v": _X},
        lambda x, i, v: _op.scatter_elements(x, i, v, 1, "add"),
        _scatter(1, np.add),
    ),
    "scatter_elements that keeps the largest": Indexed(
        {"x": _X, "i": _at(3, 5), "v": _ROWS},
        lambda x, i, v: _op.scatter_elements(x, i, v, -2, "max"),
        _scatter(0, np.maximum),
    ),
    "scatter_nd": Indexed(
        {"x": _X, "i": _at(6, 2), "v": ((6,), "float32")},
        lambda x, i, v: _op.scatter_nd(x, i, v, "add"),
        _scatter_nd,
    ),
    "scatter_nd of rows": Indexed(
        {"x": _X, "i": _at(3, 1, dtype="int32"), "v": _ROWS},
        lambda x, i, v: _op.scatter_nd(x, i, v, "add"),
        _scatter_nd,
    ),
    **{
        f"grid_sample, {method}, {padding}": Indexed(
            {"x": _IMAGE, "g": ((2, 2, 6, 7), "float32")},
            lambda x, g, method=method, padding=padding: _op.image.grid_sample(
                x, g, method=method, padding_mode=padding
            ),
        )
        for method in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
    },
    "roi_align": Indexed(
        {"x": _IMAGE, "r": ((6, 5), "float32")}, lambda x, r: _op.vision.roi_align(x, r, (2, 2), 1.0, 2)
    ),
    "roi_align, aligned": Indexed(
        {"x": _IMAGE, "r": ((6, 5), "float32")}, lambda x, r: _op.vision.roi_align(x, r, (2, 3), 0.5, 3, aligned=True)
    ),
    "lengths of a recurrent layer": Indexed(
        {"x": ((4, 2, 3 * 2 * 6), "float32"), "i": _at(2)}, lambda x, i: relax.TupleGetItem(recurrent_layer(x, i), 0)
    ),
    "roi_pool": Indexed({"x": _IMAGE, "r": ((6, 5), "float32")}, lambda x, r: _op.vision.roi_pool(x, r, (2, 2), 1.0)),
}
