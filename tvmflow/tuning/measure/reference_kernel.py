"""The kernel whose output every schedule must give: each block by itself, nothing inlined, tiled or moved into another.

Only fast enough not to hold the tuner up: outer loops over threads, the last one in vectors. As the kernel comes, on
one thread and with sums in memory, a large convolution takes a third of a second for each output.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvmflow.ir.tir.blocks import axes, block_ref, extents, new_schedule, over_threads

_LONGEST_VECTOR = 64


def plain(function: Any) -> Any:
    """Return a kernel with its blocks in their order, each over threads; as it came where a block has other loops."""
    schedule = new_schedule(function)
    root = schedule.get_sblock("root", "main")
    try:
        for name in [schedule.get(block).name_hint for block in schedule.get_child_blocks(root)]:
            _spread(schedule, name)
    except (s_tir.ScheduleError, RuntimeError, ValueError):
        return function
    return schedule.mod["main"]


def _spread(schedule: Any, name: str) -> None:
    nest = axes(schedule, name)
    if nest is None or nest[1] < 2:
        return
    loops, spatial = nest
    *outer, last = loops[:spatial]
    summed = loops[spatial:]
    if summed:
        schedule.reorder(*outer, *summed, last)
        if 1 < extents(schedule, [last])[0] <= _LONGEST_VECTOR:
            schedule.vectorize(last)
    over_threads(schedule, outer)
    if summed:
        schedule.decompose_reduction(block_ref(schedule, name), summed[0])
