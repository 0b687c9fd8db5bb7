"""Schedule convolutions by AMX tiles: 16 pixels x 16 channels x 64 bytes of input channels.

One instruction multiplies a tile of pixels (rows) by a tile of weights. Both are read from memory with a constant
stride between rows, so that the image is copied to channels-last together with its padding, and weights are (OC, KH,
KW, IC, ...). Neighbouring columns of the filter are then contiguous in both, and one instruction sums as many of them
as fit; first layers are read without a copy. A whole tile of outputs is a tensor intrinsic (intrinsics/amx.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.schedules.intrinsics.amx import LANES, REGISTERS, ROW_BYTES, ROWS, Tile, registers_of, tile_depth
from tvmflow.schedules.template import Knobs, anchor_of, stride_and_dilation, tile_sizes
from tvmflow.targets.cpu_features import TILES_FOR, CpuFeatures

TILED_CONVOLUTION = "conv2d_tiles"  # block whose weights are (OC, KH, KW, IC, ...)
FLAT_CONVOLUTION = "conv2d_flat"  # block whose image rows are joined; names are part of the keys of records
_CONVOLUTIONS = (TILED_CONVOLUTION, FLAT_CONVOLUTION)
_LATENCY = 52  # cycles until a sum is available to the next addition (Intel's optimization manual, chapter on AMX)


def _joins_columns(columns: int, dilation: int, blocks: int, of_image: int) -> int:
    """Return 1 if the columns of a filter row are contiguous in the image, and all of its blocks are summed; else 0."""
    return int(columns > 1 and dilation == 1 and blocks == of_image)


def is_amx_convolution(kernel: Kernel) -> bool:
    """Whether a kernel is a convolution by AMX tiles."""
    return kernel.anchor is not None and kernel.anchor.startswith(_CONVOLUTIONS)


def is_flat(kernel: Kernel) -> bool:
    """Whether the rows of a convolution's image are joined."""
    return kernel.anchor is not None and kernel.anchor.startswith(FLAT_CONVOLUTION)


def _is_pixel_major(image: Any, block: Any) -> bool:
    """Whether an image of a block on packed channels is channels-last, (N, H, W, C/16, 16), by its indices."""
    return stride_and_dilation(image, 2, block, (3, 4))[0] > 0


def amx_tile_candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures, reduced: int) -> list[Knobs]:
    """Return the tiles of outputs worth trying, the most promising first: c_tile, h_tile, w_tile.

    Empty if the kernel is not a convolution by AMX tiles.
    """
    if reduced != 5 or not is_amx_convolution(kernel):
        return []
    block, (_, channels, height, width, lanes, _, columns, blocks, words, _) = anchor_of(schedule, kernel)
    image = block.reads[0]
    data = str(region_buffer(image).dtype)
    if TILES_FOR.get(data, "") not in cpu.dots or lanes != LANES:
        return []
    column, channel = (2, 3) if _is_pixel_major(image, block) else (3, 1)
    joined = _joins_columns(
        columns, stride_and_dilation(image, column, block, (3, 6))[1], blocks, int(region_buffer(image).shape[channel])
    )
    rows = tile_depth((columns if joined else 1) * blocks * words)

    def cycles(tile: tuple[int, int, int]) -> float:
        """Return cycles per useful row: one for each pixel of a multiplication, half for each row of a load, plus
        loads.
        """
        c, h, w = tile
        slowest = max(c * h * (w + 1), _LATENCY, 0.5 * h * w + 1.3 * c * rows)
        return slowest / (c * h * w) + 0.5 * (c + h) / (c * h)

    tiles = tile_sizes((channels, height, width), (REGISTERS - 2, REGISTERS - 2, ROWS))
    tiles = [tile for tile in tiles if registers_of(*tile[:2]) <= REGISTERS]
    line = _blocks_per_line(schedule, kernel)
    tiles.sort(
        key=lambda tile: (channels % line == 0 and tile[0] % line > 0, cycles(tile), -tile[0] * tile[1] * tile[2])
    )
    return [{"c_tile": c, "h_tile": h, "w_tile": w} for c, h, w in tiles[:12]]


def _blocks_per_line(schedule: Any, kernel: Kernel) -> int:
    """Return how many blocks of a pixel's channels fill a cache line if the output is (N, H, W, C/16, 16), else 1."""
    if not kernel.after:
        return 1
    last = schedule.get(block_ref(schedule, kernel.after[-1]))
    output = last.writes[0]
    if len(last.iter_vars) != 5 or not _is_pixel_major(output, last):
        return 1
    return max(ROW_BYTES // (LANES * bytes_of((1,), str(region_buffer(output).dtype))), 1)


def copy_channels_last(schedule: Any, kernel: Kernel) -> tuple[tuple[str, ...], bool]:
    """Copy a convolution's image to channels-last, (N, H, W, C/16, 16).

    Return the names of the blocks that pad or copy, and whether the image is plain: one of a single block, which is
    read without a copy. An image that is already (N, H, W, C/16, 16) is not copied again (ChannelsLastForAmx).
    """
    assert kernel.anchor is not None
    anchor = block_ref(schedule, kernel.anchor)
    block = schedule.get(anchor)
    if _is_pixel_major(block.reads[0], block):
        return kernel.before, False
    if int(region_buffer(block.reads[0]).shape[1]) == 1:
        return kernel.before, True
    copy = block_ref(schedule, kernel.before[-1]) if kernel.before else schedule.cache_read(anchor, 0, "global")
    schedule.transform_layout(copy, ("write", 0), lambda n, c, h, w, v: (n, h, w, c, v))
    # Iterate in the order of the writes: a vector is part of a cache line, for which other threads would wait.
    schedule.transform_block_layout(copy, lambda n, c, h, w, v: (n, h, w, c, v))
    return (str(schedule.get(copy).name_hint),), False


def tensorize_amx(schedule: Any, anchor: Any, outermost: Any, plain: bool) -> None:
    """Tensorize the innermost tile of a convolution's outputs by two intrinsics, which read the image pixel by pixel.

    If the image exceeds the L1 cache, all pixels of a window are read for a few channels before the next channels. The
    pixels of a copy then have a distance of an odd number of cache lines: a power of two would map them to few cache
    sets.
    """
    c, h, w, _, kh, kw, blocks, words, group = extents(schedule, schedule.get_loops(anchor)[-9:])
    block = schedule.get(anchor)
    image = block.reads[0]
    (sh, dh), (sw, dw) = (
        stride_and_dilation(image, 1 + plain, block, (2, 5)),
        stride_and_dilation(image, 2 + plain, block, (3, 6)),
    )
    joined = _joins_columns(kw, dw, blocks, int(region_buffer(image).shape[1 if plain else 3]))
    data = str(region_buffer(image).dtype)
    ph, py = stride_and_dilation(image, 2 + plain, block, (2, 5))
    tile = Tile(data, c, h, w, kh, kw, blocks, words * group, int(plain), joined, sh, sw, dh, dw, ph, py)
    if not (plain or tile.stays_near) and blocks * words * group * tile.size % ROW_BYTES == 0:
        tile = replace(tile, joined=0)
        copy = next(block for block in schedule.get_producers(anchor) if _writes(schedule, block, image))
        schedule.storage_align(copy, 0, 2, 2 * ROW_BYTES // tile.size, ROW_BYTES // tile.size)
    tile.intrinsic.tensorize_tile(schedule, anchor, outermost)


def _writes(schedule: Any, block: Any, image: Any) -> bool:
    return bool(region_buffer(schedule.get(block).writes[0]).same_as(region_buffer(image)))
