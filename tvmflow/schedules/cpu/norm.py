"""Schedule layer norm and RMS norm of packed channels: a few pixels at a time stay in the cache."""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents
from tvmflow.schedules.template import Knobs, Template, divisors, parallel_candidates, work_of
from tvmflow.targets.cpu_features import CpuFeatures

_NAME = "packed_norm"
_MOST_PIXELS = 16  # pixels whose sums fit into registers


def norm_blocks(kernel: Kernel) -> list[str]:
    """Return the blocks before the outputs, last first; an RMS norm has no mean; four lanes are not summed to four."""
    names = ("factor", "square", "square_of_four", "square_of_lane", "total", "total_of_four", "total_of_lane")
    present = {*kernel.before, *kernel.reductions, *kernel.after}
    return [name for name in names if f"{_NAME}_{name}" in present]


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return f"{_NAME}_factor" in kernel.after


def _candidates(schedule: Any, _kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    batch, height, width = extents(schedule, schedule.get_loops(block_ref(schedule, f"{_NAME}_factor")))
    rows = batch * height
    pixels = sorted(divisors(width, _MOST_PIXELS), key=lambda count: (rows * width // count < cpu.threads, -count))
    order = parallel_candidates(work_of(schedule, f"{_NAME}_square_of_lane"))
    return [{"pixels": count, "parallel": parallel} for count in pixels[:4] for parallel in order]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    after = kernel.after[kernel.after.index(_NAME) :]
    for name in after[:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    batch, block, row, column, lane = schedule.get_loops(block_ref(schedule, after[-1]))
    outer, pixel = schedule.split(column, [None, knobs["pixels"]])
    schedule.reorder(batch, row, outer, block, pixel, lane)
    pixels = schedule.fuse(batch, row, outer)
    if knobs["parallel"]:
        schedule.parallel(pixels)
    schedule.vectorize(lane)
    for name in norm_blocks(kernel):
        part = block_ref(schedule, f"{_NAME}_{name}")
        schedule.compute_at(part, pixels, preserve_unit_loops=True)
        if name.endswith(("of_lane", "of_four")):
            schedule.set_scope(part, 0, "local")
            of_pixel, of_lane, over = schedule.get_loops(part)[-3:]
            schedule.reorder(over, of_pixel, of_lane)
            schedule.unroll(of_pixel)
            schedule.vectorize(of_lane)
            schedule.decompose_reduction(part, over)
            if name.endswith("of_four"):
                schedule.unroll(over)


PACKED_NORM = Template(_NAME, _covers, _candidates, _apply)
