"""Schedule attention: the scores of a block of query rows stay in the cache of one thread.

K^T is packed first, and V unless its columns are stored in blocks already. Then threads get blocks of rows of all
heads. Both matmuls use register tiles.
"""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.ir.tvm_compat import load_class
from tvmflow.schedules.cpu.batch_matmul import copy_rows, matmul_tiles, row_blocks, sum_in_registers, tile_block
from tvmflow.schedules.intrinsics.arm_lane_mla import LANES, LaneMla, find_matrix_lane_mla, rank_lane_tiles
from tvmflow.schedules.intrinsics.dot_product import DOTS, Dot, find_dot
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


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return bool(kernel.after) and kernel.after[-1] == _NAME


def _block(schedule: Any, name: str) -> Any:
    return block_ref(schedule, f"{_NAME}_{name}")


def _candidates(schedule: Any, _kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    _, rows, keys, lanes, _, *paired = extents(schedule, schedule.get_loops(_block(schedule, "product")))
    dot = find_dot(cpu, "bfloat16", lanes, both_computed=True) if paired else None
    width = extents(schedule, schedule.get_loops(_block(schedule, "mixed")))[2]
    values = schedule.get(_block(schedule, "values"))
    stored = region_buffer(values.reads[0]).shape
    in_blocks = len(stored) == _PACKED_AXES and int(stored[-1]) == lanes and isinstance(values.body.value, load_class())
    instructions = (dot,) if paired else tuple(dict.fromkeys((find_matrix_lane_mla(cpu, lanes), None)))
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
                **({"dot": row.number} if row else {}),
            }
            for row in instructions
            for m, b in _tiles(cpu, row, rows, keys, lanes)[:6]
            for mixed_m, mixed_b in [tile for tile in _tiles(cpu, row, rows, width, lanes) if m % tile[0] == 0][:2]
            for count in row_blocks(rows, m, most_rows)
            for pack in ((0, 1) if in_blocks and not paired and row is None else (1,))
            for parallel in parallel_candidates(work_of(schedule, f"{_NAME}_product") // lanes)
        ]
    )


def _tiles(cpu: CpuFeatures, row: Dot | LaneMla | None, rows: int, blocks: int, lanes: int) -> list[tuple[int, int]]:
    """Return register tiles (rows, blocks of columns), those with the fewest loads per multiplication first."""
    if isinstance(row, LaneMla):
        return [(m, b) for b, _, m in rank_lane_tiles(row, blocks, 1, rows, lanes)]
    return matmul_tiles(cpu, rows, blocks, lanes)


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    rows, blocks = _split_rows(schedule, block_ref(schedule, kernel.after[-1]), knobs)
    dot = instruction_of(LANES, knobs) or instruction_of(DOTS, knobs)
    sum_in_registers(schedule, _block(schedule, "mixed"), blocks, dot, rows)
    schedule.compute_at(_block(schedule, "factor"), rows, preserve_unit_loops=True)
    for name in _SOFTMAX:
        schedule.compute_at(_block(schedule, name), rows, preserve_unit_loops=True)
    sum_in_registers(
        schedule,
        _block(schedule, "product"),
        tile_block(schedule, _block(schedule, "scores"), knobs["m_tile"], knobs["n_tile"]),
        dot,
        rows,
    )
    for name in ("most_of_lane", "total_of_lane"):
        row, lane, over = schedule.get_loops(_block(schedule, name))[-3:]
        schedule.reorder(row, over, lane)
        schedule.vectorize(lane)
        schedule.decompose_reduction(_block(schedule, name), over)
    schedule.vectorize(schedule.get_loops(_block(schedule, "weights"))[-1])
    lanes = extents(schedule, schedule.get_loops(_block(schedule, "weights"))[-1:])[0]
    copy_rows(schedule, _block(schedule, "queries"), rows, lanes)
    if isinstance(dot, LaneMla):
        _parallelize_values(schedule, knobs["parallel"])
    elif knobs["pack_values"]:
        parallelize(schedule, f"{_NAME}_values", knobs["parallel"])
    else:
        schedule.compute_inline(_block(schedule, "values"))
    parallelize(schedule, f"{_NAME}_keys", knobs["parallel"])


def _parallelize_values(schedule: Any, parallel: int) -> None:
    """Copy V a block of columns at a time: rows behind the last one are zeros."""
    *outer, _, lane = schedule.get_loops(_block(schedule, "values"))
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
