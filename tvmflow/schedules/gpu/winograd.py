"""Schedule Winograd convolutions on GPUs in three launches: transform, batched matmul, transform back."""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents
from tvmflow.schedules.cpu.winograd import unroll_columns
from tvmflow.schedules.gpu.tiled import (
    GROUPS,
    LANES,
    MOST_TILE,
    bind_flat,
    read_into_registers,
    reorder_reduction_first,
)
from tvmflow.schedules.template import Knobs, Template, divisors, remove_duplicates, unroll_loops
from tvmflow.targets.gpu_features import GpuFeatures

_AXES = 6  # axes of the matmul: two in the tile, channels, rows and columns of tiles, lane


def _covers(schedule: Any, kernel: Kernel) -> bool:
    if kernel.anchor != "winograd" or len(kernel.before) < 3 or len(kernel.after) < 3:
        return False
    output, last = (block_ref(schedule, name) for name in (kernel.after[2], kernel.after[-1]))
    sizes = extents(schedule, schedule.get_loops(output))
    return sizes == extents(schedule, schedule.get_loops(last)) and sizes[0] == 1 and sizes[-1] == LANES


def _tile_sizes(schedule: Any, kernel: Kernel) -> tuple[int, int]:
    """Return the side of a tile: of its outputs and of its inputs."""
    m, alpha = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.after[0]))[:2])
    return m, alpha


def _candidates(schedule: Any, kernel: Kernel, gpu: GpuFeatures) -> list[Knobs]:
    assert kernel.anchor is not None
    _, _, channels, rows, columns, _ = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor))[:_AXES])
    found = []
    for tile, tall, together in itertools.product(divisors(columns, 14), divisors(rows, 4), (1, 2, 4)):
        if channels % together or tile * tall * together > MOST_TILE:
            continue
        for threads in GROUPS:
            across = max(divisors(rows * columns // (tile * tall), threads))
            down = max(divisors(channels // together, max(threads // across, 1)))
            found.append({"tile": tile, "tall": tall, "together": together, "across": across, "down": down})
    return remove_duplicates(sorted(found, key=lambda knobs: _cost(knobs, gpu)))


def _cost(knobs: Knobs, gpu: GpuFeatures) -> float:
    """Return vector loads per sum, weighted by register spills, partial warps and unsuitable workgroup sizes."""
    pixels, together, group = knobs["tile"] * knobs["tall"], knobs["together"], knobs["across"] * knobs["down"]
    spilled = max(1.0, (pixels * together + pixels + LANES * together) * LANES / gpu.registers)
    waste = gpu.warp * math.ceil(group / gpu.warp) / group
    weights = LANES / pixels * max(1.0, gpu.warp / knobs["across"])  # neighbouring threads read the same weights
    return (1 / together + weights) * spilled * waste * (1.0 + 0.02 * abs(math.log2(group / gpu.group)))


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    assert kernel.anchor is not None
    group = knobs["across"] * knobs["down"]
    _transform_back(schedule, kernel, group)
    _multiply(schedule, kernel.anchor, knobs)
    _transform(schedule, kernel, group)


def _transform(schedule: Any, kernel: Kernel, group: int) -> None:
    """Transform a tile of four channels in each thread, by columns and then by rows."""
    *paddings, half, tile = (block_ref(schedule, name) for name in kernel.before)
    for padding in paddings[:-1]:
        schedule.compute_inline(padding)
    e, j, channel, y, x, lanes = schedule.get_loops(tile)
    schedule.reorder(channel, y, x, e, j, lanes)
    thread = bind_flat(schedule, [channel, y, x], lanes, group)
    unroll_loops(schedule, e, j)
    schedule.set_scope(half, 0, "local")
    schedule.compute_at(half, thread, preserve_unit_loops=True)
    column = unroll_columns(schedule, half)
    schedule.set_scope(paddings[-1], 0, "local")
    schedule.compute_at(paddings[-1], column, preserve_unit_loops=True)
    _unroll_and_vectorize(schedule, paddings[-1])


def _unroll_and_vectorize(schedule: Any, block: Any) -> None:
    inner = list(schedule.get_loops(block))[-len(schedule.get(block).iter_vars) :]
    unroll_loops(schedule, *inner[:-1])
    schedule.vectorize(inner[-1])


def _multiply(schedule: Any, anchor: str, knobs: Knobs) -> None:
    """Schedule the matmul as a 1x1 convolution for each point of the tiles."""
    product = block_ref(schedule, anchor)
    thread = _bind_tile(schedule, schedule.cache_write(product, 0, "local"), knobs)
    schedule.compute_at(product, thread, preserve_unit_loops=True)
    sums, spatial = reorder_reduction_first(schedule, product)
    read_into_registers(schedule, None, product, sums[0], sums[0])
    unroll_loops(schedule, *sums[1:], *spatial[:-1])
    schedule.vectorize(spatial[-1])
    schedule.decompose_reduction(product, sums[0])


def _bind_tile(schedule: Any, block: Any, knobs: Knobs) -> Any:
    """Give each thread a rectangle of tiles and some channels of one point; return the loop of threads."""
    e, j, channel, row, column, lanes = schedule.get_loops(block)
    channels, together = schedule.split(channel, [None, knobs["together"]])
    y, tall = schedule.split(row, [None, knobs["tall"]])
    x, tile = schedule.split(column, [None, knobs["tile"]])
    schedule.reorder(e, j, channels, y, x, together, tall, tile, lanes)
    block_y, thread_y = schedule.split(channels, [None, knobs["down"]])
    block_x, thread_x = schedule.split(schedule.fuse(y, x), [None, knobs["across"]])
    schedule.reorder(e, j, block_y, block_x, thread_y, thread_x, together, tall, tile, lanes)
    schedule.bind(schedule.fuse(e, j), "blockIdx.z")
    schedule.bind(block_y, "blockIdx.y")
    schedule.bind(block_x, "blockIdx.x")
    schedule.bind(thread_y, "threadIdx.y")
    schedule.bind(thread_x, "threadIdx.x")
    unroll_loops(schedule, together, tall, tile)
    schedule.vectorize(lanes)
    return thread_x


def _transform_back(schedule: Any, kernel: Kernel, group: int) -> None:
    """Compute a tile of outputs of four channels in each thread, with the epilogue."""
    m, _ = _tile_sizes(schedule, kernel)
    for name in kernel.after[2:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    half, back, last = (block_ref(schedule, name) for name in (*kernel.after[:2], kernel.after[-1]))
    batch, channel, row, column, lanes = schedule.get_loops(last)
    y, dy = schedule.split(row, [None, m])
    x, dx = schedule.split(column, [None, m])
    schedule.reorder(batch, channel, y, x, dy, dx, lanes)
    thread = bind_flat(schedule, [batch, channel, y, x], lanes, group)
    unroll_loops(schedule, dy, dx)
    for block in (back, half):
        schedule.set_scope(block, 0, "local")
        schedule.compute_at(block, thread, preserve_unit_loops=True)
    _unroll_and_vectorize(schedule, back)
    product = schedule.cache_read(half, 0, "local")
    schedule.compute_at(product, unroll_columns(schedule, half), preserve_unit_loops=True)
    _unroll_and_vectorize(schedule, product)


GPU_WINOGRAD = Template("gpu_winograd", _covers, _candidates, _apply)
