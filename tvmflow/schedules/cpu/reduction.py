"""Schedule any single reduction: rows over threads, the last spatial axis in vectors."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from tvmflow.ir.tir.blocks import Kernel, axes, block_ref, extents, region_buffer
from tvmflow.schedules.template import (
    Knobs,
    Template,
    divisors,
    merge_epilogue,
    parallel_candidates,
    parallelize,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_LONG_SUM = 256  # numbers of a sum that is divided
_LEAST_PARTS = 8


def is_long_sum(node: Any, reduced: list[int]) -> bool:
    """Whether a block sums many numbers of float32; reduced: extents of its reduction axes."""
    adds = isinstance(node.body, tirx.BufferStore) and isinstance(node.body.value, tirx.Add)
    return adds and str(region_buffer(node.writes[0]).dtype) == "float32" and math.prod(reduced) >= _LONG_SUM


def _covers(schedule: Any, kernel: Kernel) -> bool:
    if kernel.anchor is None:
        return False
    nest = axes(schedule, kernel.anchor)
    return nest is not None and nest[1] > 0


def _reduction_shape(schedule: Any, kernel: Kernel) -> tuple[list[int], int]:
    assert kernel.anchor is not None
    nest = axes(schedule, kernel.anchor)
    assert nest is not None
    return extents(schedule, nest[0]), nest[1]


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    sizes, spatial = _reduction_shape(schedule, kernel)
    assert kernel.anchor is not None
    order = parallel_candidates(work_of(schedule, kernel.anchor))
    lanes = sorted(divisors(sizes[spatial - 1], 2 * cpu.lanes), key=lambda d: (abs(d - cpu.lanes), d))[:3]
    return [
        {"lanes": lane, "parallel": parallel, "unroll": unroll}
        for unroll in (0, 1)
        for lane in lanes
        for parallel in order
    ]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    assert kernel.anchor is not None
    for name in kernel.before:
        parallelize(schedule, name, knobs["parallel"])
    last = merge_epilogue(schedule, kernel)
    if last is not None:
        parallelize(schedule, last, knobs["parallel"])
    schedule_outer_reduction(schedule, kernel.anchor, knobs["lanes"], knobs["parallel"], knobs["unroll"])


def schedule_outer_reduction(schedule: Any, name: str, lanes: int, parallel: int, unroll: int = 0) -> None:
    """Schedule a reduction along an outer axis: results in vectors of `lanes`, rows over threads."""
    nest = axes(schedule, name)
    assert nest is not None
    loops, spatial = nest
    part = _split_long_sum(schedule, name, loops, spatial)
    if part is not None:
        loops = list(schedule.get_loops(block_ref(schedule, name)))
    outer, reduced = loops[: spatial - 1], loops[spatial:]
    tile, lane = schedule.split(loops[spatial - 1], [None, lanes])
    schedule.reorder(*outer, tile, *reduced, lane)
    rows = schedule.fuse(*outer, tile) if outer else tile
    if parallel:
        schedule.parallel(rows)
    if lanes > 1:
        schedule.vectorize(lane)
    if part is None:
        if unroll and extents(schedule, [reduced[-1]])[0] <= 16:
            schedule.unroll(reduced[-1])
    else:
        schedule.compute_at(part, rows, preserve_unit_loops=True)
        of_part, *_, lane, inner = schedule.get_loops(part)[1:]
        schedule.reorder(of_part, inner, lane)
        if lanes > 1:
            schedule.vectorize(lane)
        schedule.decompose_reduction(part, inner)
    schedule.decompose_reduction(block_ref(schedule, name), reduced[0])


def _split_long_sum(schedule: Any, name: str, loops: list[Any], spatial: int) -> Any | None:
    """Split a long sum of float32 into sums of its rows, or of its parts, and one of these; return the block of the
    first, None if the sum stays one.

    The rounding of a sum of n numbers one by one grows with n.
    """
    reduced = loops[spatial:]
    sizes = extents(schedule, reduced)
    if not is_long_sum(schedule.get(block_ref(schedule, name)), sizes):
        return None
    if len(reduced) == 1:
        parts = max(divisors(sizes[0], math.isqrt(sizes[0])))
        if parts < _LEAST_PARTS:
            return None
        reduced = list(schedule.split(reduced[0], [parts, None]))
    elif len(reduced) > 2:
        schedule.fuse(*reduced[1:])
    return schedule.rfactor(reduced[0], spatial - 1)


REDUCTION = Template("reduction", _covers, _candidates, _apply)
