"""Any single reduction that no other template covers: rows over threads, the last spatial axis in vectors."""

from __future__ import annotations

from typing import Any

from tvmflow.targets.machine import Machine
from tvmflow.tuning.blocks import Kernel, block_ref, extents
from tvmflow.tuning.templates.common import Knobs, Template, divisors, merge_epilogue, parallel_first, spread, work_of


def _covers(schedule: Any, kernel: Kernel) -> bool:
    if kernel.anchor is None:
        return False
    kinds = [int(v.iter_type) for v in schedule.get(block_ref(schedule, kernel.anchor)).iter_vars]
    loops = schedule.get_loops(block_ref(schedule, kernel.anchor))
    return len(kinds) == len(loops) and kinds == sorted(kinds) and kinds[0] == 0


def _reduction_shape(schedule: Any, kernel: Kernel) -> tuple[list[int], int]:
    assert kernel.anchor is not None
    reference = block_ref(schedule, kernel.anchor)
    kinds = [int(v.iter_type) for v in schedule.get(reference).iter_vars]
    return extents(schedule, schedule.get_loops(reference)), kinds.count(0)


def _candidates(schedule: Any, kernel: Kernel, machine: Machine) -> list[Knobs]:
    sizes, spatial = _reduction_shape(schedule, kernel)
    assert kernel.anchor is not None
    order = parallel_first(work_of(schedule, kernel.anchor))
    lanes = sorted(divisors(sizes[spatial - 1], 2 * machine.lanes), key=lambda d: (abs(d - machine.lanes), d))[:3]
    return [{"lanes": lane, "parallel": parallel, "unroll": unroll}
            for unroll in (0, 1) for lane in lanes for parallel in order]  # fmt: skip


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    assert kernel.anchor is not None
    for name in kernel.before:
        spread(schedule, name, knobs["parallel"])
    last = merge_epilogue(schedule, kernel)
    if last is not None:
        spread(schedule, last, knobs["parallel"])
    anchor = block_ref(schedule, kernel.anchor)
    _, spatial = _reduction_shape(schedule, kernel)
    loops = schedule.get_loops(anchor)
    outer = loops[: spatial - 1]
    tile, lane = schedule.split(loops[spatial - 1], [None, knobs["lanes"]])
    reduced = loops[spatial:]
    schedule.reorder(*outer, tile, *reduced, lane)
    rows = schedule.fuse(*outer, tile) if outer else tile
    if knobs["parallel"]:
        schedule.parallel(rows)
    if knobs["lanes"] > 1:
        schedule.vectorize(lane)
    if knobs["unroll"] and extents(schedule, [reduced[-1]])[0] <= 16:
        schedule.unroll(reduced[-1])
    schedule.decompose_reduction(anchor, reduced[0])


REDUCTION = Template("reduction", _covers, _candidates, _apply)
