"""Schedule inverted residuals on packed channels.

A thread expands some rows of one block of channels, pads them, and convolves them depthwise while they are in its
cache. The kernels come from FuseInvertedResiduals. Rows that two threads need are computed by both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.ir.tvm_compat import added_constant
from tvmflow.schedules.template import (
    FILLED,
    Knobs,
    Template,
    divisors,
    rank_register_tiles,
    remove_duplicates,
    stride_and_dilation,
    tile_image,
    unroll_loops,
)
from tvmflow.targets.cpu_features import CpuFeatures

EXPANSION = "expansion"  # prefix of the names of such kernels
DEPTHWISE = "depthwise_conv2d"  # names of blocks
_CONVOLUTION = "conv2d"
_WIDEST = 14  # pixels of a tile of the expansion: more sums and their epilogue exceed the registers
_FAR = 1.2  # relative time if the rows of a thread exceed its L2 cache
_MOST = 1.15  # cost of a plan above which two kernels are as fast (16 threads)
_BYTES = 4  # bytes of a value


@dataclass(frozen=True)
class Shape:
    """The shape of a fused kernel.

    height: output rows; sees: rows that an output reads; stride: distance of these for neighbouring outputs; row_bytes:
    of a padded row of one block; sees_all: whether the windows cover the whole image.
    """

    images: int
    blocks: int
    height: int
    sees: int
    stride: int
    row_bytes: int
    sees_all: bool = True


class Plan(NamedTuple):
    """A division of a kernel among threads.

    cost: time relative to evenly divided rows without recomputation; rows: output rows of a task; by_rows: whether
    threads get rows of all channels.
    """

    cost: float
    rows: int
    by_rows: bool


def rank_plans(shape: Shape, cpu: CpuFeatures) -> list[Plan]:
    """Return the ways to divide a kernel among threads, the best first."""
    found = []
    for rows in divisors(shape.height, shape.height):
        computed = min((rows - 1) * shape.stride + shape.sees, shape.height * shape.stride)  # without the padding
        pieces = shape.images * shape.height // rows
        far = _FAR if computed * shape.row_bytes > cpu.l2_bytes // 2 else 1.0
        for by_rows, tasks in ((True, pieces), (False, pieces * shape.blocks)):
            idle = -(-tasks // cpu.threads) * cpu.threads / tasks
            found.append(Plan(max(computed / (rows * shape.stride), 1.0) * idle * far, rows, by_rows))
    return sorted(found, key=lambda plan: (round(plan.cost, 1), -plan.by_rows, -plan.rows))


def shape_of(schedule: Any, padding: str) -> Shape:
    """Return the shape of a kernel whose depthwise convolution reads an image that a block pads."""
    block = block_ref(schedule, DEPTHWISE)
    images, blocks, height, width, lanes, taps, columns = extents(schedule, schedule.get_loops(block))
    node, padded = schedule.get(block), schedule.get(block_ref(schedule, padding))
    image = list(node.reads)[-2]
    (down, between), (across, beside) = (stride_and_dilation(image, axis, node, (axis, axis + 3)) for axis in (2, 3))
    high, wide = (height - 1) * down + (taps - 1) * between + 1, (width - 1) * across + (columns - 1) * beside + 1
    sees_all = all(_ends(padded, axis) <= size for axis, size in ((2, high), (3, wide)))
    return Shape(images, blocks, height, (taps - 1) * between + 1, down, wide * lanes * _BYTES, sees_all)


def _ends(padded: Any, axis: int) -> float:
    """Return where the image ends along an axis of a padding block."""
    read = padded.reads[0]
    before = added_constant(read.region[axis].min, padded.iter_vars[axis].var)
    return math.inf if before is None else int(region_buffer(read).shape[axis]) - before


def pays(shape: Shape, cpu: CpuFeatures) -> bool:
    """Whether two kernels can be fused and the result is faster."""
    return shape.sees_all and rank_plans(shape, cpu)[0].cost <= _MOST


def is_expansion(schedule: Any, kernel: Kernel) -> bool:
    """Whether a kernel is a float32 1x1 convolution on packed channels without padding."""
    if kernel.anchor != _CONVOLUTION or kernel.before:
        return False
    anchor = block_ref(schedule, kernel.anchor)
    sizes = extents(schedule, schedule.get_loops(anchor))
    block = schedule.get(anchor)
    if len(sizes) != 9 or sizes[6:8] != [1, 1] or str(region_buffer(block.writes[0]).dtype) != "float32":
        return False
    image = region_buffer(block.reads[0])
    return [int(extent) for extent in image.shape[2:4]] == sizes[2:4]


def _covers(_schedule: Any, kernel: Kernel) -> bool:
    return kernel.reductions == (_CONVOLUTION, DEPTHWISE)


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    _, _, height, width, lanes, *_ = extents(schedule, schedule.get_loops(block_ref(schedule, DEPTHWISE)))
    wide = extents(schedule, schedule.get_loops(block_ref(schedule, _CONVOLUTION)))[3]
    most = cpu.accumulators(lanes)
    points = [(1, h, w) for h in divisors(height, 4) for w in divisors(width, 28) if h * w <= most]
    tiles = rank_register_tiles(points, cpu, lanes, None)[:3]
    return remove_duplicates(
        [
            {
                "c_tile": 1,
                "h_tile": h,
                "w_tile": w,
                "wide_tile": computed,
                "chunk": plan.rows,
                "rows_first": int(plan.by_rows),
                "parallel": 1,
            }
            for plan in rank_plans(shape_of(schedule, _padding_of(kernel)), cpu)[:3]
            for computed in divisors(wide, _WIDEST)[:-3:-1]
            for _, h, w in tiles
            if plan.rows % h == 0
        ]
    )


def _padding_of(kernel: Kernel) -> str:
    """Return the block that pads the input of the depthwise convolution: the one before it."""
    return kernel.after[kernel.after.index(DEPTHWISE) - 1]


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    names = list(kernel.after)
    at = names.index(DEPTHWISE)
    for name in (*names[1 : at - 1], *names[at + 1 : -1]):
        schedule.compute_inline(block_ref(schedule, name))
    expansion, padding, depthwise = (block_ref(schedule, name) for name in (names[0], _padding_of(kernel), DEPTHWISE))
    alone = names[-1] == DEPTHWISE
    out = schedule.cache_write(depthwise, 0, "local") if alone else block_ref(schedule, names[-1])
    rows, c_outer, _, w_outer = tile_image(schedule, out, knobs)
    schedule.compute_at(depthwise, w_outer, preserve_unit_loops=True)
    if not alone:
        schedule.set_scope(depthwise, 0, "local")
    schedule.compute_at(padding, c_outer if knobs["rows_first"] else rows, preserve_unit_loops=True)
    column = _pad(schedule, padding, knobs["wide_tile"])
    schedule.compute_at(expansion, column, preserve_unit_loops=True)
    schedule.set_scope(expansion, 0, "local")
    unroll_loops(schedule, *schedule.get_loops(out)[-4:-1])
    for block, reduced in ((expansion, 4), (depthwise, 2)):
        _sum(schedule, block, reduced)


def _pad(schedule: Any, padding: Any, tile: int) -> Any:
    """Write the padding of an image first; return the loop over tiles of its columns."""
    filling = schedule.decompose_padding(padding, schedule.get_loops(padding)[-5])
    *_, columns, lane = schedule.get_loops(filling)
    schedule.vectorize(lane)
    block = schedule.get(padding)
    axes = block.iter_vars[2:4]
    written = block.writes[0].region[2:4]
    edges = [
        (added_constant(place.min, axis.var), int(axis.dom.extent)) for place, axis in zip(written, axes, strict=True)
    ]
    schedule.annotate(columns, FILLED, [number for edge in edges for number in edge])
    *_, columns, lane = schedule.get_loops(padding)
    column, columns = schedule.split(columns, [None, tile])
    schedule.unroll(columns)
    schedule.vectorize(lane)
    return column


def _sum(schedule: Any, block: Any, reduced: int) -> None:
    """Sum a tile in registers."""
    *pixels, lane = schedule.get_loops(block)[-4 - reduced : -reduced]
    steps = schedule.get_loops(block)[-reduced:]
    schedule.reorder(*steps, *pixels, lane)
    unroll_loops(schedule, *pixels)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, steps[0])


EXPANDED = Template("expansion", _covers, _candidates, _apply)
