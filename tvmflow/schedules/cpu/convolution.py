"""Schedule convolutions and pools on packed channels.

A tile of outputs stays in registers over the whole reduction. If images are larger than weights, threads get rows of
them in every kernel, so that a thread reads what it wrote itself: what another core wrote is in that core's cache, and
without a shared cache fetching it takes longer than multiplying it. Otherwise threads get channels, and each its part
of the weights.
"""

from __future__ import annotations

import math
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.schedules.cpu.amx_convolution import amx_tile_candidates, copy_channels_last, tensorize_amx
from tvmflow.schedules.cpu.cache_traffic import rank_by_traffic, streams_of
from tvmflow.schedules.cpu.reduction import is_long_sum
from tvmflow.schedules.intrinsics.arm_depthwise import depthwise_variants, tensorize_depthwise
from tvmflow.schedules.intrinsics.arm_first_layer import (
    COLUMN_DOTS,
    find_column_dot,
    rank_column_tiles,
    tensorize_columns,
)
from tvmflow.schedules.intrinsics.arm_lane_mla import LANES, LaneMla, find_lane_mla, rank_lane_tiles, tensorize_lane_mla
from tvmflow.schedules.intrinsics.arm_mmla import PAIRS, find_mmla, rank_mmla_tiles, tensorize_mmla
from tvmflow.schedules.intrinsics.arm_tile import TILES, find_tile, rank_tiles, tensorize_tile
from tvmflow.schedules.intrinsics.dot_product import DOTS, find_dot, sum_lanes
from tvmflow.schedules.intrinsics.intrinsic import instruction_of
from tvmflow.schedules.template import (
    PREFETCHED,
    SMALL_WORK,
    Knobs,
    Template,
    anchor_of,
    divisors,
    dtypes_of,
    image_bytes,
    leaves_idle,
    mark_interior,
    merge_epilogue,
    operands_of,
    order_tile_loops,
    parallel_candidates,
    parallelize_pixels,
    parallelize_rows,
    pixels_first_knob,
    rank_register_tiles,
    remove_duplicates,
    round_up_rows,
    stored_weight_bytes,
    tile_image,
    tile_sizes,
    unroll_loops,
    weight_bytes,
    window_steps,
    work_of,
)
from tvmflow.targets.cpu_features import CpuFeatures

_WIDENED = 6  # expansion factor of inverted residuals
_PREFETCHING = range(2, 33)  # numbers of tiles over which a thread can distribute prefetches


def _window(schedule: Any, kernel: Kernel) -> tuple[list[int], int] | None:
    """Return loop extents and number of reduced axes of a convolution or pool on packed channels.

    The loops are (n, c, h, w, lane) over 4 axes (convolution), 5 (with int8_dot4 or bf16_dot2), 3 (first layer) or 2
    (depthwise, pools).
    """
    if kernel.anchor is None or len(kernel.before) > 1:
        return None
    block = schedule.get(block_ref(schedule, kernel.anchor))
    kinds = [int(variable.iter_type) for variable in block.iter_vars]
    reduced = len(kinds) - 5
    if kinds[:5] != [0] * 5 or kinds[5:] != [2] * reduced or reduced not in (2, 3, 4, 5):
        return None
    if len(block.reads) > 3 or (len(block.reads) == 1 and reduced > 2):
        return None
    sizes = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))
    divided = len(block.reads) == 1 and sizes[2:4] == [1, 1] and is_long_sum(block, sizes[5:])
    return (sizes, reduced) if sizes[4] in (4, 8, 16) and not divided else None


def _candidates(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[Knobs]:
    window = _window(schedule, kernel)
    assert window is not None and kernel.anchor is not None
    (images, channels, height, *_), reduced = window
    order = parallel_candidates(work_of(schedule, kernel.anchor))
    variants = _rank_variants(schedule, kernel, cpu)
    places, by_traffic = _rank_places(schedule, kernel, cpu), "neon" in cpu.dots
    grouped = [(*place, 1) for place in places]
    if by_traffic:
        grouped = rank_by_traffic(streams_of(schedule, kernel, reduced, *variants[0][1:]), places, cpu)
    shapes = amx_tile_candidates(schedule, kernel, cpu, reduced)
    tiles = [
        {
            **tile,
            "rows_first": rows,
            "pad_inside": rows,
            "chunk": round_up_rows(chunk, tile["h_tile"], height),
            "parallel": parallel,
            "tiles": 1,
        }
        for rows, chunk in dict.fromkeys((rows, chunk) for rows, _, chunk in places)
        for tile in shapes
        for parallel in order
    ]
    knobs = [
        {
            "c_tile": c,
            "h_tile": h,
            "w_tile": w,
            "rows_first": rows,
            "pad_inside": inside,
            "chunk": round_up_rows(chunk, h, height)
            if by_traffic or instruction_of(PAIRS, {"dot": number})
            else max(chunk, h),
            "unroll": unroll,
            "parallel": parallel,
            "dot": number,
            **({"c_group": group} if group > 1 else {}),
            **(pixels_first_knob((c, h, w), cpu) if reduced > 2 else {}),
        }
        for rows, inside, chunk, group in grouped
        for unroll, number, (c, h, w) in variants
        if channels // c % group == 0
        for parallel in order
    ]
    whole = [k for k in tiles + knobs if k["chunk"] % k["h_tile"] == 0 and height % k["chunk"] == 0]
    if kernel.before and "neon" in cpu.dots:
        whole = [{**k, "interior": 1} for k in whole]
    whole = _with_prefetches(schedule, kernel, cpu, whole)
    # The sort is stable: candidates that keep threads busy stay in the order above.
    whole.sort(
        key=lambda k: (
            leaves_idle(_count_tasks((images, channels, height), k), cpu.threads) if k["parallel"] else order[0] == 1
        )
    )
    return remove_duplicates(whole)


def _rank_places(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[tuple[int, int, int]]:
    """Return the shares that threads can get, the most promising first: rows or channels first, whether each pads its
    rows, rows of a share.
    """
    window = _window(schedule, kernel)
    assert window is not None
    (_, channels, height, width, lanes, *_), reduced = window
    chunks = _row_chunks(height, cpu.threads)
    if not kernel.before:
        places = [(0, 0, chunk) for chunk in chunks[:1]] + [(1, 0, chunk) for chunk in chunks[:2]]
        if reduced > 2 and image_bytes(schedule, kernel) > weight_bytes(schedule, kernel):
            places = [(1, 0, chunk) for chunk in chunks[1::-1]] + places[:1]
    elif reduced == 2:
        by_rows = (1, 0) if height * width * _WIDENED > channels * lanes else (0, 1)
        places = [*((rows, 1, chunk) for chunk in chunks for rows in by_rows), (0, 0, chunks[0])]
    else:
        places = [*((1, 1, chunk) for chunk in chunks), (0, 0, chunks[0]), (1, 0, chunks[0])]
        # Weights are read once, and all rows for each block of them.
        if weight_bytes(schedule, kernel) > cpu.l2_bytes // 2:
            places = list(dict.fromkeys([(0, 0, chunks[0]), *places]))
    return places


def _count_tasks(sizes: tuple[int, int, int], knobs: Knobs) -> int:
    """Return the number of tasks into which a schedule divides these images, blocks of channels and rows."""
    images, channels, height = sizes
    pieces = images * height // knobs["chunk"]
    return pieces if knobs["rows_first"] else pieces * channels // knobs["c_tile"]


def _with_prefetches(schedule: Any, kernel: Kernel, cpu: CpuFeatures, candidates: list[Knobs]) -> list[Knobs]:
    """Return the candidates, with the knob `prefetch` where it pays. x86 only; arm64 was not measured."""
    window = _window(schedule, kernel)
    assert window is not None
    sizes, reduced = window
    if reduced < 4 or cpu.lanes < 8:
        return candidates
    size = stored_weight_bytes(schedule, kernel)
    return [{**knobs, **_prefetch_knob(sizes, size, cpu, knobs)} for knobs in candidates]


def _prefetch_knob(sizes: list[int], size: int, cpu: CpuFeatures, knobs: Knobs) -> Knobs:
    """Return the knob `prefetch` if prefetching the weights of the next blocks of channels pays.

    Its value is the number of consecutive shares with the same weights. It pays if the weights exceed the near cache,
    those of two blocks fit the cache of a core, and there are tiles to distribute the prefetches over; with many tiles
    the wait for the first is negligible. sizes: of the loops; size: of the weights, in bytes.
    """
    if knobs.get("tiles"):
        return {}
    channels, height, width = sizes[1:4]
    tiles = knobs["chunk"] // knobs["h_tile"] * width // knobs["w_tile"]
    many = size > cpu.l2_bytes // 4 and size * knobs["c_tile"] // channels <= cpu.l2_bytes * 3 // 8
    if not (many and tiles in _PREFETCHING):
        return {}
    return {"prefetch": 1 if knobs["rows_first"] else height // knobs["chunk"]}


def _rank_variants(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Return variants to sum a tile, the most promising first: unrolled or not, number of the instruction, tile.

    A tile is blocks of channels, rows and columns.
    """
    window = _window(schedule, kernel)
    assert window is not None and kernel.anchor is not None
    (_, channels, height, width, lanes, *_), reduced = window
    pairs = find_mmla(schedule, kernel, cpu)
    if pairs:
        return [(0, pairs.number, point) for point in rank_mmla_tiles(schedule, kernel, pairs)]
    by_channel = reduced == 2
    part = _channels_per_group(schedule, kernel.anchor, reduced)
    held = lanes * max(cpu.lanes // part, 1)  # channels that fill the registers of a pixel's sums
    # LLVM keeps the common factor of several sums of a pixel in registers, and then spills sums, where the order of
    # the multiplications leaves it the choice: so does unrolling a first layer.
    ordered = cpu.broadcasts_in_registers and reduced > 3
    most, fewer = cpu.accumulators(held), cpu.accumulators(held, spare=max(cpu.registers * 3 // 16, 4))
    points = [
        (c, h, w)
        for c, h, w in tile_sizes((channels, height, width), (1 if by_channel or part < lanes else 8, 4, 28))
        if c * h * w <= (fewer if by_channel or part < lanes or (c > 1 and not ordered) else most)
    ]
    weights = None if by_channel else stored_weight_bytes(schedule, kernel) // channels
    points = rank_register_tiles(points, cpu, held, weights)
    dot = None
    if reduced == 5:
        dot = find_dot(cpu, dtypes_of(schedule, kernel)[1], part)
    unrolls = (0,) if dot else (1, 0) if part < lanes else (0, 1)
    variants = [(unroll, dot.number if dot else 0, point) for unroll in unrolls for point in points[:24]]
    row = _find_lane_mla(schedule, kernel, cpu, lanes, reduced)
    if by_channel:
        of_arm = depthwise_variants(schedule, kernel, cpu)
        return of_arm + variants[:24] if of_arm else variants
    columns = find_column_dot(schedule, kernel, cpu) if reduced in (3, 5) and part == lanes else None
    if columns:
        variants = [(0, columns.number, point) for point in rank_column_tiles(schedule, kernel, columns)] + variants[
            :24
        ]
    elif row:
        unrolls = (1, 0) if row.group > 1 else (0, 1)
        block, sizes = anchor_of(schedule, kernel)
        columns_and_step = sizes[7], window_steps(block)[1][0]
        tried = rank_lane_tiles(row, channels, height, width, lanes, columns_and_step)[:12]
        variants = [(unroll, row.number, point) for point in tried for unroll in unrolls] + variants[:24]
    if not columns and reduced in (4, 5):
        variants = _tile_variants(schedule, kernel, cpu) + variants
    return variants


def _tile_variants(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Return the variants of a convolution of packed channels that sum a tile by one intrinsic."""
    block, sizes = anchor_of(schedule, kernel)
    _, channels, height, width, lanes, blocks, kh, kw, *inner = sizes
    total, data, weight = dtypes_of(schedule, kernel)
    tile = find_tile(cpu, (data, weight, total), (lanes, *inner, 1)[:3])
    if tile is None:
        return []
    (sh, _), (sw, _) = window_steps(block)
    return [(0, tile.number, point) for point in rank_tiles(tile, (channels, height, width), blocks, kh * kw, (sh, sw))]


def _find_lane_mla(schedule: Any, kernel: Kernel, cpu: CpuFeatures, lanes: int, reduced: int) -> LaneMla | None:
    """Return the lane multiply-accumulate of a convolution of packed channels, None if the processor has none."""
    if reduced not in (4, 5) or kernel.anchor is None:
        return None
    words, group = [*anchor_of(schedule, kernel)[1], 1][8:10]
    total, data, weight = dtypes_of(schedule, kernel)
    return find_lane_mla(cpu, (data, weight, total), lanes, (words, group))


def _channels_per_group(schedule: Any, anchor: str, reduced: int) -> int:
    """Return how many neighbouring output channels read the same input channels: a block, or a group that is part of
    one.

    If a block consists of several parts, the outputs read all of them, one after the other.
    """
    block = block_ref(schedule, anchor)
    sizes = extents(schedule, schedule.get_loops(block))
    if reduced < 4:
        return sizes[4]
    read, inside = (
        math.prod(sizes[-1 if reduced == 4 else -2 :]),
        int(region_buffer(operands_of(schedule.get(block))[0]).shape[-1]),
    )
    return sizes[4] if read == inside or sizes[5] > 1 else read


def _row_chunks(height: int, threads: int) -> list[int]:
    """Return the numbers of rows that a thread may take at a time, the most promising first."""
    shared = max(threads, 2)
    wanted = (height // (2 * shared), height // shared, 1, height // (4 * shared))
    return list(dict.fromkeys(max(divisors(height, max(rows, 1))) for rows in wanted))


def _image_size(schedule: Any, block: Any, reduced: int) -> list[int]:
    """Return height and width of a block's output on packed channels."""
    loops = schedule.get_loops(block)
    return extents(schedule, loops[len(loops) - reduced - 3 : len(loops) - reduced - 1])


def _apply(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Keep a tile of outputs in registers over the whole reduction; write it once, with the epilogue."""
    assert kernel.anchor is not None
    last = merge_epilogue(schedule, kernel)
    anchor = block_ref(schedule, kernel.anchor)
    reduced = len(schedule.get_loops(anchor)) - 5
    part = _channels_per_group(schedule, kernel.anchor, reduced)
    tiles = knobs.get("tiles", 0)
    before, plain = copy_channels_last(schedule, kernel) if tiles else (kernel.before, False)
    behind = after = None
    if last is not None:
        computed, expected = _image_size(schedule, anchor, reduced), _image_size(schedule, block_ref(schedule, last), 0)
        if computed != expected:  # cropped; or padded for the next layer, which takes a separate pass
            if computed[0] == expected[0] and computed[1] > expected[1]:
                behind = block_ref(schedule, last)
            else:
                after = last
            last = None
    out = schedule.cache_write(anchor, 0, "local") if last is None else block_ref(schedule, last)
    rows, c_outer, row, w_outer = tile_image(schedule, out, knobs)
    schedule.compute_at(anchor, w_outer, preserve_unit_loops=True)
    if last is not None:
        schedule.set_scope(anchor, 0, "local")
    for name in before:
        # A depthwise convolution pads the rows of one block of channels at a time.
        _pad(schedule, name, c_outer if reduced == 2 and knobs["rows_first"] else rows, knobs)
    unroll_loops(schedule, *([] if tiles else schedule.get_loops(out)[-4:-1]))
    if after is not None:
        parallelize_rows(schedule, after, knobs["parallel"] or int(work_of(schedule, after) > SMALL_WORK))
    if behind is not None:  # a row is computed in whole tiles, then cropped
        schedule.reverse_compute_at(behind, row, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(behind)[-1])
    if tiles:
        tensorize_amx(schedule, anchor, rows, plain)
    else:
        outermost = schedule.get_loops(anchor)[-reduced]
        _sum(schedule, anchor, reduced, rows, knobs, part)
        if knobs.get("prefetch"):
            schedule.annotate(outermost, PREFETCHED, [knobs["c_tile"], knobs["prefetch"]])


def _pad(schedule: Any, name: str, place: Any, knobs: Knobs) -> None:
    """Copy an image with its padding: below the loop `place`, or once for the whole image."""
    padding = block_ref(schedule, name)
    if not knobs["pad_inside"]:
        parallelize_pixels(schedule, name, knobs["parallel"], knobs.get("interior", 0))
        return
    schedule.compute_at(padding, place, preserve_unit_loops=True)
    axes = schedule.get_loops(padding)[1:]
    if knobs.get("interior"):
        mark_interior(schedule, padding, axes[-2 if len(schedule.get(padding).iter_vars) == 5 else -1])
    if extents(schedule, axes[-1:])[0] <= 64:
        schedule.vectorize(axes[-1])


def _sum(schedule: Any, anchor: Any, reduced: int, rows: Any, knobs: Knobs, part: int) -> None:
    """Sum a tile in registers, in vectors of at most `part` channels or by an instruction."""
    pairs = instruction_of(PAIRS, knobs)
    if pairs:
        tensorize_mmla(schedule, pairs, anchor, rows)
        return
    inner = schedule.get_loops(anchor)[-5 - reduced :]
    n, c_inner, h_inner, w_inner, c_lane = inner[:5]
    steps = inner[5:]
    columns = instruction_of(COLUMN_DOTS, knobs)
    if columns:
        tensorize_columns(schedule, columns, anchor, inner, rows)
        return
    whole = instruction_of(TILES, knobs)
    if whole:
        (sh, _), (sw, _) = window_steps(schedule.get(anchor))
        kh, kw = extents(schedule, steps[1:3])
        loops = (*steps[1:3], *inner[:5], steps[0], *steps[3:])
        tensorize_tile(schedule, whole, anchor, loops, kh * kw, (sh, sw), rows)
        return
    if reduced == 2 and tensorize_depthwise(schedule, knobs, anchor, inner, rows):
        return
    row = instruction_of(LANES, knobs)
    if row:
        tile = (c_inner, h_inner, w_inner, c_lane, *steps[3:])
        tensorize_lane_mla(schedule, row, anchor, (*steps[:3], n), tile, rows)
        if knobs["unroll"]:
            schedule.unroll(steps[2])  # the columns of the filter
        return
    dot = instruction_of(DOTS, knobs)
    byte = [steps.pop()] if dot else []
    schedule.reorder(*steps, n, *order_tile_loops(knobs, c_inner, (h_inner, w_inner)), c_lane, *byte)
    unroll_loops(schedule, c_inner, h_inner, w_inner)
    if not dot and part < extents(schedule, [c_lane])[0]:
        parts, c_lane = schedule.split(c_lane, [None, part])
        schedule.unroll(parts)
    if not dot and knobs["unroll"]:
        unroll_loops(schedule, *(steps[-1:] if reduced >= 4 else steps[-2:]))
    sum_lanes(schedule, dot, anchor, c_lane, steps[0], rows)


WINDOW = Template("packed_conv", lambda schedule, kernel: _window(schedule, kernel) is not None, _candidates, _apply)
