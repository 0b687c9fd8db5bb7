"""Lower cumulative sums, sorts and top-k to loops along one axis.

TVM calls functions of its runtime for them, which a library without TVM does not have. Each kernel handles the lines of
a tensor along the axis in parallel. Sorts are stable, merging; a top-k of few values inserts each value among the best,
which most values are not, and else sorts. NaN is larger than all numbers, as in numpy and PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from tvmflow.ir.tvm_compat import Call, shape_of, type_of
from tvmflow.passes.legalize.batch_matmul import OPAQUE, buffer_type, parse_kernel

_MOST_INSERTED, _LEAST_SHARE = 64, 4  # of a top-k: more values, or more than a quarter of a line, are sorted

_SCAN = """
@T.prim_func(s_tir=True)
def scan(x: {x}, out: {out}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": {pattern}}})
    total = T.sblock_alloc_buffer((T.int64({lines}),), "{dtype}")
    with T.sblock("scan"):
        T.reads(x[{all_x}])
        T.writes(out[{all_x}])
        for line in T.parallel(T.int64({lines})):
            total[line] = {start}
            for at in range(T.int64({extent})):
                {steps}
"""
_TOTAL = 'total[line] = total[line] {sign} T.Cast("{dtype}", x[{place}])'
_STORE = "out[{place}] = total[line]"

_TOP = """
@T.prim_func(s_tir=True)
def top(x: {x}, values: {values}, places: {places}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": {pattern}}})
    hole = T.sblock_alloc_buffer((T.int64({lines}),), "int64")
    with T.sblock("top"):
        T.reads(x[{all_x}])
        T.writes(values[{all_made}], places[{all_made}])
        for line in T.parallel(T.int64({lines})):
            for at in range(T.int64({extent})):
                hole[line] = T.min(at, T.int64({count}))
                while T.if_then_else(
                    hole[line] > T.int64(0), {better}, T.bool(False)
                ):
                    hole[line] = hole[line] - T.int64(1)
                    if hole[line] + T.int64(1) < T.int64({count}):
                        values[{after_hole}] = values[{at_hole}]
                        places[{after_hole}] = places[{at_hole}]
                if hole[line] < T.int64({count}):
                    values[{at_hole}] = x[{place}]
                    places[{at_hole}] = T.Cast("{places_dtype}", at)
"""

_SORT = """
@T.prim_func(s_tir=True)
def sort(x: {x}, values: {values}, places: {places}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": {pattern}}})
    order = T.sblock_alloc_buffer((T.int64({lines}), T.int64({extent})), "int64")
    merged = T.sblock_alloc_buffer((T.int64({lines}), T.int64({extent})), "int64")
    left = T.sblock_alloc_buffer((T.int64({lines}),), "int64")
    right = T.sblock_alloc_buffer((T.int64({lines}),), "int64")
    with T.sblock("sort"):
        T.reads(x[{all_x}])
        T.writes(values[{all_made}], places[{all_made}])
        for line in T.parallel(T.int64({lines})):
            for at in range(T.int64({extent})):
                order[line, at] = at
            for level in range(T.int64({levels})):
                for run in range(T.shift_right(T.int64({extent} - 1), level + T.int64(1)) + T.int64(1)):
                    left[line] = T.shift_left(run, level + T.int64(1))
                    right[line] = T.min(T.shift_left(T.int64(2) * run + T.int64(1), level), T.int64({extent}))
                    for at in range(
                        T.shift_left(run, level + T.int64(1)),
                        T.min(T.shift_left(run + T.int64(1), level + T.int64(1)), T.int64({extent})),
                    ):
                        if T.if_then_else(
                            left[line] < T.min(T.shift_left(T.int64(2) * run + T.int64(1), level), T.int64({extent})),
                            T.if_then_else(
                                right[line]
                                < T.min(T.shift_left(run + T.int64(1), level + T.int64(1)), T.int64({extent})),
                                {keeps_left},
                                T.bool(True),
                            ),
                            T.bool(False),
                        ):
                            merged[line, at] = order[line, left[line]]
                            left[line] = left[line] + T.int64(1)
                        else:
                            merged[line, at] = order[line, right[line]]
                            right[line] = right[line] + T.int64(1)
                for at in range(T.int64({extent})):
                    order[line, at] = merged[line, at]
            for at in range(T.int64({count})):
                values[{made}] = x[{sorted}]
                places[{made}] = T.Cast("{places_dtype}", order[line, at])
"""


def axis_legalizers() -> dict[str, Any]:
    """Return operator -> function (builder, call) -> Relax expression, for LegalizeOps."""
    return {
        "relax.cumsum": _legalize_scan,
        "relax.cumprod": _legalize_scan,
        "relax.sort": _legalize_sort,
        "relax.argsort": _legalize_sort,
        "relax.topk": _legalize_topk,
    }


def _element(shape: tuple[int, ...], axis: int, at: str) -> str:
    """Return the index of element `at` of a line, by TVMScript expressions of `line`."""
    others = [extent for place, extent in enumerate(shape) if place != axis]
    parts, behind = [], math.prod(others)
    for extent in others:
        behind //= extent or 1
        parts.append(f"line // T.int64({behind}) % T.int64({extent})" if extent > 1 else "T.int64(0)")
    return ", ".join([*parts[:axis], at, *parts[axis:]])


def _everything(shape: tuple[int, ...]) -> str:
    return ", ".join(f"0:{extent}" for extent in shape)


def _legalize_scan(builder: Any, call: Call) -> Any:
    value, attrs, dtype = call.args[0], call.attrs, str(type_of(call).dtype)
    if attrs.axis is None:
        value = builder.emit(relax.op.reshape(value, (math.prod(shape_of(value)),)))
    shape = shape_of(value)
    axis = int(attrs.axis or 0) % len(shape)
    place = _element(shape, axis, "at")
    sign, start = ("+", 0) if str(call.op.name).endswith("sum") else ("*", 1)
    parts = {"place": place, "sign": sign, "dtype": dtype}
    steps = [_TOTAL.format(**parts), _STORE.format(**parts)]
    function = parse_kernel(
        _SCAN,
        {
            "x": buffer_type(shape, str(type_of(value).dtype)),
            "out": buffer_type(shape, dtype),
            "all_x": _everything(shape),
            "pattern": OPAQUE,
            "lines": math.prod(shape) // shape[axis],
            "extent": shape[axis],
            "dtype": dtype,
            "start": f'T.Cast("{dtype}", {start})',
            "steps": f"\n{' ' * 16}".join(reversed(steps) if attrs.exclusive else steps),
        },
    )
    return relax.call_tir(builder.add_func(function, "scan"), [value], type_of(call))


def _legalize_sort(builder: Any, call: Call) -> Any:
    shape, attrs = shape_of(call.args[0]), call.attrs
    is_places = str(call.op.name) == "relax.argsort"
    dtype = str(type_of(call).dtype) if is_places else "int32"
    both = _sorted(builder, call.args[0], int(attrs.axis), shape[int(attrs.axis)], bool(attrs.descending), dtype)
    return relax.TupleGetItem(both, int(is_places))


def _legalize_topk(builder: Any, call: Call) -> Any:
    attrs, shape = call.attrs, shape_of(call.args[0])
    count = int(attrs.k) if int(attrs.k) > 0 else shape[int(attrs.axis)]
    both = _sorted(builder, call.args[0], int(attrs.axis), count, bool(attrs.largest), str(attrs.dtype))
    kept = {"both": (0, 1), "values": (0,), "indices": (1,)}[str(attrs.ret_type)]
    return both if len(kept) == 2 else relax.TupleGetItem(both, kept[0])


def _precedes(a: str, b: str, descending: bool, dtype: str, *, or_equal: bool = False) -> str:
    """Return the condition that `a` comes before `b` in an order in which NaN is the largest number.

    No comparison is negated: TVM takes `not a < b` for `a >= b`.
    """
    larger, smaller = (a, b) if descending else (b, a)
    found = f"{larger} >{'=' if or_equal else ''} {smaller}"
    if "float" not in dtype:
        return found
    if or_equal:
        return f"({found} or T.isnan({larger}))"
    return f"({found} or (T.isnan({larger}) and T.Not(T.isnan({smaller}))))"


def _sorted(builder: Any, value: Any, axis: int, count: int, descending: bool, places_dtype: str) -> Any:
    """Return the first `count` values along an axis in order, and their places."""
    shape, dtype = shape_of(value), str(type_of(value).dtype)
    axis %= len(shape)
    extent = shape[axis]
    made = (*shape[:axis], count, *shape[axis + 1 :])
    before_hole = _element(made, axis, "T.max(hole[line] - T.int64(1), T.int64(0))")
    left, right = (_element(shape, axis, f"order[line, {side}[line]]") for side in ("left", "right"))
    inserts = count <= _MOST_INSERTED and count * _LEAST_SHARE <= extent
    function = parse_kernel(
        _TOP if inserts else _SORT,
        {
            "x": buffer_type(shape, dtype),
            "values": buffer_type(made, dtype),
            "places": buffer_type(made, places_dtype),
            "all_x": _everything(shape),
            "all_made": _everything(made),
            "pattern": OPAQUE,
            "lines": math.prod(shape) // extent,
            "extent": extent,
            "levels": (extent - 1).bit_length(),
            "count": count,
            "better": _precedes(f"x[{_element(shape, axis, 'at')}]", f"values[{before_hole}]", descending, dtype),
            "places_dtype": places_dtype,
            "place": _element(shape, axis, "at"),
            "made": _element(made, axis, "at"),
            "sorted": _element(shape, axis, "order[line, at]"),
            "keeps_left": _precedes(f"x[{left}]", f"x[{right}]", descending, dtype, or_equal=True),
            "at_hole": _element(made, axis, "hole[line]"),
            "after_hole": _element(made, axis, "hole[line] + T.int64(1)"),
        },
    )
    kinds = [relax.TensorType(made, dtype), relax.TensorType(made, places_dtype)]
    return builder.emit(relax.call_tir(builder.add_func(function, "sort"), [value], kinds))
