"""Matrix tiles (x86 AMX) on images narrower than a tile: rows of pixels lie in one, with their padding, and a tile goes
on to the next row.

Sums of a few blocks of channels over all pixels are computed by one thread, then those between rows are left out.
"""

from __future__ import annotations

from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents
from tvmflow.schedules.cpu.amx_convolution import is_flat, pixels_together, sum_in_tiles, tile_knobs
from tvmflow.schedules.template import (
    Knobs,
    Template,
    distinct,
    merge_epilogue,
    parallel_first,
    spread,
    spread_pixels,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_WIDEST = 16  # pixels of a tile


def rows_and_columns(pixels: int) -> tuple[int, int]:
    """Return how many tiles of how many pixels hold so many, in the fewest cycles: one for each pixel, and one and a
    half for a tile.
    """
    widths = range(min(pixels, _WIDEST // 2), _WIDEST + 1)
    return min(((-(-pixels // width), width) for width in widths), key=lambda tiles: tiles[0] * (tiles[1] + 1.5))


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return is_flat(kernel) and bool(kernel.after)


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    assert kernel.anchor is not None
    _, _, rows, columns, *_ = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))
    tiles = [knobs for knobs in tile_knobs(schedule, kernel, cpu, 5) if knobs["w_tile"] == columns]
    tiles.sort(key=lambda knobs: rows // knobs["h_tile"])  # how often weights are read
    order = parallel_first(work_of(schedule, kernel.anchor))
    return distinct([{**tile, "parallel": parallel, "tiles": 1} for tile in tiles for parallel in order])


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Compute blocks of channels one after the other in each thread, epilogue included where it has the same axes."""
    assert kernel.anchor is not None
    last = merge_epilogue(schedule, kernel)
    assert last is not None
    anchor = block_ref(schedule, kernel.anchor)
    before, plain = pixels_together(schedule, kernel)
    n, channels, *_, lanes = extents(schedule, schedule.get_loops(anchor)[:5])
    of_last = extents(schedule, schedule.get_loops(block_ref(schedule, last)))
    fused = len(of_last) == 5 and (of_last[0], of_last[1], of_last[4]) == (n, channels, lanes)
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
        spread(schedule, last, knobs["parallel"])
    for name in before:
        spread_pixels(schedule, name, knobs["parallel"])
    batch, c, h, w, lane, *summed = schedule.get_loops(anchor)[-10:]
    h_outer, h_tile = schedule.split(h, [None, knobs["h_tile"]])
    schedule.reorder(batch, h_outer, c, h_tile, w, lane, *summed)
    sum_in_tiles(schedule, anchor, shares, plain)


FLAT_TILES = Template("flat_tiles", _covers, _candidates, _apply)
