"""Schedule a batched matmul of two computed operands.

One operand is packed by columns; tiles of sums stay in registers. Any number of rows and columns is supported: partial
tiles and vectors are computed in full, and the excess is not written.
"""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.ir.tvm_compat import operator_of
from tvmflow.schedules.intrinsics.arm_tile import TILES, TileMla, find_matrix_tile, rank_tiles, tensorize_tile
from tvmflow.schedules.intrinsics.dot_product import Dot, sum_lanes
from tvmflow.schedules.intrinsics.intrinsic import instruction_of
from tvmflow.schedules.template import (
    Knobs,
    Template,
    divisors,
    parallel_candidates,
    parallelize,
    remove_duplicates,
    unroll_loops,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_NAME = "batched_product"
_MOST_ROWS = 32  # most rows of a block; its sums stay in the cache until they are written
_MOST_TILE = 28
TILED_LOOPS = 7  # of products by tiles


def matmul_tiles(cpu: CpuFeatures, rows: int, blocks: int, lanes: int) -> list[tuple[int, int]]:
    """Return register tiles (rows, blocks of columns), those with the fewest loads per multiplication first."""
    registers = cpu.registers * cpu.lanes // max(lanes, cpu.lanes)
    found = [(m, b) for m in divisors(rows, _MOST_TILE) for b in divisors(blocks, 8) if (m + 1) * b <= registers - 2]
    return sorted(found, key=lambda tile: (1 / tile[0] + 1 / tile[1]) * 12 / min(tile[0] * tile[1], 12))


def row_blocks(rows: int, tile: int, most: int = _MOST_ROWS) -> list[int]:
    """Return the numbers of rows (whole tiles) that a thread may take at a time, the most promising first."""
    return [tile * count for count in divisors(rows // tile, max(min(most, _MOST_ROWS) // tile, 1))[::-1][:2]]


def tile_block(schedule: Any, sums: Any, rows: int, blocks: int) -> Any:
    """Split the loops of a block over (..., row, block, lane) into tiles; return the loop around a tile."""
    row, block, lane = schedule.get_loops(sums)[-3:]
    outer, row = schedule.split(row, [None, rows])
    around, block = schedule.split(block, [None, blocks])
    schedule.reorder(outer, around, row, block, lane)
    unroll_loops(schedule, row, block)
    schedule.vectorize(lane)
    return around


def sum_in_registers(schedule: Any, product: Any, loop: Any, dot: Dot | None = None, outermost: Any = None) -> None:
    """Sum a tile in registers, below the loop around the tile; by an instruction if one is given."""
    schedule.compute_at(product, loop, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    row, block, lane, over, *pair = schedule.get_loops(product)[-5 if dot else -4 :]
    schedule.reorder(over, row, block, lane, *pair)
    unroll_loops(schedule, row, block)
    sum_lanes(schedule, dot, product, lane, over, outermost)


def copy_rows(schedule: Any, copy: Any, loop: Any, lanes: int) -> None:
    """Copy the rows of a block below a loop, in vectors if they divide a row."""
    schedule.compute_at(copy, loop, preserve_unit_loops=True)
    column = schedule.get_loops(copy)[-1]
    if extents(schedule, [column])[0] % lanes == 0:
        schedule.vectorize(schedule.split(column, [None, lanes])[1])


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return kernel.anchor == _NAME


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    if _is_tiled(schedule):
        return _tiled_candidates(schedule, cpu)
    _, rows, blocks, lanes, _ = extents(schedule, schedule.get_loops(block_ref(schedule, _NAME)))
    return remove_duplicates(
        [
            {"rows": count, "m_tile": m, "n_tile": b, "pack": pack, "parallel": parallel}
            for m, b in matmul_tiles(cpu, rows, blocks, lanes)[:8]
            for count in row_blocks(rows, m)
            for pack in ((1, 0) if rows > 4 else (0, 1))
            for parallel in parallel_candidates(work_of(schedule, _NAME) // lanes)
        ]
    )


def _is_tiled(schedule: Any) -> bool:
    """Whether the kernel is that of passes/legalize/tiled_product.py."""
    return len(schedule.get_loops(block_ref(schedule, _NAME))) == TILED_LOOPS


def _tiled_candidates(schedule: Any, cpu: CpuFeatures) -> list[Knobs]:
    product = block_ref(schedule, _NAME)
    _, columns, _, rows, lanes, depth, _ = extents(schedule, schedule.get_loops(product))
    tile = find_matrix_tile(cpu, str(region_buffer(schedule.get(product).writes[0]).dtype))
    if tile is None:
        return []
    return [
        {"rows": count, "m_tile": m, "n_tile": b, "parallel": parallel, "dot": tile.number}
        for b, _, m in rank_tiles(tile, (columns, 1, rows), depth, 1, (1, 1))
        for count in row_blocks(rows, m)
        for parallel in parallel_candidates(work_of(schedule, _NAME) // lanes)
    ]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    lanes = extents(schedule, schedule.get_loops(block_ref(schedule, f"{_NAME}_sums")))[-1]
    columns, left = (block_ref(schedule, f"{_NAME}_{name}") for name in ("columns", "rows"))
    for name in kernel.after[1:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    *batch, row, _ = schedule.get_loops(block_ref(schedule, kernel.after[-1]))
    outer, row = schedule.split(row, [None, knobs["rows"]])
    rows = schedule.fuse(*batch, outer)
    if knobs["parallel"]:
        schedule.parallel(rows)
    sums = block_ref(schedule, f"{_NAME}_sums")
    schedule.compute_at(sums, rows, preserve_unit_loops=True)
    around = tile_block(schedule, sums, knobs["m_tile"], knobs["n_tile"])
    tile = instruction_of(TILES, knobs)
    if tile:
        schedule.compute_at(block_ref(schedule, _NAME), around, preserve_unit_loops=True)
        schedule.compute_at(left, rows, preserve_unit_loops=True)
        _copy_blocks(schedule, left, schedule.get_loops(left)[-4])
        _copy_columns(schedule, columns, knobs["parallel"])
        sum_tile(schedule, tile, block_ref(schedule, _NAME), rows)
        return
    sum_in_registers(schedule, block_ref(schedule, _NAME), around)
    copy_rows(schedule, left, rows, lanes)
    if knobs["pack"]:
        parallelize(schedule, f"{_NAME}_columns", knobs["parallel"])
    else:
        schedule.compute_inline(columns)


def sum_tile(schedule: Any, tile: TileMla, product: Any, outermost: Any) -> None:
    """Sum a tile by one intrinsic."""
    schedule.set_scope(product, 0, "local")
    tensorize_tile(schedule, tile, product, schedule.get_loops(product)[-TILED_LOOPS:], 1, (1, 1), outermost)


def _copy_columns(schedule: Any, copy: Any, parallel: int) -> None:
    """Copy columns a row of all blocks at a time."""
    batch, depth, *_, block, _ = schedule.get_loops(copy)
    rows = schedule.fuse(batch, depth)
    if parallel:
        schedule.parallel(rows)
    _copy_blocks(schedule, copy, block)


def _copy_blocks(schedule: Any, copy: Any, loop: Any) -> None:
    """Copy blocks of a loop in vectors; the last one, where lanes of it may be empty, by itself."""
    fills = operator_of(schedule.get(copy).body.value).endswith("if_then_else")
    schedule.vectorize(schedule.get_loops(copy)[-1])
    [blocks] = extents(schedule, [loop])
    if fills and blocks > 1:
        schedule.loop_partition(loop, [blocks - 1, None])


BATCH_MATMUL = Template(_NAME, _covers, _candidates, _apply)
