"""Schedule any single reduction: rows over threads, the last spatial axis in vectors."""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, axes, block_ref, extents
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
    outer, reduced = loops[: spatial - 1], loops[spatial:]
    tile, lane = schedule.split(loops[spatial - 1], [None, lanes])
    schedule.reorder(*outer, tile, *reduced, lane)
    rows = schedule.fuse(*outer, tile) if outer else tile
    if parallel:
        schedule.parallel(rows)
    if lanes > 1:
        schedule.vectorize(lane)
    if unroll and extents(schedule, [reduced[-1]])[0] <= 16:
        schedule.unroll(reduced[-1])
    schedule.decompose_reduction(block_ref(schedule, name), reduced[0])


REDUCTION = Template("reduction", _covers, _candidates, _apply)
