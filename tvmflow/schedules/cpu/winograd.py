"""Schedule Winograd convolutions: transform a chunk of tiles, multiply, transform back in the cache."""

from __future__ import annotations

import math
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, dilation_of, extents
from tvmflow.schedules.intrinsics.arm_lane_mla import (
    LANES,
    LaneMla,
    find_lane_mla,
    held_registers,
    rank_lane_tiles,
    tensorize_lane_mla,
)
from tvmflow.schedules.intrinsics.arm_tile import TILES, find_tile, rank_tiles, tensorize_tile
from tvmflow.schedules.intrinsics.dot_product import DOTS, find_dot, sum_lanes
from tvmflow.schedules.intrinsics.intrinsic import instruction_of
from tvmflow.schedules.template import (
    Knobs,
    Template,
    dtypes_of,
    fuse_parallel_loops,
    leaves_idle,
    mark_interior,
    order_tile_loops,
    packed_loops,
    parallelize_pixels,
    pixels_first_knob,
    rank_register_tiles,
    remove_duplicates,
    tile_sizes,
    unroll_loops,
    weight_bytes,
)
from tvmflow.targets.cpu_features import CpuFeatures

_LANE_REGISTERS = 28  # of 32: with more LLVM spills


def _matmul_extents(schedule: Any, kernel: Kernel) -> list[int] | None:
    """Return the extents (alpha, alpha, c, rows of tiles, columns of tiles, lane, ic, ic lane) of the batched matmul.

    With bf16_dot2 the last axis is split in two: groups, and the two channels of a group.
    """
    if kernel.anchor is None or not kernel.anchor.startswith("winograd"):
        return None
    whole = [
        extents(schedule, schedule.get_loops(block_ref(schedule, name))) for name in (kernel.after[2], kernel.after[-1])
    ]
    if math.prod(whole[0]) != math.prod(whole[1]):  # the same kernel pads for the next layer
        return None
    return extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    sizes = _matmul_extents(schedule, kernel)
    assert sizes is not None
    _, _, channels, rows, columns, lanes = sizes[:6]
    block_bytes = weight_bytes(schedule, kernel) // math.prod(sizes[:3])
    dilation = dilation_of(schedule, kernel.after[2])
    points = rank_register_tiles(tile_sizes((channels, rows, columns), (4, 4, 16)), cpu, lanes, block_bytes)
    dot = find_dot(cpu, "bfloat16", lanes) if len(sizes) == 9 else None
    with_dot = {"dot": dot.number} if dot else {}
    total, data, weight = dtypes_of(schedule, kernel)
    row = find_lane_mla(cpu, (data, weight, total), lanes, (sizes[7], 1)) if len(sizes) == 8 else None
    variants = (
        [(point, {"dot": row.number}) for point in _lane_tiles(row, channels, rows, columns, lanes)[:6]] if row else []
    )
    tile = find_tile(cpu, (data, weight, total), (lanes, *sizes[7:], 1)[:3]) if len(sizes) == 8 else None
    if tile:
        ranked = rank_tiles(tile, (channels, rows, columns), sizes[6], 0, (1, 1))
        variants = [(point, {"dot": tile.number}) for point in ranked] + variants
    variants += [(point, with_dot) for point in points[:10]]
    parts = (2, 4, 6, 8, rows) if cpu.threads > 2 else (2, 4, 6, 8)
    by_rows = [rows // d for d in parts if rows % d == 0] or [1]
    places = [(1, chunk) for chunk in by_rows] + [(0, rows)]
    if weight_bytes(schedule, kernel) > cpu.l2_bytes:
        places.reverse()
    if cpu.threads > 2:
        places += [(0, chunk) for chunk in by_rows]
    found = remove_duplicates(
        [
            {
                "tiles_first": first,
                "chunk": max(chunk, y),
                "c_tile": c,
                "y_tile": y,
                "x_tile": x,
                "c_block": c * blocks,
                **number,
                **({"interior": 1} if len(kernel.before) > 2 and "neon" in cpu.dots else {}),
                **pixels_first_knob((c, y, x), cpu),
            }
            for blocks in (1, 2)
            for first, chunk in places
            for (c, y, x), number in variants
            if max(chunk, y) % y == 0
            and rows % max(chunk, y) == 0
            and channels % (c * blocks) == 0
            and max(chunk, y) % dilation == 0
        ]
    )
    # The sort is stable: candidates that keep threads busy stay in the order above.
    found.sort(key=lambda k: leaves_idle(_count_tasks(channels, rows, k), cpu.threads))
    return found


def _lane_tiles(row: LaneMla, channels: int, rows: int, columns: int, lanes: int) -> list[tuple[int, int, int]]:
    """Return the register tiles of products by a lane that leave registers for the values loaded next."""
    ranked = rank_lane_tiles(row, channels, rows, columns, lanes)
    return [tile for tile in ranked if held_registers(row, tile, lanes) <= _LANE_REGISTERS]


def _is_by_rows(schedule: Any, kernel: Kernel) -> bool:
    """Whether a kernel transforms rows of tiles by halves, whose values do not fit registers."""
    return len(schedule.get(block_ref(schedule, kernel.before[-2])).iter_vars) == 5


def _count_tasks(channels: int, rows: int, knobs: Knobs) -> int:
    """Return the number of tasks into which a schedule divides these blocks of channels and rows of tiles."""
    return rows // knobs["chunk"] * (1 if knobs["tiles_first"] else channels // knobs["c_block"])


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Transform a chunk of tiles, then for each block of channels multiply and transform back, with the epilogue."""
    assert kernel.anchor is not None
    outermost, channels = _transform_back(schedule, kernel, knobs)
    product = _multiply(schedule, kernel.anchor, channels, knobs)
    tile = instruction_of(TILES, knobs)
    if tile:
        _transform(schedule, kernel, outermost, knobs)
        e, j, o, ty, tx, lane, ic, ic_lane = schedule.get_loops(product)[-8:]
        tensorize_tile(schedule, tile, product, (e, j, o, ty, tx, lane, ic, ic_lane), 0, (1, 1), outermost)
        return
    row = instruction_of(LANES, knobs)
    if row:
        _transform(schedule, kernel, outermost, knobs)
        *inner, ic, ic_lane = schedule.get_loops(product)[-8:]
        tensorize_lane_mla(schedule, row, product, (ic,), (*inner, ic_lane), outermost)
        return
    dot = instruction_of(DOTS, knobs)
    axes = list(schedule.get_loops(product))
    dot_axis = [axes.pop()] if dot else []
    e, j, o, ty, tx, lane, ic, ic_lane = axes[-8:]
    schedule.reorder(ic, ic_lane, e, j, *order_tile_loops(knobs, o, (ty, tx)), lane, *dot_axis)
    unroll_loops(schedule, o, ty, tx)
    _transform(schedule, kernel, outermost, knobs)
    sum_lanes(schedule, dot, product, lane, ic, outermost)


def _transform_back(schedule: Any, kernel: Kernel, knobs: Knobs) -> tuple[Any, Any]:
    """Schedule the output transform and epilogue; return the loop over threads and the loop over blocks of channels."""
    m = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.after[1])))[0]
    dilation = dilation_of(schedule, kernel.after[2])
    for name in kernel.after[2:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    out = block_ref(schedule, kernel.after[-1])
    batch, c, h, w, written = packed_loops(schedule, out)
    c_outer, c_inner = schedule.split(c, [None, knobs["c_block"]])
    y_chunk, y, dy = schedule.split(h, [None, knobs["chunk"] // dilation, m * dilation])
    x, dx = schedule.split(w, [None, m * dilation])
    by_rows, tiles_first = _is_by_rows(schedule, kernel), bool(knobs["tiles_first"])
    inner = (y, c_inner, dy, x, dx, written) if by_rows else (y, x, c_inner, dy, dx, written)
    outermost = fuse_parallel_loops(schedule, batch, c_outer, y_chunk, inner, tiles_first)
    c_outer = c_outer if tiles_first else outermost
    schedule.parallel(outermost)
    schedule.vectorize(written)
    back_half, back = (block_ref(schedule, name) for name in kernel.after[:2])
    if by_rows:
        _transform_rows_back(schedule, back_half, back, (c_inner, x, dx))
        return outermost, c_outer
    schedule.compute_at(back, c_inner, preserve_unit_loops=True)  # with a dilation, for all interleaved tiles
    e, j, _, ty, tx, _ = schedule.get_loops(back)[-6:]
    schedule.reorder(ty, tx, e, j)
    schedule.compute_at(back_half, tx, preserve_unit_loops=True)
    for block in (back, back_half):
        schedule.set_scope(block, 0, "local")
    unroll_loops(schedule, e, j, *((dy, dx) if dilation == 1 else ()))
    schedule.vectorize(schedule.get_loops(back)[-1])
    unroll_columns(schedule, back_half)
    return outermost, c_outer


def _transform_rows_back(schedule: Any, back_half: Any, back: Any, loops: tuple[Any, Any, Any]) -> None:
    """Transform a row of tiles back by halves; the second half is of a row of pixels of a tile, in registers.

    loops: over blocks of channels, tiles of a row, and pixels of a row of a tile.
    """
    channels, x, dx = loops
    schedule.compute_at(back, x, preserve_unit_loops=True)
    *_, j, _, _, _, lanes = schedule.get_loops(back)[-6:]
    schedule.set_scope(back, 0, "local")
    unroll_loops(schedule, j, dx)
    schedule.vectorize(lanes)
    schedule.compute_at(back_half, channels, preserve_unit_loops=True)
    e, j, o, ty, tx, lanes = schedule.get_loops(back_half)[-6:]
    schedule.reorder(o, ty, j, tx, e, lanes)
    unroll_loops(schedule, e)
    schedule.vectorize(lanes)


def _multiply(schedule: Any, anchor: str, channels: Any, knobs: Knobs) -> Any:
    """Keep a tile of the matmul in registers, stored once below the loop `channels`; return its block."""
    product = block_ref(schedule, anchor)
    stored = schedule.cache_write(product, 0, "global")
    schedule.set_scope(product, 0, "local")
    schedule.compute_at(stored, channels, preserve_unit_loops=True)
    e, j, o, ty, tx, v = schedule.get_loops(stored)[-6:]
    o_outer, o_inner = schedule.split(o, [None, knobs["c_tile"]])
    ty_outer, ty_inner = schedule.split(ty, [None, knobs["y_tile"]])
    tx_outer, tx_inner = schedule.split(tx, [None, knobs["x_tile"]])
    schedule.reorder(o_outer, e, j, ty_outer, tx_outer, o_inner, ty_inner, tx_inner, v)
    unroll_loops(schedule, o_inner, ty_inner, tx_inner)
    schedule.vectorize(v)
    schedule.compute_at(product, tx_outer, preserve_unit_loops=True)
    return product


def unroll_columns(schedule: Any, half: Any) -> Any:
    """Unroll the first half of a transform column by column, so that common terms of its rows stay in registers.

    Return the loop over columns.
    """
    row, column, *_, lanes = schedule.get_loops(half)[-6:]
    schedule.reorder(column, row)
    unroll_loops(schedule, row, column)
    schedule.vectorize(lanes)
    return column


def _transform(schedule: Any, kernel: Kernel, outermost: Any, knobs: Knobs) -> None:
    """Schedule the padding and the input transform, for each chunk if `tiles_first` is set."""
    *paddings, half_name, tile_name = kernel.before
    tile, half = block_ref(schedule, tile_name), block_ref(schedule, half_name)
    if knobs["tiles_first"]:
        schedule.compute_at(tile, outermost, preserve_unit_loops=True)
    e, j, i, ty, tx, v = schedule.get_loops(tile)[-6:]
    if _is_by_rows(schedule, kernel):
        schedule.reorder(i, ty, e, tx, j, v)
        schedule.compute_at(half, ty, preserve_unit_loops=True)
        row, _, _, column, lanes = schedule.get_loops(half)[-5:]
        schedule.reorder(column, row, lanes)
        unroll_loops(schedule, row, j)
        schedule.vectorize(lanes)
    else:
        schedule.reorder(i, ty, tx, e, j, v)
        schedule.compute_at(half, tx, preserve_unit_loops=True)
        schedule.set_scope(half, 0, "local")
        unroll_loops(schedule, e, j)
        unroll_columns(schedule, half)
    schedule.vectorize(v)
    for name in paddings:
        padding = block_ref(schedule, name)
        if knobs["tiles_first"]:
            schedule.compute_at(padding, outermost, preserve_unit_loops=True)
            *_, column, lane = schedule.get_loops(padding)
            if knobs.get("interior"):
                mark_interior(schedule, padding, column)
            schedule.vectorize(lane)
        else:
            parallelize_pixels(schedule, name, 1, knobs.get("interior", 0))
    if not knobs["tiles_first"]:
        schedule.parallel(i)


WINOGRAD = Template(
    "winograd", lambda schedule, kernel: _matmul_extents(schedule, kernel) is not None, _candidates, _apply
)
