"""Schedule elementwise kernels, and those with several reductions, over threads and in vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.ir.tvm_compat import added_constant, operator_of
from tvmflow.schedules.template import (
    SPREAD_LANES,
    Knobs,
    Template,
    divisors,
    merge_epilogue,
    outputs_of,
    parallel_candidates,
    parallelize,
    parallelize_rows,
    unroll_loops,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_PACKED_AXES = 5  # (n, c, h, w, lane)
_RESIZE = "resize"  # a block whose row index is constant in a vector that does not cross rows
_MOVES = ("transpose", "strided_slice", "split", "concat", "take")  # parts of block names
_FEW = 4  # extent of a last axis that is too short for a vector: the axis before it is vectorized


@dataclass(frozen=True)
class _Image:
    """An image of few channels that is quantized, then padded and packed.

    block: the block that quantizes; columns: of each row before, in and behind the image.
    """

    block: str
    columns: tuple[int, int, int]


def _quantized_image(schedule: Any, kernel: Kernel) -> _Image | None:
    """Return the image that a kernel quantizes before it changes the layout, None if it does not."""
    names = kernel.after
    sizes = extents(schedule, schedule.get_loops(block_ref(schedule, names[-1])))
    if len(sizes) != _PACKED_AXES or sizes[-1] > _FEW:
        return None
    for name, following in pairwise(names):
        rounded, moved = (schedule.get(block_ref(schedule, one)) for one in (name, following))
        if str(region_buffer(rounded.writes[0]).dtype) in ("int8", "uint8"):
            width = extents(schedule, schedule.get_loops(block_ref(schedule, name)))[-1]
            shift = added_constant(moved.reads[0].region[-1].min, moved.iter_vars[-1].var)
            fits = shift is not None and shift <= 0 and width - shift <= sizes[-2]
            return _Image(name, (-shift, width, sizes[-2] - width + shift)) if fits and shift is not None else None
    return None


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    work = max((work_of(schedule, name) for name in kernel.after), default=0) * len(kernel.after)
    order = parallel_candidates(work)
    if kernel.reductions or not kernel.after:
        return [{"parallel": parallel, "rows": 0, "rows_first": 0} for parallel in order]
    sizes = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.after[-1])))
    if not sizes:  # a scalar
        return [{"parallel": 0, "rows": 0, "rows_first": 0}]
    packed_image = len(sizes) == _PACKED_AXES and sizes[2] > 1 and sizes[-1] in (*range(_FEW + 1), cpu.channel_block)
    neon = "neon" in cpu.dots
    by_rows = sizes[-1] <= _FEW or _RESIZE in kernel.after or (_permutes(kernel) and not packed_image)
    least = 2 if _permutes(kernel) else 3
    variants = [(0, 0)] if len(sizes) < least else [(1, 0), (0, 0)] if by_rows else [(0, 0), (1, 0)]
    if len(sizes) == _PACKED_AXES and (sizes[1] > 1 or (neon and packed_image and sizes[-1] > _FEW)):
        variants.insert(0 if packed_image and not by_rows else len(variants), (1, 1))
    knobs = [
        {"parallel": parallel, "rows": rows, "rows_first": first} for rows, first in variants for parallel in order
    ]
    if neon or packed_image:  # dividing a place into its axes takes 20 instructions for a vector
        nested = [{**one, "nested": 1} for one in knobs if one["rows_first"]]
        if len(sizes) == _PACKED_AXES and sizes[2] == 1 < sizes[1] and sizes[-1] == cpu.channel_block:
            nested = [{"parallel": parallel, "rows": 1, "rows_first": 0, "nested": 1} for parallel in order] + nested
        knobs = nested + knobs
    if len(sizes) != _PACKED_AXES or len(outputs_of(schedule, kernel)) > 1:
        return knobs
    if any(_concat_offsets(schedule, name) for name in kernel.after):
        knobs = [{"parallel": parallel, "rows": 1, "rows_first": 1, "joined": 1} for parallel in order] + knobs
    if neon and _quantized_image(schedule, kernel):  # NEON stores vectors of four channels pixel by pixel
        knobs = [{"parallel": parallel, "rows": 1, "rows_first": 0, "rounded": 1} for parallel in order] + knobs
    return knobs


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    if knobs.get("rounded"):
        _quantize_first(schedule, kernel, knobs)
    elif knobs.get("joined"):
        _schedule_concat(schedule, kernel, knobs)
    elif not kernel.reductions:
        outputs = outputs_of(schedule, kernel)
        for name in kernel.after:
            if name not in outputs:
                schedule.compute_inline(block_ref(schedule, name))
        for name in outputs:
            if knobs["rows"] and len(schedule.get_loops(block_ref(schedule, name))) > 1:
                _schedule_rows(schedule, name, knobs)
            else:
                parallelize(schedule, name, knobs["parallel"])
    for name in kernel.after if kernel.reductions else ():
        if name not in kernel.reductions:
            parallelize(schedule, name, knobs["parallel"])


def _quantize_first(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Quantize a row of an image in vectors, then pad and pack it, the interior in a loop of its own."""
    image, last = _quantized_image(schedule, kernel), kernel.after[-1]
    assert image is not None
    for name in kernel.after[:-1]:
        if name != image.block:
            schedule.compute_inline(block_ref(schedule, name))
    *outer, column, channel = schedule.get_loops(block_ref(schedule, last))
    schedule.unroll(channel)
    rows = schedule.fuse(*outer)
    if knobs["parallel"]:
        schedule.parallel(rows)
    rounded = block_ref(schedule, image.block)
    schedule.compute_at(rounded, rows, preserve_unit_loops=True)
    place = schedule.get_loops(rounded)[-1]
    _, lanes = schedule.split(place, [None, max(divisors(image.columns[1], SPREAD_LANES))])
    schedule.vectorize(lanes)
    parts = [columns for columns in image.columns if columns]
    if len(parts) > 1:
        schedule.loop_partition(column, [*parts[:-1], None])


def _concat_offsets(schedule: Any, name: str) -> list[int]:
    """Return the offsets of a concat along the axis of channel blocks, without the first; empty if the block is no
    concat.
    """
    node = schedule.get(block_ref(schedule, name))
    found: set[int] = set()
    if len(node.iter_vars) != _PACKED_AXES:
        return []

    def look(call: Any) -> None:
        if operator_of(call).endswith("if_then_else") and isinstance(condition := call.args[0], tirx.LE):
            if isinstance(condition.a, tirx.IntImm) and condition.b.same_as(node.iter_vars[1].var):
                found.add(int(condition.a.value))

    structural_walk(node.body, (tvm.ir.Call, look))
    return sorted(found)


def _schedule_concat(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Schedule a concat: each part in a loop of its own, row by row, without a condition for each value."""
    begins = sorted({begin for name in kernel.after for begin in _concat_offsets(schedule, name)})
    last = merge_epilogue(schedule, kernel)
    assert last is not None
    batch, channels, height, _, lane = schedule.get_loops(block_ref(schedule, last))
    schedule.vectorize(lane)
    schedule.reorder(batch, height, channels)
    rows = schedule.fuse(batch, height)
    if knobs["parallel"]:
        schedule.parallel(rows)
    schedule.loop_partition(channels, [end - begin for begin, end in pairwise([0, *begins])] + [None])


def _permutes(kernel: Kernel) -> bool:
    """Whether a kernel reads elements in another order than it writes them."""
    return any(move in name for name in kernel.after for move in _MOVES)


def _periods(node: Any) -> list[int]:
    """Return the numbers by which the indices of a block's operands divide its last axis, as reshapes do."""
    last = node.iter_vars[-1].var
    found: list[int] = []

    def look(index: Any) -> bool:
        """Return whether an index varies with each element of the last axis."""
        if isinstance(index, tirx.FloorDiv | tirx.FloorMod):
            varies = look(index.a)
            if varies and isinstance(index.b, tirx.IntImm):
                found.append(int(index.b.value))
            return varies and isinstance(index, tirx.FloorMod)
        if isinstance(index, tirx.Add | tirx.Sub | tirx.Mul):
            return look(index.a) | look(index.b)
        return bool(index.same_as(last))

    for region in node.reads:
        for bound in region.region:
            look(bound.min)
    return found


def _schedule_rows(schedule: Any, name: str, knobs: Knobs) -> None:
    """Keep the last axes separate, so that indices of a padding or a layout change stay simple within a vector.

    rows_first: with packed channels, threads get rows of the image, as in convolutions; nested: a loop for each axis.
    """
    *outer, row, last = schedule.get_loops(block_ref(schedule, name))
    if knobs.get("nested") and knobs["rows_first"]:
        parallelize_rows(schedule, name, knobs["parallel"])
        return
    if knobs.get("nested"):
        blocks = schedule.fuse(*outer[:2])
        if knobs["parallel"]:
            schedule.parallel(blocks)
        schedule.vectorize(last)
        return
    if knobs["rows_first"]:
        batch, channels, height = outer
        schedule.reorder(batch, height, channels)
        outer = [batch, height, channels]
    inner: list[Any] = []
    if extents(schedule, [last])[0] <= _FEW:
        inner, last = [last], row
    else:
        outer.append(row)
    [size] = extents(schedule, [last])
    period = math.gcd(size, *_periods(schedule.get(block_ref(schedule, name))))
    if not inner and _FEW < period < size:  # indices of a part of the axis are simple
        part, last = schedule.split(last, [None, period])
        outer.append(part)
        size = period
    width = max(divisors(size, SPREAD_LANES))
    if knobs["parallel"]:
        schedule.parallel(schedule.fuse(*outer))
    if width < SPREAD_LANES // 2 and size > SPREAD_LANES and not inner:  # whole vectors and a remainder
        whole, rest = schedule.loop_partition(last, [size // SPREAD_LANES * SPREAD_LANES, None])
        schedule.vectorize(schedule.split(whole, [None, SPREAD_LANES])[-1])
        schedule.vectorize(rest)
        return
    left, lanes = schedule.split(last, [None, width])
    schedule.reorder(left, *inner, lanes)
    unroll_loops(schedule, *inner)
    schedule.vectorize(lanes)


ELEMENTWISE = Template("elementwise", lambda _schedule, _kernel: True, _candidates, _apply)
