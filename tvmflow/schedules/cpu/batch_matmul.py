"""Products of matrices that are both computed: one is packed in blocks of columns that fill a vector, tiles of sums
stay in registers.

Any number of rows and columns: what does not fill a tile or a vector is computed beside it, and not written.
"""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents
from tvmflow.schedules.intrinsics.dot_product import Dot, sum_with
from tvmflow.schedules.template import (
    Knobs,
    Template,
    distinct,
    divisors,
    parallel_first,
    spread,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_NAME = "batched_product"
_MOST_ROWS = 32  # of a block, whose sums lie in the cache until they are written
_MOST_TILE = 28


def product_tiles(cpu: CpuFeatures, rows: int, blocks: int, lanes: int) -> list[tuple[int, int]]:
    """Return tiles of rows and blocks of columns, a register for each sum and each block, those with the fewest loads
    for a multiplication first.
    """
    registers = cpu.registers * cpu.lanes // max(lanes, cpu.lanes)
    found = [(m, b) for m in divisors(rows, _MOST_TILE) for b in divisors(blocks, 8) if (m + 1) * b <= registers - 2]
    return sorted(found, key=lambda tile: (1 / tile[0] + 1 / tile[1]) * 12 / min(tile[0] * tile[1], 12))


def row_blocks(rows: int, tile: int, most: int = _MOST_ROWS) -> list[int]:
    """Return how many rows a thread may take at a time, whole tiles, the likelier first."""
    return [tile * count for count in divisors(rows // tile, max(min(most, _MOST_ROWS) // tile, 1))[::-1][:2]]


def tiled(schedule: Any, sums: Any, rows: int, blocks: int) -> Any:
    """Divide rows and blocks of columns of a block over (..., row, block, lane) into tiles; return the loop around a
    tile.
    """
    row, block, lane = schedule.get_loops(sums)[-3:]
    outer, row = schedule.split(row, [None, rows])
    around, block = schedule.split(block, [None, blocks])
    schedule.reorder(outer, around, row, block, lane)
    for axis in (row, block):
        schedule.unroll(axis)
    schedule.vectorize(lane)
    return around


def sum_in_registers(schedule: Any, product: Any, place: Any, dot: Dot | None = None, outermost: Any = None) -> None:
    """Sum a tile of products in registers, below the loop around the tile; by an instruction that sums neighbours where
    one is given.
    """
    schedule.compute_at(product, place, preserve_unit_loops=True)
    schedule.set_scope(product, 0, "local")
    row, block, lane, over, *pair = schedule.get_loops(product)[-5 if dot else -4 :]
    schedule.reorder(over, row, block, lane, *pair)
    for axis in (row, block):
        schedule.unroll(axis)
    if dot:
        sum_with(schedule, dot, product, lane, over, outermost)
        return
    schedule.vectorize(lane)
    schedule.decompose_reduction(product, over)


def copy_rows(schedule: Any, copied: Any, place: Any, lanes: int) -> None:
    """Copy the rows of a block below a loop, in vectors where these divide a row."""
    schedule.compute_at(copied, place, preserve_unit_loops=True)
    column = schedule.get_loops(copied)[-1]
    if extents(schedule, [column])[0] % lanes == 0:
        schedule.vectorize(schedule.split(column, [None, lanes])[1])


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return kernel.anchor == _NAME


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    _, rows, blocks, lanes, _ = extents(schedule, schedule.get_loops(block_ref(schedule, _NAME)))
    return distinct(
        [
            {"rows": count, "m_tile": m, "n_tile": b, "pack": pack, "parallel": parallel}
            for m, b in product_tiles(cpu, rows, blocks, lanes)[:8]
            for count in row_blocks(rows, m)
            for pack in ((1, 0) if rows > 4 else (0, 1))
            for parallel in parallel_first(work_of(schedule, _NAME) // lanes)
        ]
    )


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    lanes = extents(schedule, schedule.get_loops(block_ref(schedule, _NAME)))[3]
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
    around = tiled(schedule, sums, knobs["m_tile"], knobs["n_tile"])
    sum_in_registers(schedule, block_ref(schedule, _NAME), around)
    copy_rows(schedule, left, rows, lanes)
    if knobs["pack"]:
        spread(schedule, f"{_NAME}_columns", knobs["parallel"])
    else:
        schedule.compute_inline(columns)


PRODUCTS = Template(_NAME, _covers, _candidates, _apply)
