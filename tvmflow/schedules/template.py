"""What templates share: the shape of one, and the small moves that all of them make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.ir.tvm_compat import linear_factors
from tvmflow.targets.cpu_features import CpuFeatures

Knobs = dict[str, int]
MOST_DEFAULTS = 8  # of a template's candidates, the likelier first: the first that applies serves untuned kernels
SPREAD_LANES = 16  # of element-wise loops; LLVM makes of them what the target has
SMALL_WORK = 20_000  # element operations below which waking a second thread costs more than it saves
# mark of a loop over what a tile sums: blocks of channels in a tile, and how many shares in a row have the same
PREFETCHED = "tvmflow_prefetched"
# mark of a loop over the columns of a padding: first row, rows, first column and columns of what is written over it
FILLED = "tvmflow_filled"
_MOST_IDLE = 0.3  # of the threads' time: schedules that leave more of it unused are tried last


@dataclass(frozen=True)
class Template:
    """covers: may this kernel be scheduled so; candidates: knobs, the default first, by CpuFeatures or GpuFeatures;
    apply: schedule in place.
    """

    name: str
    covers: Callable[[Any, Kernel], bool]
    candidates: Callable[[Any, Kernel, Any], list[Knobs]]
    apply: Callable[[Any, Kernel, Knobs], None]


def divisors(number: int, limit: int) -> list[int]:
    """Return the divisors of a number up to a limit, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def packed_loops(schedule: Any, block: Any) -> list[Any]:
    """Return the loops of a block over (n, c, h, w, lane); unit loops that a reshape left in front are fused away."""
    loops = schedule.get_loops(block)
    while len(loops) > 5:
        loops = [schedule.fuse(loops[0], loops[1]), *loops[2:]]
    return list(loops)


def parallel_first(work: int) -> tuple[int, ...]:
    """Return the values of the knob `parallel` that are worth trying, the likelier first."""
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
    """Inline all element-wise blocks after the anchor into the last one and return its name."""
    for name in kernel.after[:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    return kernel.after[-1] if kernel.after else None


def spread(schedule: Any, name: str, parallel: int) -> None:
    """Schedule an element-wise block: outer loops over threads, inner loop vectorized."""
    loops = schedule.get_loops(block_ref(schedule, name))
    if not loops:  # a number
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


def spread_pixels(schedule: Any, name: str, parallel: int) -> None:
    """Schedule a copy of packed channels with their padding: rows over threads, a pixel in a vector.

    A vector of two pixels, one of them of the padding, would be copied value by value.
    """
    *outer, _, lane = schedule.get_loops(block_ref(schedule, name))
    if len(outer) < 3 or extents(schedule, [lane])[0] > SPREAD_LANES:
        spread(schedule, name, parallel)
        return
    rows = schedule.fuse(*outer)
    if parallel:
        schedule.parallel(rows)
    schedule.vectorize(lane)


def spread_rows(schedule: Any, name: str, parallel: int) -> None:
    """Schedule an element-wise block on packed channels: rows of the image over threads, as convolutions have them, a
    pixel in a vector.
    """
    batch, channels, height, width, lane = packed_loops(schedule, block_ref(schedule, name))
    schedule.reorder(batch, height, channels, width, lane)
    rows = schedule.fuse(batch, height)
    if parallel:
        schedule.parallel(rows)
    schedule.vectorize(lane)


def shares_of(schedule: Any, batch: Any, channels: Any, rows: Any, inner: tuple[Any, ...], by_rows: bool) -> Any:
    """Order loops over images, blocks of channels and pieces of rows before inner ones, and return what threads share:
    the rows, or channels and rows.
    """
    shared = (batch, rows) if by_rows else (batch, channels, rows)
    schedule.reorder(*shared, *((channels,) if by_rows else ()), *inner)
    return schedule.fuse(*shared)


def tile_image(schedule: Any, out: Any, knobs: Knobs) -> tuple[Any, Any, Any, Any]:
    """Tile what is written on packed channels; return the loop over threads, and those over blocks of channels, rows
    and columns.
    """
    batch, c, h, w, lane = packed_loops(schedule, out)
    c_outer, c_tile = schedule.split(c, [None, knobs["c_tile"]])
    h_chunk, h_outer, h_tile = schedule.split(h, [None, knobs["chunk"] // knobs["h_tile"], knobs["h_tile"]])
    w_outer, w_tile = schedule.split(w, [None, knobs["w_tile"]])
    inner = (h_outer, w_outer, c_tile, h_tile, w_tile, lane)
    rows = shares_of(schedule, batch, c_outer, h_chunk, inner, bool(knobs["rows_first"]))
    if knobs["parallel"]:
        schedule.parallel(rows)
    schedule.vectorize(lane)
    return rows, c_outer, h_outer, w_outer


def points_of_sums(
    points: list[tuple[int, int, int]], cpu: CpuFeatures, lanes: int, by_channel: bool = False
) -> list[tuple[int, int, int]]:
    """Return the tiles of sums (blocks of `lanes` channels, rows, columns) that fit into registers, those of least
    loads first.

    by_channel: depthwise, each value is multiplied in one block of channels.
    """
    if cpu.broadcasts_in_registers and not by_channel:
        found = [tile for tile in points if _registers(tile, -(-lanes // cpu.lanes)) <= cpu.registers]
        return sorted(found, key=lambda tile: (_loads_in_registers(tile), tile[1], -tile[2]))
    most = cpu.accumulators(lanes)
    found = [tile for tile in points if math.prod(tile) <= most]
    return sorted(found, key=lambda tile: (_loads_for_sums(tile, most, by_channel), tile[1], -tile[2]))


def pixels_first(tile: tuple[int, int, int], cpu: CpuFeatures) -> Knobs:
    """Return the knob `pixels_first` where each pixel of a tile is multiplied by all blocks of channels before the
    next: the fewer of both stay in registers.
    """
    return {"pixels_first": 1} if cpu.broadcasts_in_registers and tile[0] <= tile[1] * tile[2] else {}


def order_of_tile(knobs: Knobs, channels: Any, pixels: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return the loops of a tile of sums, over blocks of channels and over pixels, in the order in which they are
    multiplied.
    """
    return (*pixels, channels) if knobs.get("pixels_first") else (channels, *pixels)


def _registers(tile: tuple[int, int, int], vectors: int) -> int:
    """Return how many registers a tile of sums takes, of so many for a block of channels: the sums, the fewer of
    weights and pixels, and the other one.
    """
    c, pixels = tile[0], tile[1] * tile[2]
    return c * pixels * vectors + min(c * vectors, pixels) + 1


def _loads_in_registers(tile: tuple[int, int, int]) -> float:
    """Return what a tile of sums loads for a multiplication where each value of the image is loaded into a register: as
    often as a core multiplies at most.

    Weights come from the next cache. Too few sums do not hide the latency of a multiplication; of more than eight of
    one block of channels LLVM spills some.
    """
    c, pixels = tile[0], tile[1] * tile[2]
    return (1.5 / pixels + 1 / c) * (2.0 if c == 1 and pixels > 8 else 1.0) / (min(c * pixels, 12) / 12)


def _loads_for_sums(tile: tuple[int, int, int], most: int, by_channel: bool) -> float:
    """Return what a tile of sums loads for a multiplication; `most` sums fit into registers.

    A value of the image is in the nearest cache, weights come from the next, each block of channels from a place of its
    own. Too few sums do not hide the latency of a multiplication, too many leave no registers for operands.
    """
    c, h, w = tile
    held = c * h * w
    loads = 1 / (h * w) + 1.0 if by_channel else 2 / (h * w) + 0.5 / c
    return loads * (2.0 if held > 0.75 * most else 1.0) / (min(held, 12) / 12)


def weight_bytes(schedule: Any, kernel: Kernel) -> int:
    """Return the size of a convolution's weights, counted as float32."""
    return _bytes_of(_regions(schedule, kernel)[-1])


def image_bytes(schedule: Any, kernel: Kernel) -> int:
    """Return the size of a convolution's image or of its output, of the larger, counted as float32."""
    *images, _ = _regions(schedule, kernel)
    return max(_bytes_of(image) for image in images)


def _regions(schedule: Any, kernel: Kernel) -> list[Any]:
    assert kernel.anchor is not None
    block = schedule.get(block_ref(schedule, kernel.anchor))
    return [*block.writes, *list(block.reads)[-2:]]


def _bytes_of(region: Any) -> int:
    return 4 * math.prod(int(extent) for extent in region_buffer(region).shape)


def decompose_sums(schedule: Any, block: Any, loop: Any) -> Any:
    """Start the sums of a convolution before a loop; return the block that does it, which alone reads what they start
    from.
    """
    init = schedule.decompose_reduction(block, loop)
    if len(schedule.get(block).reads) > 3:  # sums, what they start from, image, weights
        schedule.unsafe_hide_buffer_access(block, "read", [1])
    return init


def steps_of(image: Any, axis: int, block: Any, variables: tuple[int, int]) -> list[int]:
    """Return stride and dilation of a convolution along an axis: how far its image is moved along by an output, and by
    a place of the filter.

    image: the region that the block reads; variables: of the block, of outputs and of the filter along the axis.
    """
    return linear_factors(image.region[axis].min, [block.iter_vars[index].var for index in variables])


def tensorize_tile(schedule: Any, anchor: Any, intrinsic: str, start: str = "") -> None:
    """Let the nine innermost loops of a convolution, four over outputs and five over what is summed, be one intrinsic,
    behind the start of its sums.

    start: the intrinsic that starts them; vectors of zeros where there is none.

    What runs once is no part of the intrinsic: TVM drops such loops on one side of its comparison only.
    """
    loops = schedule.get_loops(anchor)[-9:]
    sizes = extents(schedule, loops)
    once = [loop for loop, size in zip(loops, sizes, strict=True) if size == 1]
    summed_once = [loop for loop, size in zip(loops[4:], sizes[4:], strict=True) if size == 1]
    inner = [loop for loop, size in zip(loops, sizes, strict=True) if size > 1]
    schedule.reorder(*once, *inner)
    init = decompose_sums(schedule, anchor, [*summed_once, *inner][0])
    if start:
        starting = schedule.get_loops(init)[-sum(size > 1 for size in sizes[:4]) :]
        schedule.tensorize(starting[0], start)
    else:
        schedule.vectorize(schedule.get_loops(init)[-1])
    schedule.tensorize(inner[0], intrinsic)


def meaning_of_axes(names: str, sizes: Sequence[int]) -> dict[str, str]:
    """Return what stands for the loops of an intrinsic in its meaning: an axis of one step has no loop, and 0 for its
    index.

    names: a letter for each axis, four of outputs, and five of what is summed or none.
    """
    axes = list(zip(names, sizes, "SSSSRRRRR"[: len(names)], strict=True))
    looped = [axis for axis in axes if axis[1] > 1]
    return {
        **{f"v{name}": f"v{name}" if size > 1 else "0" for name, size, _ in axes},
        "loops": ", ".join(name for name, _, _ in looped),
        "axes": ", ".join(f"v{name}" for name, _, _ in looped),
        "extents": ", ".join(str(size) for _, size, _ in looped),
        "kinds": "".join(kind for _, _, kind in looped),
    }


def distinct(knobs: list[Knobs]) -> list[Knobs]:
    """Return the candidates without repetitions, in order."""
    return list({tuple(sorted(k.items())): k for k in knobs}.values())


def register_intrinsic(name: str, source: str, meaning: str, instructions: str, values: dict[str, Any]) -> str:
    """Register a tensor intrinsic with TVM and return its name.

    source: TVMScript with {body} for the two bodies, which say what is computed and how; values: what its {names} stand
    for.
    """
    from tvm.s_tir import TensorIntrin

    parts = [parsed(source.replace("{body}", body).format(**values)) for body in (meaning, instructions)]
    TensorIntrin.register(name, parts[0], parts[1], override=True)
    return name


def leaves_idle(tasks: int, threads: int) -> bool:
    """Whether threads wait for too long for the last of them, each given as many neighbouring tasks."""
    return 1 - tasks / (threads * -(-tasks // threads)) > _MOST_IDLE


def is_named_in(name: str, trace: str) -> bool:
    """Whether a trace names an intrinsic, between quotes of either kind."""
    return f'"{name}"' in trace or f"'{name}'" in trace
