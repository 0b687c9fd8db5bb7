"""Schedule kernels that only move numbers, where neighbours of the output are far apart in the input, by square tiles.

A tile is read in vectors along the input and written in vectors along the output (passes/kernel/transpose_tiles.py).
The elementwise schedule would collect each vector number by number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvmflow.ir.tir.blocks import Kernel, NotCoveredError, block_ref
from tvmflow.ir.tir.stmt_rewriter import with_variables
from tvmflow.ir.tvm_compat import dtype_of, iteration_sum, load_class, loaded
from tvmflow.schedules.template import (
    SPREAD_LANES,
    TRANSPOSED,
    Knobs,
    Template,
    divisors,
    merge_epilogue,
    outputs_of,
    parallel_candidates,
)
from tvmflow.targets.cpu_features import CpuFeatures

_LEAST = 4  # numbers in a row of a tile
_MOST_APART = 2  # distance of a row's numbers in the input
_NARROWEST = 8  # numbers in a vector from which tiles pay
_NEON_LANES = 8  # of two registers of words, one of halves, half of one of bytes
_WORDS = ("float32", "int32")
_SHORTER = ("float16", "bfloat16", "int16", "uint16", "int8", "uint8")


@dataclass(frozen=True)
class Digit:
    """A loop over the output: its extent, and the distance of its steps in the input."""

    extent: int
    stride: int


def digits_of(schedule: Any, kernel: Kernel) -> list[Digit]:
    """Return loops over the output of a kernel of moves, outermost first, whose steps are constant in the input.

    Empty for kernels that compute, fill or repeat numbers, or whose order no such loops describe.
    """
    if kernel.reductions or not kernel.after or outputs_of(schedule, kernel) != [kernel.after[-1]]:
        return []
    stores = {}
    for name in kernel.after:
        node = schedule.get(block_ref(schedule, name))
        if not isinstance(node.body, tirx.BufferStore) or not isinstance(node.body.value, load_class()):
            return []
        stores[node.body.buffer] = node
    last = schedule.get(block_ref(schedule, kernel.after[-1]))
    axes = [axis.var for axis in last.iter_vars]
    sizes = [int(size) for size in last.body.buffer.shape]
    plain = len(axes) == len(sizes) and all(a.same_as(b) for a, b in zip(last.body.indices, axes, strict=True))
    if not plain or len(stores) != len(kernel.after) or dtype_of(last.body.value) not in _WORDS + _SHORTER:
        return []
    load = last.body.value
    while (node := stores.get(loaded(load))) is not None:
        if len(node.iter_vars) != len(load.indices):  # a block of one number has an axis
            return []
        places = {axis.var: at for axis, at in zip(node.iter_vars, load.indices, strict=True)}
        if not all(index.same_as(axis.var) for index, axis in zip(node.body.indices, node.iter_vars, strict=True)):
            return []
        load = with_variables(node.body.value, places)
    if not load.indices:  # a number that is repeated
        return []
    return _merge(_divide(_flat(load), dict(zip(axes, sizes, strict=True))))


def _flat(load: Any) -> Any:
    """Return the number of the element that is read, in row-major order."""
    found: Any = tirx.const(0, dtype_of(load.indices[0]))
    for index, size in zip(load.indices, loaded(load).shape, strict=True):
        found = found * size + index
    return found


def _divide(place: Any, axes: dict[Any, int]) -> list[Digit]:
    """Return the digits of the axes of which an index is a sum with constant factors."""
    found, digits = iteration_sum(place, axes), []
    if not isinstance(found.base, tirx.IntImm):  # what TVM could not divide
        return []
    for axis, size in axes.items():
        parts = [part for part in found.args if axis.same_as(part.source.source)]
        parts.sort(key=lambda part: -int(part.lower_factor))
        if math.prod(int(part.extent) for part in parts) != size:
            return []
        digits += [Digit(int(part.extent), int(part.scale)) for part in parts]
    return digits if math.prod(digit.extent for digit in digits) == math.prod(axes.values()) else []


def _merge(digits: list[Digit]) -> list[Digit]:
    """Return digits with neighbours that are one loop in the input, too, as one."""
    merged: list[Digit] = []
    for digit in digits:
        if merged and merged[-1].stride == digit.stride * digit.extent:
            digit = Digit(merged.pop().extent * digit.extent, digit.stride)
        merged.append(digit)
    return merged


def _tile(digits: list[Digit], lanes: int) -> tuple[int, int, int] | None:
    """Return which digit is nearly contiguous in the input, and its part of a tile and that of the last digit; None if
    tiles would be narrow.
    """
    if not digits or digits[-1].stride == 1:
        return None
    rows = max(divisors(digits[-1].extent, lanes))
    for at, digit in sorted(enumerate(digits[:-1]), key=lambda one: one[1].stride):
        across = max(divisors(digit.extent, lanes))
        if min(across, rows) >= _LEAST and 0 < digit.stride <= _MOST_APART:
            return at, across, rows
    return None


def _covers(schedule: Any, kernel: Kernel) -> bool:
    return _tile(digits_of(schedule, kernel), SPREAD_LANES) is not None


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    digits, neon = digits_of(schedule, kernel), "neon" in cpu.dots
    lanes = _NEON_LANES if neon else cpu.lanes
    dtype = dtype_of(schedule.get(block_ref(schedule, kernel.after[-1])).body.value)
    if lanes < _NARROWEST or not (neon or dtype in _WORDS) or _tile(digits, lanes) is None:
        raise NotCoveredError("a processor whose vectors hold no rows of a tile")
    work = math.prod(digit.extent for digit in digits)
    return [{"parallel": parallel, "lanes": lanes} for parallel in parallel_candidates(work)]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    digits = digits_of(schedule, kernel)
    tile = _tile(digits, knobs["lanes"])
    assert tile is not None
    at, across, rows = tile
    last = merge_epilogue(schedule, kernel)
    assert last is not None
    loops = schedule.get_loops(block_ref(schedule, last))
    loops = schedule.split(schedule.fuse(*loops), [digit.extent for digit in digits])
    between = math.prod(digit.extent for digit in digits[at + 1 :])
    *outer, column = loops
    column, inner_column = schedule.split(column, [None, rows])
    row, inner_row = schedule.split(outer.pop(at), [None, across])
    schedule.reorder(*outer, row, column, inner_row, inner_column)
    tiles = schedule.fuse(*outer, row, column)
    if knobs["parallel"]:
        schedule.parallel(tiles)
    schedule.annotate(inner_row, TRANSPOSED, [digits[-1].stride, between, digits[at].stride])


TRANSPOSITION = Template("transposition", _covers, _candidates, _apply)
