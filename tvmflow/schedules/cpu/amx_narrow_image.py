"""Schedule AMX convolutions on images narrower than a tile: rows are joined, and tiles span rows.

One thread computes a few blocks of channels over all pixels; sums between rows are then cropped.
"""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents
from tvmflow.schedules.cpu.amx_convolution import amx_tile_candidates, copy_channels_last, is_flat, tensorize_amx
from tvmflow.schedules.template import (
    Knobs,
    Template,
    merge_epilogue,
    parallel_candidates,
    parallelize,
    parallelize_pixels,
    remove_duplicates,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_WIDEST = 16  # pixels of a tile


def divide_into_tiles(pixels: int) -> tuple[int, int]:
    """Return the number and width of tiles that cover `pixels` in the fewest cycles: one per pixel, 1.5 per tile."""
    widths = range(min(pixels, _WIDEST // 2), _WIDEST + 1)
    return min(((-(-pixels // width), width) for width in widths), key=lambda tiles: tiles[0] * (tiles[1] + 1.5))


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return is_flat(kernel) and bool(kernel.after)


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    assert kernel.anchor is not None
    _, _, rows, columns, *_ = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))
    tiles = [knobs for knobs in amx_tile_candidates(schedule, kernel, cpu, 5) if knobs["w_tile"] == columns]
    tiles.sort(key=lambda knobs: rows // knobs["h_tile"])  # number of passes over the weights
    order = parallel_candidates(work_of(schedule, kernel.anchor))
    return remove_duplicates([{**tile, "parallel": parallel, "tiles": 1} for tile in tiles for parallel in order])


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Compute blocks of channels one after the other in each thread, with the epilogue if it has the same axes."""
    assert kernel.anchor is not None
    last = merge_epilogue(schedule, kernel)
    assert last is not None
    anchor = block_ref(schedule, kernel.anchor)
    before, plain = copy_channels_last(schedule, kernel)
    n, channels, *_, lanes = extents(schedule, schedule.get_loops(anchor)[:5])
    last_sizes = extents(schedule, schedule.get_loops(block_ref(schedule, last)))
    fused = len(last_sizes) == 5 and (last_sizes[0], last_sizes[1], last_sizes[4]) == (n, channels, lanes)
    out = block_ref(schedule, last) if fused else schedule.cache_write(anchor, 0, "local")
    batch, c, _, _, lane = schedule.get_loops(out)
    c_outer, _ = schedule.split(c, [None, knobs["c_tile"]])
    shares = schedule.fuse(batch, c_outer)
    if knobs["parallel"]:
        schedule.parallel(shares)
    schedule.vectorize(lane)
    schedule.compute_at(anchor, shares, preserve_unit_loops=True)
    if fused:
        schedule.set_scope(anchor, 0, "local")
    else:
        parallelize(schedule, last, knobs["parallel"])
    for name in before:
        parallelize_pixels(schedule, name, knobs["parallel"])
    batch, c, h, w, lane, *summed = schedule.get_loops(anchor)[-10:]
    h_outer, h_tile = schedule.split(h, [None, knobs["h_tile"]])
    schedule.reorder(batch, h_outer, c, h_tile, w, lane, *summed)
    tensorize_amx(schedule, anchor, shares, plain)


FLAT_TILES = Template("flat_tiles", _covers, _candidates, _apply)
