"""Schedule the reference kernel, whose output every candidate must reproduce.

Every block stays separate: nothing is inlined, tiled or fused. Only the outer loops are parallel and the last one is
vectorized, so that tuning does not wait for it: otherwise a large convolution would take a third of a second for each
output.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvmflow.ir.tir.blocks import axes, block_ref, extents, new_schedule, parallelize_loops
from tvmflow.ir.tvm_compat import PrimFunc, Schedule

_LONGEST_VECTOR = 64


def schedule_reference(function: PrimFunc) -> Any:
    """Return a kernel with its blocks in order, each in parallel; unchanged where a block has other loops."""
    schedule = new_schedule(function)
    root = schedule.get_sblock("root", "main")
    try:
        for name in [schedule.get(block).name_hint for block in schedule.get_child_blocks(root)]:
            _parallelize(schedule, name)
    except (s_tir.ScheduleError, RuntimeError, ValueError):
        return function
    return schedule.mod["main"]


def _parallelize(schedule: Schedule, name: str) -> None:
    nest = axes(schedule, name)
    if nest is None or nest[1] < 2:
        return
    loops, spatial = nest
    *outer, last = loops[:spatial]
    reduction = loops[spatial:]
    if reduction:
        schedule.reorder(*outer, *reduction, last)
        if 1 < extents(schedule, [last])[0] <= _LONGEST_VECTOR:
            schedule.vectorize(last)
    parallelize_loops(schedule, outer)
    if reduction:
        schedule.decompose_reduction(block_ref(schedule, name), reduction[0])
