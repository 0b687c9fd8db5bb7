"""Let argmax and argmin return the first place of NaN, as numpy and PyTorch do, and a place of every line.

TVM begins with the place -1 and the smallest finite number. A line of that number, or of -inf, has no larger value: -1
would be its place. Here the smallest number of all is at place 0, which is right where no other is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

from tvmflow.ir.tvm_compat import dtype_of, load_class, loaded
from tvmflow.support.dtypes import numpy_dtype


def change_places(block: Any, limit: Callable[[bool, Any, Any], Any]) -> Any:
    """Return a block that accumulates a limit and its place, or that begins one, with NaN as the limit; another block
    stays as it is. limit: returns the larger (or smaller) of two floats, NaN if one is.
    """
    stores = [part for part in block.body.seq if isinstance(part, tirx.BufferStore)]
    if len(stores) == len(block.body.seq) and _is_no_place(stores[0].value) and _is_limit(stores[1].value):
        return _rebuilt(block, _from_smallest(block.body), block.init)
    chosen = [part.value for part in block.body.seq if isinstance(part, tirx.Bind)]
    if len(stores) != 2 or len(chosen) != 2 or not all(isinstance(value, tirx.Select) for value in chosen):
        return block
    found = _read_condition(chosen[0].condition, [store.buffer for store in stores])
    if found is None:
        return block
    # Without the variables of TVM's block: an unrolled loop would define each of them several times.
    place, so_far = chosen
    place = tirx.Select(_keeps_place(found, block), place.true_value, place.false_value)
    if _is_float(found):
        so_far = limit(found.larger is tirx.GT, found.so_far, found.value)
    values = place, so_far
    changed = [
        tirx.BufferStore(store.buffer, value, store.indices) for store, value in zip(stores, values, strict=True)
    ]
    return _rebuilt(block, tirx.SeqStmt(changed), None if block.init is None else _from_smallest(block.init))


def _rebuilt(block: Any, body: Any, init: Any) -> Any:
    same, buffers = (block.iter_vars, block.reads, block.writes, block.name_hint), block.alloc_buffers
    return type(block)(*same, body, init, buffers, block.match_buffers, block.annotations)


def _is_no_place(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value.value) == -1


def _is_limit(value: Any) -> bool:
    """Return whether a value is the smallest or the largest finite one of its type."""
    if not isinstance(value, tirx.FloatImm | tirx.IntImm):
        return False
    dtype = numpy_dtype(dtype_of(value))
    of = np.iinfo(dtype) if isinstance(value, tirx.IntImm) else ml_dtypes.finfo(dtype)
    return float(value.value) in (float(of.min), float(of.max))


def _from_smallest(statement: Any) -> Any:
    """Return a statement that begins with an infinity at place 0 instead of the largest finite number at place -1."""
    changes = (
        (tirx.FloatImm, _as_infinity),
        (tirx.IntImm, lambda one: tirx.const(0, "int64") if _is_no_place(one) else one),
    )
    return structural_map(statement, changes)


def _as_infinity(number: Any) -> Any:
    value, dtype = float(number.value), dtype_of(number)
    return tirx.const(math.copysign(math.inf, value), dtype) if _is_limit(number) else number


@dataclass(frozen=True)
class _Comparison:
    """`larger(so_far, value) or so_far == value and place < other`."""

    larger: Any
    so_far: Any
    value: Any
    place: Any
    other: Any


def _read_condition(condition: Any, results: list[Any]) -> _Comparison | None:
    """Return the comparison of a limit so far with the next value; None for another condition."""
    if not isinstance(condition, tirx.Or) or not isinstance(condition.a, tirx.GT | tirx.LT):
        return None
    larger, equal = condition.a, condition.b
    if not isinstance(equal, tirx.And) or not isinstance(equal.a, tirx.EQ) or not isinstance(equal.b, tirx.LT):
        return None
    ends = larger.a, equal.b.a
    if not all(isinstance(end, load_class()) and any(loaded(end).same_as(one) for one in results) for end in ends):
        return None
    return _Comparison(type(larger), larger.a, larger.b, equal.b.a, equal.b.b)


def _keeps_place(of: _Comparison, block: Any) -> Any:
    """Return the condition that the place so far stays."""
    is_nan = tirx.isnan(of.so_far) if _is_float(of) else tirx.const(False, "bool")
    if _in_order(of, block):
        return tirx.any((tirx.GE if of.larger is tirx.GT else tirx.LE)(of.so_far, of.value), is_nan)
    same, before = of.so_far.equal(of.value), of.place < of.other
    found = tirx.any(of.larger(of.so_far, of.value), tirx.all(before, tirx.any(same, is_nan)))
    return tirx.any(found, tirx.all(is_nan, tirx.Not(tirx.isnan(of.value)))) if _is_float(of) else found


def _is_float(of: _Comparison) -> bool:
    return "float" in dtype_of(of.so_far)


def _in_order(of: _Comparison, block: Any) -> bool:
    """Return whether places come in increasing order: they are an axis of the reduction, not the results of another."""
    reduced = [axis.var for axis in block.iter_vars if int(axis.iter_type) != 0]
    loads: list[Any] = []
    structural_walk(of.other, ((load_class(), loads.append),))
    return len(reduced) == 1 and not loads
