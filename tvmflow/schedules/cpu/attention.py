"""Schedule attention: the scores of a block of query rows stay in the cache of one thread.

K^T is packed first, and V unless its columns are stored in blocks already. Then threads get blocks of rows of all
heads. Both matmuls use register tiles.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.ir.tvm_compat import load_class
from tvmflow.schedules.cpu.batch_matmul import (
    TILED_LOOPS,
    copy_rows,
    matmul_tiles,
    row_blocks,
    sum_in_registers,
    sum_tile,
    tile_block,
)
from tvmflow.schedules.intrinsics.arm_tile import TILES, find_matrix_tile, rank_tiles
from tvmflow.schedules.intrinsics.dot_product import DOTS, find_dot
from tvmflow.schedules.intrinsics.intrinsic import instruction_of
from tvmflow.schedules.template import (
    Knobs,
    Template,
    parallel_candidates,
    parallelize,
    remove_duplicates,
    unroll_loops,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_NAME = "attention"
_SOFTMAX = ("total", "total_of_lane", "weights", "most", "most_of_lane", "scores")
_SCORE_BYTES = 8  # bytes of a score and of its softmax weight
_PACKED_AXES = 5  # (n, c, h, w, lane)
_MOST_TOGETHER = 32  # rows of whole tiles of both products


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return bool(kernel.after) and kernel.after[-1] == _NAME


def _block(schedule: Any, name: str) -> Any:
    return block_ref(schedule, f"{_NAME}_{name}")


def _candidates(schedule: Any, _kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    if _is_tiled(schedule):
        return _tiled_candidates(schedule, cpu)
    _, rows, keys, lanes, _, *paired = extents(schedule, schedule.get_loops(_block(schedule, "product")))
    dot = find_dot(cpu, "bfloat16", lanes, both_computed=True) if paired else None
    width = extents(schedule, schedule.get_loops(_block(schedule, "mixed")))[2]
    values = schedule.get(_block(schedule, "values"))
    stored = region_buffer(values.reads[0]).shape
    in_blocks = len(stored) == _PACKED_AXES and int(stored[-1]) == lanes and isinstance(values.body.value, load_class())
    most_rows = cpu.l2_bytes // (2 * _SCORE_BYTES * keys * lanes)
    return remove_duplicates(
        [
            {
                "rows": count,
                "m_tile": m,
                "n_tile": b,
                "mixed_rows": mixed_m,
                "mixed_tile": mixed_b,
                "pack_values": pack,
                "parallel": parallel,
                **({"dot": dot.number} if dot else {}),
            }
            for m, b in matmul_tiles(cpu, rows, keys, lanes)[:6]
            for mixed_m, mixed_b in [tile for tile in matmul_tiles(cpu, rows, width, lanes) if m % tile[0] == 0][:2]
            for count in row_blocks(rows, m, most_rows)
            for pack in ((0, 1) if in_blocks and not paired else (1,))
            for parallel in parallel_candidates(work_of(schedule, f"{_NAME}_product") // lanes)
        ]
    )


def _is_tiled(schedule: Any) -> bool:
    """Whether the kernel is that of passes/legalize/tiled_attention.py."""
    return len(schedule.get_loops(_block(schedule, "product"))) == TILED_LOOPS


def _tiled_candidates(schedule: Any, cpu: CpuFeatures) -> list[Knobs]:
    product, mixed = _block(schedule, "product"), _block(schedule, "mixed")
    _, keys, _, rows, lanes, depth, _ = extents(schedule, schedule.get_loops(product))
    width = extents(schedule, schedule.get_loops(mixed))[1]
    tile = find_matrix_tile(cpu, str(region_buffer(schedule.get(product).writes[0]).dtype))
    if tile is None:
        return []
    most_rows = cpu.l2_bytes // (2 * _SCORE_BYTES * keys * lanes)
    pairs = list(
        itertools.product(
            rank_tiles(tile, (keys, 1, rows), depth, 1, (1, 1))[:4], rank_tiles(tile, (width, 1, rows), keys, 1, (1, 1))
        )
    )
    pairs.sort(key=lambda pair: math.lcm(pair[0][2], pair[1][2]) > _MOST_TOGETHER)
    return remove_duplicates(
        [
            {
                "rows": count,
                "m_tile": m,
                "n_tile": b,
                "mixed_rows": mixed_m,
                "mixed_tile": mixed_b,
                "parallel": parallel,
                "dot": tile.number,
            }
            for (b, _, m), (mixed_b, _, mixed_m) in pairs
            for count in row_blocks(rows, math.lcm(m, mixed_m), most_rows)
            for parallel in parallel_candidates(work_of(schedule, f"{_NAME}_product") // lanes)
        ]
    )


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    rows, blocks = _split_rows(schedule, block_ref(schedule, kernel.after[-1]), knobs)
    tile, dot = instruction_of(TILES, knobs), instruction_of(DOTS, knobs)

    def sum_product(name: str, loop: Any) -> None:
        block = _block(schedule, name)
        if tile is None:
            sum_in_registers(schedule, block, loop, dot, rows)
            return
        schedule.compute_at(block, loop, preserve_unit_loops=True)
        sum_tile(schedule, tile, block, rows)

    sum_product("mixed", blocks)
    schedule.compute_at(_block(schedule, "factor"), rows, preserve_unit_loops=True)
    for name in _SOFTMAX:
        schedule.compute_at(_block(schedule, name), rows, preserve_unit_loops=True)
    sum_product("product", tile_block(schedule, _block(schedule, "scores"), knobs["m_tile"], knobs["n_tile"]))
    for name in ("most_of_lane", "total_of_lane"):
        row, lane, over = schedule.get_loops(_block(schedule, name))[-3:]
        schedule.reorder(row, over, lane)
        schedule.vectorize(lane)
        schedule.decompose_reduction(_block(schedule, name), over)
    schedule.vectorize(schedule.get_loops(_block(schedule, "weights"))[-1])
    lanes = extents(schedule, schedule.get_loops(_block(schedule, "weights"))[-1:])[0]
    copy_rows(schedule, _block(schedule, "queries"), rows, lanes)
    if tile is not None:
        _parallelize_values(schedule, knobs["parallel"])
    elif knobs["pack_values"]:
        parallelize(schedule, f"{_NAME}_values", knobs["parallel"])
    else:
        schedule.compute_inline(_block(schedule, "values"))
    parallelize(schedule, f"{_NAME}_keys", knobs["parallel"])


def _parallelize_values(schedule: Any, parallel: int) -> None:
    """Copy V a block of columns at a time: rows behind the last one are zeros."""
    *outer, _, _, lane = schedule.get_loops(_block(schedule, "values"))
    blocks = schedule.fuse(*outer)
    if parallel:
        schedule.parallel(blocks)
    schedule.vectorize(lane)


def _split_rows(schedule: Any, out: Any, knobs: Knobs) -> tuple[Any, Any]:
    """Split outputs into blocks of rows, and these into tiles; return the loops around a block and around a tile."""
    batch, row, block, lane = schedule.get_loops(out)
    outer, tile, row = schedule.split(row, [None, knobs["rows"] // knobs["mixed_rows"], knobs["mixed_rows"]])
    blocks, block = schedule.split(block, [None, knobs["mixed_tile"]])
    schedule.reorder(batch, outer, tile, blocks, row, block, lane)
    rows = schedule.fuse(batch, outer)
    if knobs["parallel"]:
        schedule.parallel(rows)
    unroll_loops(schedule, row, block)
    schedule.vectorize(lane)
    return rows, blocks


ATTENTION = Template(_NAME, _covers, _candidates, _apply)
