"""Schedule GPU kernels by vectors of four channels, and tiles of outputs in registers.

Tiles and workgroups divide their loops, so that no predicates are needed. Local memory is not used: on Mali it is main
memory. If a layer has too few outputs to fill the GPU, the threads of a workgroup share its sums (knob `shared`,
`tvmflow/schedules/gpu/shared_reduction.py`), or sums are split over threads and added by a second launch.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvm import ir, s_tir
from tvm_ffi import structural_walk

from tvmflow.ir.tir.blocks import Kernel, axes, block_ref, extents, region_buffer
from tvmflow.schedules.gpu.shared_reduction import share_sums, threads_to_try
from tvmflow.schedules.template import MOST_DEFAULTS, Knobs, Template, divisors, merge_epilogue, unroll_loops
from tvmflow.targets.gpu_features import GpuFeatures

LANES = 4
_PACKED_AXES = 5  # (n, c, h, w, lane)
_ROW_LATER = 1.2
MOST_TILE = 16  # vectors of sums in a thread
_MOST_CANDIDATES = 256
# The fallback if no tile can be scheduled.
_FALLBACK = {"tile": 1, "together": 1, "across": 64, "down": 1, "parts": 0, "row": 0, "shared": 0}
GROUPS = (64, 16, 32, 128, 256)  # threads of a workgroup that every device supports


def bind_flat(schedule: Any, loops: list[Any], lanes: Any, group: int) -> Any:
    """Bind nested loops to workgroups of threads, and vectorize `lanes` if given; return the loop of threads."""
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    total = extents(schedule, [fused])[0]
    threads = max(divisors(total, group))
    outer, inner = schedule.split(fused, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    if lanes is not None:
        schedule.vectorize(lanes)
    return inner


def _split_vector(schedule: Any, loops: list[Any]) -> tuple[list[Any], Any]:
    """Split four lanes off the last loop if they divide it; return the loops and the loop of lanes, or None."""
    if not loops:
        return loops, None
    extent = extents(schedule, loops[-1:])[0]
    if extent % LANES:
        return loops, None
    outer, lanes = schedule.split(loops[-1], [None, LANES])
    return [*loops[:-1], outer], lanes


# -- any kernel --


def _schedule_plain(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    if knobs["shared"]:
        for name in share_sums(schedule, kernel, knobs["shared"]):
            _schedule_elements(schedule, name, {"group": GROUPS[0], "vector": 1})
        return
    names = [*kernel.before, *((kernel.anchor,) if kernel.anchor else ()), *kernel.after]
    kept = [name for name in names if name in kernel.reductions or not _try_inline(schedule, name)]
    for name in kept:
        if name in kernel.reductions:
            _schedule_reduction(schedule, name, knobs)
        else:
            _schedule_elements(schedule, name, knobs)


def _try_inline(schedule: Any, name: str) -> bool:
    """Inline a block; return False if it writes an output."""
    try:
        schedule.compute_inline(block_ref(schedule, name))
    except s_tir.ScheduleError:
        return False
    return True


def _schedule_elements(schedule: Any, name: str, knobs: Knobs) -> None:
    loops = list(schedule.get_loops(block_ref(schedule, name)))
    if not loops:
        loops = [schedule.add_unit_loop(block_ref(schedule, name))]
    loops, lanes = _split_vector(schedule, loops) if knobs["vector"] else (loops, None)
    bind_flat(schedule, loops, lanes, knobs["group"])


def _schedule_reduction(schedule: Any, name: str, knobs: Knobs) -> None:
    """Sum each output in one thread, in a register or, if TVM cannot place it, in the output."""
    found = axes(schedule, name)
    if found is None:
        raise ValueError(f"the loops of {name} do not match its axes")
    block = block_ref(schedule, name)
    loops, spatial = found
    if not knobs["register"]:
        outer = loops[:spatial] if spatial else [schedule.add_unit_loop(loops[0])]
        bind_flat(schedule, outer, None, knobs["group"])
        return
    copy = schedule.cache_write(block, 0, "local")
    outer = list(schedule.get_loops(copy)) if spatial else [schedule.add_unit_loop(copy)]
    thread = bind_flat(schedule, outer, None, knobs["group"])
    schedule.compute_at(block, thread, preserve_unit_loops=True)
    inner = schedule.get_loops(block)
    schedule.decompose_reduction(block, inner[len(inner) - (len(loops) - spatial)])


def _plain_candidates(schedule: Any, kernel: Kernel, gpu: GpuFeatures) -> list[Knobs]:
    variants = ((0, 1), (0, 0)) if kernel.reductions else ((1, 0), (0, 0))
    shared = [
        {"group": one, "vector": 0, "register": 0, "shared": one} for one in threads_to_try(schedule, kernel, gpu)
    ]
    apart = [
        {"group": group, "vector": vector, "register": register, "shared": 0}
        for vector, register in variants
        for group in GROUPS
    ]
    return [*shared, *apart]


GPU_PLAIN = Template("gpu_plain", lambda _schedule, _kernel: True, _plain_candidates, _schedule_plain)


# -- windows: convolutions and pools over packed channels --


def _window_covers(schedule: Any, kernel: Kernel) -> bool:
    if kernel.anchor is None:
        return False
    found = axes(schedule, kernel.anchor)
    if found is None or found[1] != _PACKED_AXES or len(found[0]) == _PACKED_AXES:
        return False
    sizes = extents(schedule, found[0][:_PACKED_AXES])
    if sizes[-1] != LANES or len(schedule.get(block_ref(schedule, kernel.anchor)).reads) not in (1, 2):
        return False
    return not kernel.after or _same_loops(schedule, kernel.after[-1], sizes)


def _same_loops(schedule: Any, name: str, sizes: list[int]) -> bool:
    return extents(schedule, schedule.get_loops(block_ref(schedule, name))) == sizes


def _window_candidates(schedule: Any, kernel: Kernel, gpu: GpuFeatures) -> list[Knobs]:
    assert kernel.anchor is not None
    loops, _ = axes(schedule, kernel.anchor) or ([], 0)
    batch, channels, height, width, _ = extents(schedule, loops[:_PACKED_AXES])
    summed = extents(schedule, loops[_PACKED_AXES:])
    whole = len(summed) > 2
    outputs = height * width * batch * channels
    found: dict[tuple[int, ...], tuple[float, Knobs]] = {}
    for tile in (1, 2, 4, 7, 8, 3, 5, 6, 13, 14):
        for together in (1, 2, 4) if whole else (1,):
            if width % tile or channels % together or tile * together > MOST_TILE:
                continue
            for parts in _part_counts(summed[0]) if whole else (1,):
                pixels, blocks = height * width // tile, batch * channels // together
                for threads, row in itertools.product(GROUPS, (1, 0) if summed[_row_reduction(summed)] > 1 else (0,)):
                    across = max(divisors(pixels, threads))
                    down = max(divisors(blocks, max(threads // across, 1)))
                    knobs = {
                        "tile": tile,
                        "together": together,
                        "across": across,
                        "down": down,
                        "parts": parts,
                        "row": row,
                        "shared": 0,
                    }
                    found[tuple(knobs.values())] = (_cost(knobs, outputs, summed, gpu), knobs)
    ordered = [knobs for _, knobs in sorted(found.values(), key=lambda one: one[0])][:_MOST_CANDIDATES]
    shared = [{**_FALLBACK, "across": one, "shared": one} for one in threads_to_try(schedule, kernel, gpu)]
    first = shared if height * width == 1 else []  # otherwise pixels share weights
    most = MOST_DEFAULTS - 1 - len(first)
    return [*first, *ordered[:most], _FALLBACK, *(shared if not first else []), *ordered[most:]]


def _row_reduction(sums: list[Any]) -> int:
    """Return the index of the reduction along a row of the window: the third (behind the channels), or the last."""
    return min(2, len(sums) - 1)


def _part_counts(extent: int) -> tuple[int, ...]:
    """Return the numbers of parts into which a reduction over channels may be split."""
    return tuple(part for part in (1, 2, 4, 8, 16) if extent % part == 0 and extent > part)


def _cost(knobs: Knobs, outputs: int, summed: list[int], gpu: GpuFeatures) -> float:
    """Return the estimated time of a schedule in vector loads.

    Few threads leave a GPU idle, small tiles repeat loads.
    """
    tile, together, parts, columns = knobs["tile"], knobs["together"], knobs["parts"], summed[_row_reduction(summed)]
    held = tile + columns - 1 if knobs["row"] else tile  # input vectors
    group = knobs["across"] * knobs["down"]
    threads = outputs * parts / (tile * together)
    loads = (
        held / (columns if knobs["row"] else 1) + LANES * together + tile * together * LANES / 2
    )  # and multiplications, two of which take as long as a load
    rounds = max(1.0, threads / gpu.threads)
    waste = gpu.warp * math.ceil(group / gpu.warp) / group
    spilled = max(1.0, (tile * together + held + LANES * together) * LANES / gpu.registers)
    added = outputs * (parts + 1) / gpu.threads + 64 if parts > 1 else 0.0  # a second launch and its loads
    fits = 1.0 + 0.02 * abs(math.log2(group / gpu.group))
    if knobs["row"] and not gpu.rows:
        fits *= _ROW_LATER
    return rounds * waste * spilled * fits * loads * math.prod(summed) / LANES / parts + added


def _schedule_window(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    assert kernel.anchor is not None
    if not knobs["parts"]:
        _schedule_plain(
            schedule, kernel, {"group": knobs["across"], "vector": 0, "register": 0, "shared": knobs["shared"]}
        )
        return
    for name in kernel.before[:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    anchor = block_ref(schedule, kernel.anchor)
    data = block_ref(schedule, kernel.before[-1]) if kernel.before else None
    last = merge_epilogue(schedule, kernel)
    if knobs["parts"] > 1:
        anchor = _split_reduction(schedule, anchor, last, knobs)
        last = None
    if last is None:
        outer = schedule.cache_write(anchor, 0, "local")
    else:
        outer = block_ref(schedule, last)
        schedule.set_scope(anchor, 0, "local")
    thread = bind_tile(schedule, outer, knobs)
    schedule.compute_at(anchor, thread, preserve_unit_loops=True)
    _schedule_sums(schedule, anchor, data, is_row=bool(knobs["row"]))


def _split_reduction(schedule: Any, anchor: Any, last: str | None, knobs: Knobs) -> Any:
    """Split a reduction over channels; a second launch adds the parts. Return the block that sums one part."""
    channels = schedule.get_loops(anchor)[_PACKED_AXES]
    part, _ = schedule.split(channels, [knobs["parts"], None])
    partial = schedule.rfactor(part, 0)
    if last is None:
        total = schedule.cache_write(anchor, 0, "local")
    else:
        schedule.set_scope(anchor, 0, "local")
        total = block_ref(schedule, last)
    batch, channel, row, column, lanes = schedule.get_loops(total)
    schedule.bind(schedule.fuse(batch, channel), "blockIdx.y")
    thread = bind_flat(schedule, [row, column], lanes, 64)
    schedule.compute_at(anchor, thread, preserve_unit_loops=True)
    sums, spatial = reorder_reduction_first(schedule, anchor)
    schedule.vectorize(spatial[-1])
    schedule.decompose_reduction(anchor, sums[0])
    return partial


def reorder_reduction_first(schedule: Any, block: Any) -> tuple[list[Any], list[Any]]:
    """Reorder a thread's loops: first over the reduction, then over its outputs. Return both."""
    inner = list(schedule.get_loops(block))[-len(schedule.get(block).iter_vars) :]
    realize = schedule.get(inner[-1]).body
    sums: list[Any] = []
    spatial: list[Any] = []
    for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        used = [loop for loop in inner if _uses(value, schedule.get(loop).loop_var)]
        if len(used) != 1:
            raise ValueError(f"an axis does not match a single loop: {value}")
        (spatial if int(variable.iter_type) == 0 else sums).append(used[0])
    schedule.reorder(*sums, *spatial)
    return sums, spatial


def _uses(value: Any, variable: Any) -> bool:
    found: list[Any] = []
    structural_walk(value, ((ir.Var, lambda one: found.append(one)),))
    return any(one.same_as(variable) for one in found)


def _schedule_sums(schedule: Any, anchor: Any, data: Any, *, is_row: bool) -> None:
    """Schedule a thread's sums in registers. is_row: a row of the window is loaded once."""
    sums, spatial = reorder_reduction_first(schedule, anchor)
    column = _row_reduction(sums)
    read_into_registers(schedule, data, anchor, sums[column - 1 if is_row else column], sums[column])
    # the channels of a vector, and the tile
    unroll_loops(schedule, *sums[column if is_row else 3 :], *spatial[:-1])
    schedule.vectorize(spatial[-1])
    schedule.decompose_reduction(anchor, sums[0])


def bind_tile(schedule: Any, block: Any, knobs: Knobs) -> Any:
    """Give each thread a tile of pixels of a row and of channels; return the loop of threads."""
    *parts, batch, channel, row, column, lanes = schedule.get_loops(block)
    columns, pixel = schedule.split(column, [None, knobs["tile"]])
    channels, together = schedule.split(channel, [None, knobs["together"]])
    schedule.reorder(*parts, batch, channels, row, columns, together, pixel, lanes)
    blocks = schedule.fuse(batch, channels)
    tiles = schedule.fuse(row, columns)
    block_y, thread_y = schedule.split(blocks, [None, knobs["down"]])
    block_x, thread_x = schedule.split(tiles, [None, knobs["across"]])
    schedule.reorder(*parts, block_y, block_x, thread_y, thread_x, together, pixel, lanes)
    if parts:
        schedule.bind(parts[0], "blockIdx.z")
    schedule.bind(block_y, "blockIdx.y")
    schedule.bind(block_x, "blockIdx.x")
    schedule.bind(thread_y, "threadIdx.y")
    schedule.bind(thread_x, "threadIdx.x")
    unroll_loops(schedule, together, pixel)
    schedule.vectorize(lanes)
    return thread_x


def read_into_registers(schedule: Any, data: Any, anchor: Any, data_at: Any, weights_at: Any) -> None:
    """Load the operands of a reduction step once for all outputs of a thread, in vectors.

    data: a block that pads, or None.
    """
    if data is None:
        data = schedule.cache_read(anchor, 0, "local")
    else:
        schedule.set_scope(data, 0, "local")
    blocks = [(data, data_at)]
    if len(schedule.get(anchor).reads) > 1:
        blocks.append((schedule.cache_read(anchor, 1, "local"), weights_at))
    for block, loop in blocks:
        schedule.compute_at(block, loop, preserve_unit_loops=True)
        inner = list(schedule.get_loops(block))[-len(schedule.get(block).iter_vars) :]
        unroll_loops(schedule, *inner[:-1])
        if extents(schedule, inner[-1:])[0] == LANES and not _is_word_image(schedule, block):
            schedule.vectorize(inner[-1])
        else:
            schedule.unroll(inner[-1])


def _is_word_image(schedule: Any, block: Any) -> bool:
    """Whether a block writes pixels of four int8 in a word, (n, c, h, w) of int32."""
    buffer = region_buffer(schedule.get(block).writes[0])
    return len(buffer.shape) < _PACKED_AXES and str(buffer.dtype) == "int32"


GPU_WINDOW = Template("gpu_window", _window_covers, _window_candidates, _schedule_window)
