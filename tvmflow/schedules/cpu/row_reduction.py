"""Reductions along the axis that lies contiguous in memory, and kernels with several: softmax, layer norm, mean,
argmax.

A row is reduced in vectors, whose lanes are added up at its end; what belongs to one row is computed while it is in the
cache, where all reductions of the kernel have the same rows.
"""

from __future__ import annotations

import math
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, axes, block_ref, extents, over_threads
from tvmflow.schedules.cpu.reduction import outward
from tvmflow.schedules.template import SPREAD_LANES, Knobs, Template, divisors, parallel_first, spread, work_of
from tvmflow.targets.cpu_features import CpuFeatures

_MOST_LANES = 64  # of one reduction: four sums side by side hide the latency of an addition


def _blocks(kernel: Kernel) -> tuple[str, ...]:
    return (*kernel.before, *((kernel.anchor,) if kernel.anchor else ()), *kernel.after)


def _known_axes(schedule: Any, name: str) -> tuple[list[Any], int]:
    """Return the axes of a block of a kernel that this template covers."""
    nest = axes(schedule, name)
    assert nest is not None
    return nest


def _runs_inward(schedule: Any, name: str) -> bool:
    """Whether a reduction reads neighbours one after the other, and its results lie further apart."""
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
    return len(kernel.reductions) > 1 or _runs_inward(schedule, kernel.reductions[0])


def _shared_rows(schedule: Any, kernel: Kernel) -> int:
    """Return how many leading loops of the last block are the rows of every reduction, 0 where they are not the
    same.
    """
    shapes = set()
    for name in kernel.reductions:
        loops, spatial = _known_axes(schedule, name)
        shapes.add(tuple(extents(schedule, loops[:spatial])) if _runs_inward(schedule, name) else ())
    rows = shapes.pop()
    last = extents(schedule, schedule.get_loops(block_ref(schedule, _blocks(kernel)[-1])))
    return len(rows) if not shapes and tuple(last[: len(rows)]) == rows else 0


def _candidates(schedule: Any, kernel: Kernel, _cpu: CpuFeatures) -> list[Knobs]:
    order = parallel_first(sum(work_of(schedule, name) for name in _blocks(kernel)))
    shortest = math.gcd(*(_innermost(schedule, name) for name in kernel.reductions))
    lanes = sorted(divisors(shortest, _MOST_LANES), key=lambda d: (min(d & -d, SPREAD_LANES), d), reverse=True)[:3]
    return [
        {"lanes": lane, "inside": inside, "parallel": parallel}
        for inside in ((1, 0) if _shared_rows(schedule, kernel) else (0,))
        for lane in lanes
        for parallel in order
    ]


def _innermost(schedule: Any, name: str) -> int:
    """Return the extent of the axis of a reduction that goes into vectors."""
    loops, spatial = _known_axes(schedule, name)
    return extents(schedule, loops[-1:] if _runs_inward(schedule, name) or not spatial else [loops[spatial - 1]])[0]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    names = _blocks(kernel)
    last, shared = names[-1], _shared_rows(schedule, kernel)
    partial = {
        name: _in_lanes(schedule, name, knobs["lanes"]) for name in kernel.reductions if _runs_inward(schedule, name)
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
            outward(schedule, name, min(knobs["lanes"], SPREAD_LANES), knobs["parallel"])
        elif knobs["inside"]:
            _vectorize(schedule, schedule.get_loops(block_ref(schedule, name))[1:])
        else:
            spread(schedule, name, knobs["parallel"])


def _in_lanes(schedule: Any, name: str, lanes: int) -> Any:
    """Split a reduction into one for each lane and one over the lanes; return the block of the first."""
    loops, spatial = _known_axes(schedule, name)
    _, lane = schedule.split(loops[-1], [None, lanes])
    return schedule.rfactor(lane, spatial)


def _sum_lanes(schedule: Any, name: str, partial: Any, knobs: Knobs) -> None:
    """Schedule both halves of a reduction in lanes."""
    kinds = [int(variable.iter_type) for variable in schedule.get(partial).iter_vars]
    whole = block_ref(schedule, name)
    if knobs["inside"]:  # the lanes are the first loop below the rows
        _, lane, *others = schedule.get_loops(partial)
        schedule.reorder(*others, lane)
        total = schedule.get_loops(whole)[1]
    else:
        if knobs["parallel"]:
            for block in (partial, whole):
                over_threads(schedule, schedule.get_loops(block)[: kinds.count(0) - 1])
        total = schedule.get_loops(whole)[-1]
    loops = schedule.get_loops(partial)
    schedule.vectorize(loops[-1])
    schedule.decompose_reduction(partial, loops[-1 - kinds.count(2)])
    schedule.unroll(total)


def _vectorize(schedule: Any, loops: list[Any]) -> None:
    """Put the innermost loop into vectors, as wide as divides it."""
    if loops:
        width = max(divisors(extents(schedule, loops[-1:])[0], SPREAD_LANES))
        if width > 1:
            schedule.vectorize(schedule.split(loops[-1], [None, width])[1])


ROWS = Template("rows", _covers, _candidates, _apply)
