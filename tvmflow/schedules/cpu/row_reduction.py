"""Schedule reductions along the contiguous axis, and kernels with several (softmax, layer norm).

A row is reduced in vectors, whose lanes are added at the end. If all reductions of a kernel have the same rows, blocks
of a row are computed while it is in the cache.
"""

from __future__ import annotations

import math
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, axes, block_ref, extents, parallelize_loops, region_buffer
from tvmflow.schedules.cpu.reduction import schedule_outer_reduction
from tvmflow.schedules.template import (
    SPREAD_LANES,
    Knobs,
    Template,
    divisors,
    parallel_candidates,
    parallelize,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_LEAST_LANES = 4  # of a vector in a row
_MOST_LANES = 64  # most lanes of a long reduction: four independent sums hide the latency of an addition
_LONG = 2048  # numbers of a row above which that is more than adding the lanes at the end, one by one, takes


def _blocks(kernel: Kernel) -> tuple[str, ...]:
    return (*kernel.before, *((kernel.anchor,) if kernel.anchor else ()), *kernel.after)


def _known_axes(schedule: Any, name: str) -> tuple[list[Any], int]:
    """Return the axes of a block of a kernel that this template covers."""
    nest = axes(schedule, name)
    assert nest is not None
    return nest


def _is_contiguous(schedule: Any, name: str) -> bool:
    """Whether a reduction is along the contiguous axis of its input, and not along that of its output."""
    node = schedule.get(block_ref(schedule, name))
    variables = [variable.var for variable in node.iter_vars]
    spatial = [variable.var for variable in node.iter_vars if int(variable.iter_type) == 0]
    reduced = str(variables[-1].name)
    indices = [[str(bound.min) for bound in region.region] for region in node.reads]
    along = [index[-1] for index in indices if reduced in index]
    return reduced in along and not (spatial and str(spatial[-1].name) in along)


def _covers(schedule: Any, kernel: Kernel) -> bool:
    if not kernel.reductions or any(axes(schedule, name) is None for name in _blocks(kernel)):
        return False
    return len(kernel.reductions) > 1 or _is_contiguous(schedule, kernel.reductions[0])


def _shared_rows(schedule: Any, kernel: Kernel) -> int:
    """Return how many leading loops of the last block are the rows of every reduction, 0 if they differ."""
    shapes = set()
    for name in kernel.reductions:
        loops, spatial = _known_axes(schedule, name)
        shapes.add(tuple(extents(schedule, loops[:spatial])) if _is_contiguous(schedule, name) else ())
    rows = shapes.pop()
    last = extents(schedule, schedule.get_loops(block_ref(schedule, _blocks(kernel)[-1])))
    return len(rows) if not shapes and tuple(last[: len(rows)]) == rows else 0


def _candidates(schedule: Any, kernel: Kernel, _cpu: CpuFeatures) -> list[Knobs]:
    order = parallel_candidates(sum(work_of(schedule, name) for name in _blocks(kernel)))
    shortest = math.gcd(*(_vector_extent(schedule, name) for name in kernel.reductions))
    most = _MOST_LANES if shortest > _LONG else SPREAD_LANES
    lanes = sorted(divisors(shortest, most), key=lambda d: (min(d & -d, SPREAD_LANES), d), reverse=True)[:3]
    return [
        {"lanes": lane, "inside": inside, "parallel": parallel}
        for inside in ((1, 0) if _shared_rows(schedule, kernel) else (0,))
        for lane in lanes
        for parallel in order
    ]


def _vector_extent(schedule: Any, name: str) -> int:
    """Return the extent of the vectorized axis of a reduction."""
    loops, spatial = _known_axes(schedule, name)
    if spatial and not _is_contiguous(schedule, name):
        return extents(schedule, [loops[spatial - 1]])[0]
    return math.prod(extents(schedule, _joined(schedule, name)))


def _joined(schedule: Any, name: str) -> list[Any]:
    """Return the loops of a reduction along contiguous axes that are divided as one: the last, or all where no vector
    fits into the last.
    """
    loops, spatial = _known_axes(schedule, name)
    sizes = extents(schedule, loops[spatial:])
    node = schedule.get(block_ref(schedule, name))
    reduced = [variable.var for variable in node.iter_vars][spatial:]
    fits = sizes[-1] & -sizes[-1] >= min(SPREAD_LANES, math.prod(sizes) & -math.prod(sizes))
    along = [one for one in node.reads if any(bound.min.same_as(axis) for bound in one.region for axis in reduced)]
    if fits or not all(_reads_all(region, reduced, sizes) for region in along):
        return list(loops[-1:])
    return list(loops[spatial:])


def _reads_all(region: Any, reduced: list[Any], sizes: list[int]) -> bool:
    """Whether a reduction reads the last axes of a tensor from end to end, in order."""
    last = region.region[-len(reduced) :]
    shape = [int(size) for size in region_buffer(region).shape][-len(reduced) :]
    return shape == sizes and all(bound.min.same_as(axis) for bound, axis in zip(last, reduced, strict=True))


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    names = _blocks(kernel)
    last, shared = names[-1], _shared_rows(schedule, kernel)
    partial = {
        name: _split_lanes(schedule, name, knobs["lanes"])
        for name in kernel.reductions
        if _is_contiguous(schedule, name)
    }
    if knobs["inside"]:
        outer = schedule.get_loops(block_ref(schedule, last))[:shared]
        rows = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
        if knobs["parallel"]:
            schedule.parallel(rows)
        for name in reversed(names):
            if name != last:
                schedule.compute_at(block_ref(schedule, name), rows, preserve_unit_loops=True)
            if name in partial:
                schedule.compute_at(partial[name], rows, preserve_unit_loops=True)
    for name in names:
        if name in partial:
            _sum_lanes(schedule, name, partial[name], knobs)
        elif name in kernel.reductions:
            schedule_outer_reduction(schedule, name, min(knobs["lanes"], SPREAD_LANES), knobs["parallel"])
        elif knobs["inside"]:
            _vectorize(schedule, schedule.get_loops(block_ref(schedule, name))[1:])
        else:
            _parallelize_rows(schedule, name, knobs["parallel"])


def _parallelize_rows(schedule: Any, name: str, parallel: int) -> None:
    """Schedule an elementwise block with vectors that lie in one row, where those of all lanes would cross rows: what
    it reads of the reductions is not contiguous across rows.
    """
    *outer, last = schedule.get_loops(block_ref(schedule, name))
    (extent,) = extents(schedule, [last])
    lanes = extent & -extent  # the largest power of two that divides it
    if not outer or not _LEAST_LANES <= lanes < SPREAD_LANES:
        parallelize(schedule, name, parallel)
        return
    rows = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    if parallel:
        schedule.parallel(rows)
    schedule.vectorize(schedule.split(last, [None, lanes])[1])


def _split_lanes(schedule: Any, name: str, lanes: int) -> Any:
    """Split a reduction into one for each lane and one over the lanes; return the block of the first."""
    spatial, joined = _known_axes(schedule, name)[1], _joined(schedule, name)
    last = schedule.fuse(*joined) if len(joined) > 1 else joined[0]
    _, lane = schedule.split(last, [None, lanes])
    return schedule.rfactor(lane, spatial)


def _sum_lanes(schedule: Any, name: str, partial: Any, knobs: Knobs) -> None:
    """Schedule both parts of a reduction in lanes."""
    kinds = [int(variable.iter_type) for variable in schedule.get(partial).iter_vars]
    whole = block_ref(schedule, name)
    if knobs["inside"]:  # the lanes are the first loop below the rows
        _, lane, *others = schedule.get_loops(partial)
        schedule.reorder(*others, lane)
        total = schedule.get_loops(whole)[1]
    else:
        if knobs["parallel"]:
            for block in (partial, whole):
                parallelize_loops(schedule, schedule.get_loops(block)[: kinds.count(0) - 1])
        total = schedule.get_loops(whole)[-1]
    loops = schedule.get_loops(partial)
    schedule.vectorize(loops[-1])
    schedule.decompose_reduction(partial, loops[-1 - kinds.count(2)])
    schedule.unroll(total)


def _vectorize(schedule: Any, loops: list[Any]) -> None:
    """Vectorize the innermost loop by its largest divisor."""
    if loops:
        width = max(divisors(extents(schedule, loops[-1:])[0], SPREAD_LANES))
        if width > 1:
            schedule.vectorize(schedule.split(loops[-1], [None, width])[1])


ROWS = Template("rows", _covers, _candidates, _apply)
