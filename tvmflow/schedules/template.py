"""Define schedule templates, and the scheduling steps that they share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, buffer_bytes, extents, region_buffer
from tvmflow.ir.tvm_compat import added_constant, linear_factors
from tvmflow.targets.cpu_features import CpuFeatures

Knobs = dict[str, int]
MOST_DEFAULTS = 8  # candidates tried for untuned kernels: the first that applies is used
SPREAD_LANES = 16  # lanes of elementwise loops; LLVM legalizes them for the target
SMALL_WORK = 20_000  # operations below which a second thread costs more than it saves
# annotation of a reduction loop: blocks of channels in a tile, and how many consecutive shares have the same
PREFETCHED = "tvmflow_prefetched"
# annotation of a loop over the columns of a padding: first row, rows, first column and columns of the interior
FILLED = "tvmflow_filled"
# annotation of a loop over the rows of a transposed tile: distance of its columns in the input, of rows in the output,
# and of rows in the input
TRANSPOSED = "tvmflow_transposed"
# annotation of a loop over the columns of a padding: first column and columns of the interior
INTERIOR = "tvmflow_interior"
FROM_BIAS = "tvmflow_from_bias"  # annotation of a loop over channels that initializes sums by a bias
_NEAR_WEIGHTS = 32 << 10  # bytes of weights that stay in the L1 cache while a tile after the other reads them
_MOST_IDLE = 0.3  # idle share of the threads' time above which schedules are tried last


@dataclass(frozen=True)
class Template:
    """A schedule template.

    covers: whether it can schedule a kernel; candidates: knobs by CpuFeatures or GpuFeatures, the default first; apply:
    schedules in place.
    """

    name: str
    covers: Callable[[Any, Kernel], bool]
    candidates: Callable[[Any, Kernel, Any], list[Knobs]]
    apply: Callable[[Any, Kernel, Knobs], None]


def divisors(number: int, limit: int) -> list[int]:
    """Return the divisors of a number up to a limit, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def unroll_loops(schedule: Any, *loops: Any) -> None:
    for loop in loops:
        schedule.unroll(loop)


def tile_sizes(sizes: tuple[int, int, int], limits: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the tiles (blocks of channels, rows, columns) that divide outputs of these sizes, up to limits."""
    c, h, w = (divisors(size, limit) for size, limit in zip(sizes, limits, strict=True))
    return list(itertools.product(c, h, w))


def packed_loops(schedule: Any, block: Any) -> list[Any]:
    """Return the loops of a block over (n, c, h, w, lane); leading unit loops of a reshape are fused."""
    loops = schedule.get_loops(block)
    while len(loops) > 5:
        loops = [schedule.fuse(loops[0], loops[1]), *loops[2:]]
    return list(loops)


def parallel_candidates(work: int) -> tuple[int, ...]:
    """Return the values of the knob `parallel` worth trying, the more promising first."""
    if work > 100 * SMALL_WORK:
        return (1,)
    if work < SMALL_WORK // 10:
        return (0,)
    return (1, 0) if work > SMALL_WORK else (0, 1)


def work_of(schedule: Any, name: str) -> int:
    """Return how many times a block's body runs."""
    total = 1
    for extent in extents(schedule, schedule.get_loops(block_ref(schedule, name))):
        total *= extent
    return total


def merge_epilogue(schedule: Any, kernel: Kernel) -> str | None:
    """Inline all elementwise blocks after the anchor into the last one and return its name."""
    for name in kernel.after[:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    return kernel.after[-1] if kernel.after else None


def outputs_of(schedule: Any, kernel: Kernel) -> list[str]:
    """Return the blocks that write the outputs of a kernel; a split has several."""
    root = schedule.get_sblock("root", "main")
    names = {str(schedule.get(block).name_hint) for block in schedule.get_output_blocks(root)}
    return [name for name in kernel.after if name in names]


def parallelize(schedule: Any, name: str, parallel: int) -> None:
    """Schedule an elementwise block: outer loops over threads, inner loop vectorized."""
    loops = schedule.get_loops(block_ref(schedule, name))
    if not loops:  # a scalar
        return
    sizes = extents(schedule, loops)
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    total = 1
    for size in sizes:
        total *= size
    lanes = max(divisors(total, SPREAD_LANES))
    outer, inner = schedule.split(fused, [None, lanes])
    if parallel:
        chunks = max(divisors(total // lanes, 64))
        outer, _ = schedule.split(outer, [chunks, None])
        schedule.parallel(outer)
    if lanes > 1:
        schedule.vectorize(inner)


def mark_interior(schedule: Any, padding: Any, columns: Any) -> None:
    """Mark the loop over the columns of a padding, so that its interior is copied without tests.

    Rows that a tile reads in part, and other copies, stay as they are; so do those of bfloat16, of which TVM rewrites
    one of several stores.
    """
    block = schedule.get(padding)
    if len(block.iter_vars) < 4 or len(block.reads) != 1:
        return
    if "bfloat16" in [str(region_buffer(one).dtype) for one in (*block.reads, *block.writes)]:
        return
    read = block.reads[0]
    shift = added_constant(read.region[3].min, block.iter_vars[3].var) if len(read.region) >= 4 else None
    if shift is not None and shift < 0:
        schedule.annotate(columns, INTERIOR, [-shift, int(region_buffer(read).shape[3])])


def parallelize_pixels(schedule: Any, name: str, parallel: int, interior: int = 0) -> None:
    """Schedule a padded copy of packed channels: rows over threads, one pixel in a vector.

    interior: whether the interior of a row is copied without tests.
    A vector across two pixels, one of which is padding, would be copied element by element.
    """
    *outer, column, lane = schedule.get_loops(block_ref(schedule, name))
    if len(outer) < 3 or extents(schedule, [lane])[0] > SPREAD_LANES:
        parallelize(schedule, name, parallel)
        return
    if interior:
        mark_interior(schedule, block_ref(schedule, name), column)
    rows = schedule.fuse(*outer)
    if parallel:
        schedule.parallel(rows)
    schedule.vectorize(lane)


def parallelize_rows(schedule: Any, name: str, parallel: int) -> None:
    """Schedule an elementwise block on packed channels: image rows over threads, as convolutions have them, one pixel
    in a vector.
    """
    batch, channels, height, width, lane = packed_loops(schedule, block_ref(schedule, name))
    schedule.reorder(batch, height, channels, width, lane)
    rows = schedule.fuse(batch, height)
    if parallel:
        schedule.parallel(rows)
    schedule.vectorize(lane)


def fuse_parallel_loops(
    schedule: Any, batch: Any, channels: Any, rows: Any, inner: tuple[Any, ...], by_rows: bool
) -> Any:
    """Order the loops over images, blocks of channels and chunks of rows before inner loops; return the fused parallel
    loop.

    It is over rows, or over channels and rows.
    """
    shared = (batch, rows) if by_rows else (batch, channels, rows)
    schedule.reorder(*shared, *((channels,) if by_rows else ()), *inner)
    return schedule.fuse(*shared)


def tile_image(schedule: Any, out: Any, knobs: Knobs) -> tuple[Any, Any, Any, Any]:
    """Tile the output on packed channels; return the loops over threads, blocks of channels, rows of tiles, and
    columns.
    """
    batch, c, h, w, lane = packed_loops(schedule, out)
    group = knobs.get("c_group", 1)
    c_outer, *c_group, c_tile = schedule.split(c, [None, *([group] if group > 1 else []), knobs["c_tile"]])
    h_chunk, h_outer, h_tile = schedule.split(h, [None, knobs["chunk"] // knobs["h_tile"], knobs["h_tile"]])
    w_outer, w_tile = schedule.split(w, [None, knobs["w_tile"]])
    inner = (h_outer, *c_group, w_outer, c_tile, h_tile, w_tile, lane)
    rows = fuse_parallel_loops(schedule, batch, c_outer, h_chunk, inner, bool(knobs["rows_first"]))
    if knobs["parallel"]:
        schedule.parallel(rows)
    schedule.vectorize(lane)
    return rows, c_outer, c_group[0] if c_group else h_outer, w_outer


def rank_register_tiles(
    points: list[tuple[int, int, int]], cpu: CpuFeatures, lanes: int, block_bytes: int | None
) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of `lanes` channels, rows, columns) that fit, those with the fewest loads
    first.

    block_bytes: of the weights of a block of channels; None: depthwise, each value is multiplied for one block of
    channels only.
    """
    if cpu.broadcasts_in_registers and block_bytes is not None:
        found = [tile for tile in points if _registers(tile, -(-lanes // cpu.lanes)) <= cpu.registers]
        return sorted(found, key=lambda tile: (_loads_in_registers(tile, cpu, block_bytes), tile[1], -tile[2]))
    most = cpu.accumulators(lanes)
    found = [tile for tile in points if math.prod(tile) <= most]
    return sorted(found, key=lambda tile: (_loads_for_sums(tile, most, block_bytes is None), tile[1], -tile[2]))


def pixels_first_knob(tile: tuple[int, int, int], cpu: CpuFeatures) -> Knobs:
    """Return the knob `pixels_first` if each pixel of a tile is multiplied by all blocks of channels before the next
    pixel.

    The smaller of both operands stays in registers.
    """
    return {"pixels_first": 1} if cpu.broadcasts_in_registers and tile[0] <= tile[1] * tile[2] else {}


def order_tile_loops(knobs: Knobs, channels: Any, pixels: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return the loops of a register tile, over blocks of channels and over pixels, in the order of multiplication."""
    return (*pixels, channels) if knobs.get("pixels_first") else (channels, *pixels)


def _registers(tile: tuple[int, int, int], vectors: int) -> int:
    """Return the registers of a tile: the sums, the smaller of weights and pixels, and one of the other operand.

    vectors: registers of one block of channels.
    """
    c, pixels = tile[0], tile[1] * tile[2]
    return c * pixels * vectors + min(c * vectors, pixels) + 1


def _loads_in_registers(tile: tuple[int, int, int], cpu: CpuFeatures, block_bytes: int) -> float:
    """Return the loads of a tile per multiplication, where each image value is broadcast to a register.

    A core loads as often as it multiplies, at most, and shares its loads with another thread of the same core. Weights
    that do not fit the L1 cache come from L2. Too few sums do not hide the latency of a multiplication; with many of
    one block of channels LLVM spills some, or reads each image value from memory twice.
    """
    c, pixels = tile[0], tile[1] * tile[2]
    weight = 1.5 if cpu.registers < 32 else 1.0 if c * block_bytes <= _NEAR_WEIGHTS else 1.75
    crowded = c == 1 and pixels > cpu.registers // 2
    return (weight / pixels + 1 / c) * (2.0 if crowded else 1.0) / (min(c * pixels, 12) / 12)


def _loads_for_sums(tile: tuple[int, int, int], most: int, by_channel: bool) -> float:
    """Return the loads of a tile per multiplication; `most` sums fit into registers.

    Image values come from the L1 cache, weights from L2, each block of channels from its own address. Too few sums do
    not hide the latency of a multiplication, too many leave no registers for operands.
    """
    c, h, w = tile
    held = c * h * w
    loads = 1 / (h * w) + 1.0 if by_channel else 2 / (h * w) + 0.5 / c
    return loads * (2.0 if held > 0.75 * most else 1.0) / (min(held, 12) / 12)


def weight_bytes(schedule: Any, kernel: Kernel) -> int:
    """Return the size of a convolution's weights as float32."""
    return _bytes_of(_regions(schedule, kernel)[-1])


def stored_weight_bytes(schedule: Any, kernel: Kernel) -> int:
    """Return the size of a convolution's weights in their dtype."""
    return buffer_bytes(region_buffer(_regions(schedule, kernel)[-1]))


def round_up_rows(chunk: int, tile: int, height: int) -> int:
    """Return the least number of rows, at least `chunk`, that is a multiple of the tile and divides the height."""
    return min(rows for rows in divisors(height, height) if rows >= chunk and rows % tile == 0)


def image_bytes(schedule: Any, kernel: Kernel) -> int:
    """Return the size of a convolution's input or output, whichever is larger, as float32."""
    *images, _ = _regions(schedule, kernel)
    return max(_bytes_of(image) for image in images)


def anchor_of(schedule: Any, kernel: Kernel) -> tuple[Any, list[int]]:
    """Return the block of a kernel's only reduction, and the extents of its loops."""
    assert kernel.anchor is not None
    block = block_ref(schedule, kernel.anchor)
    return schedule.get(block), extents(schedule, schedule.get_loops(block))


def _regions(schedule: Any, kernel: Kernel) -> list[Any]:
    block, _ = anchor_of(schedule, kernel)
    return [*block.writes, *operands_of(block)]


def operands_of(block: Any) -> list[Any]:
    """Return the image and the weights of a convolution; a bias is read before them."""
    return list(block.reads)[-2:]


def dtypes_of(schedule: Any, kernel: Kernel) -> list[str]:
    """Return the dtypes of a convolution's sums, image and weights."""
    return [str(region_buffer(region).dtype) for region in _regions(schedule, kernel)]


def _bytes_of(region: Any) -> int:
    return 4 * math.prod(int(extent) for extent in region_buffer(region).shape)


def decompose_init(schedule: Any, block: Any, loop: Any) -> Any:
    """Initialize the sums of a convolution before a loop; return the init block, which alone reads the bias."""
    init = schedule.decompose_reduction(block, loop)
    if len(schedule.get(block).reads) > 3:  # sums, bias, image, weights
        schedule.unsafe_hide_buffer_access(block, "read", [1])
    return init


def stride_and_dilation(image: Any, axis: int, block: Any, variables: tuple[int, int]) -> list[int]:
    """Return the stride and dilation of a convolution along an axis.

    image: the region that the block reads; variables: indices of the block's axes of outputs and of the filter.
    """
    return linear_factors(image.region[axis].min, [block.iter_vars[index].var for index in variables])


def window_steps(block: Any) -> list[list[int]]:
    """Return stride and dilation of a convolution's rows, and of its columns, on packed channels."""
    return [stride_and_dilation(operands_of(block)[0], axis, block, (axis, axis + 4)) for axis in (2, 3)]


def remove_duplicates(knobs: list[Knobs]) -> list[Knobs]:
    """Return the candidates without duplicates, in order."""
    return list({tuple(sorted(k.items())): k for k in knobs}.values())


def leaves_idle(tasks: int, threads: int) -> bool:
    """Whether threads idle too long at the end, if each gets the same number of consecutive tasks."""
    return 1 - tasks / (threads * -(-tasks // threads)) > _MOST_IDLE
