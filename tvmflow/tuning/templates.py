"""Schedule templates: how a kernel is tiled, vectorized and spread over threads, with few knobs each.

Three templates, tried in this order: a convolution on packed channels (NCHWc), any other single reduction, and kernels
without one. Each states its knobs; the first candidate is the default that serves where nothing was tuned, so that no
kernel runs scalar by accident. All are made of schedule primitives that keep the meaning of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmflow.tuning.blocks import Kernel, block_ref, extents, look_at, new_schedule, region_buffer

Knobs = dict[str, int]
VECTOR_LANES = 16
MAX_ACCUMULATORS = 28  # of 32 vector registers; the rest hold weights and the broadcast input
COMFORTABLE_ACCUMULATORS = 16  # with more, LLVM keeps some of them in memory now and then
NEAR_CACHE_BYTES = 512 * 1024  # what stays in a core's own cache beside the activations
SMALL_WORK = 20_000  # element operations below which waking a second thread costs more than it saves


@dataclass(frozen=True)
class Template:
    """covers: may this kernel be scheduled so; candidates: knobs, the default first; apply: schedule in place."""

    name: str
    covers: Callable[[Any, Kernel], bool]
    candidates: Callable[[Any, Kernel], list[Knobs]]
    apply: Callable[[Any, Kernel, Knobs], None]


def _divisors(number: int, limit: int) -> list[int]:
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def _parallel_first(work: int) -> tuple[int, ...]:
    """Return the values of the knob `parallel` that are worth trying, the likelier first."""
    if work > 100 * SMALL_WORK:
        return (1,)
    if work < SMALL_WORK // 10:
        return (0,)
    return (1, 0) if work > SMALL_WORK else (0, 1)


def _work(schedule: Any, name: str) -> int:
    total = 1
    for extent in extents(schedule, schedule.get_loops(block_ref(schedule, name))):
        total *= extent
    return total


def _merge_epilogue(schedule: Any, kernel: Kernel) -> str | None:
    """Inline all element-wise blocks after the anchor into the last one and return its name."""
    for name in kernel.after[:-1]:
        schedule.compute_inline(block_ref(schedule, name))
    return kernel.after[-1] if kernel.after else None


def _spread(schedule: Any, name: str, parallel: int) -> None:
    """Schedule an element-wise block: outer loops over threads, inner loop vectorized."""
    loops = schedule.get_loops(block_ref(schedule, name))
    sizes = extents(schedule, loops)
    fused = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    total = 1
    for size in sizes:
        total *= size
    lanes = max(_divisors(total, VECTOR_LANES))
    outer, inner = schedule.split(fused, [None, lanes])
    if parallel:
        chunks = max(_divisors(total // lanes, 64))
        outer, rest = schedule.split(outer, [chunks, None])
        schedule.parallel(outer)
        del rest
    if lanes > 1:
        schedule.vectorize(inner)


# -- convolution and pooling on packed channels -----------------------------------------------------------------------


def _window(schedule: Any, kernel: Kernel) -> tuple[list[int], int] | None:
    """Return loop extents and number of reduced axes of a convolution or pool on packed channels.

    Loops are (n, c, h, w, lane) over 4 axes (convolution), 3 (first layer) or 2 (depthwise, pools).
    """
    if kernel.anchor is None or len(kernel.before) > 1:
        return None
    block = schedule.get(block_ref(schedule, kernel.anchor))
    kinds = [int(variable.iter_type) for variable in block.iter_vars]
    reduced = len(kinds) - 5
    if kinds[:5] != [0] * 5 or kinds[5:] != [2] * reduced or reduced not in (2, 3, 4):
        return None
    if len(block.reads) > 2 or (len(block.reads) == 1 and reduced > 2):
        return None
    sizes = extents(schedule, schedule.get_loops(block_ref(schedule, kernel.anchor)))
    return (sizes, reduced) if sizes[4] in (4, 8, 16) else None


def _window_candidates(schedule: Any, kernel: Kernel) -> list[Knobs]:
    found = _window(schedule, kernel)
    assert found is not None and kernel.anchor is not None
    (_, channels, height, width, *_rest), reduced = found
    by_channel = reduced == 2
    points = [
        (c, h, w)
        for c in ([1] if by_channel else _divisors(channels, 8))
        for h in _divisors(height, 4)
        for w in _divisors(width, 28)
        if c * h * w <= MAX_ACCUMULATORS
    ]

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Loads per multiplication; too few accumulators do not hide its latency, too many leave none for operands."""
        c, h, w = point
        held = c * h * w
        loads = (1 / (h * w) + (1.0 if by_channel else 0.5 / c)) * (2.0 if held > COMFORTABLE_ACCUMULATORS else 1.0)
        return (loads / (min(held, 12) / 12), h, -w)

    points.sort(key=cost)
    order = _parallel_first(_work(schedule, kernel.anchor))
    chunks = _chunks(height)
    if not kernel.before:
        places = [(0, 0, chunk) for chunk in chunks[:1]] + [(1, 0, chunk) for chunk in chunks[:2]]
    elif by_channel:
        places = [(0, 1, chunk) for chunk in chunks] + [(0, 0, chunks[0])]
    else:
        places = [*((1, 1, chunk) for chunk in chunks), (0, 0, chunks[0]), (1, 0, chunks[0])]
        if _weight_bytes(schedule, kernel) > NEAR_CACHE_BYTES:  # weights are read once, and every row for each of them
            places.insert(0, (0, 0, chunks[0]))
            places = list(dict.fromkeys(places))
    knobs = [
        {"c_tile": c, "h_tile": h, "w_tile": w, "rows_first": rows, "pad_inside": inside, "chunk": max(chunk, h),
         "unroll": unroll, "parallel": parallel}
        for unroll in (0, 1)
        for rows, inside, chunk in places
        for c, h, w in points[:12]
        for parallel in order
        if max(chunk, h) % h == 0 and height % max(chunk, h) == 0
    ]  # fmt: skip
    return [k for at, k in enumerate(knobs) if k not in knobs[:at]]


def _weight_bytes(schedule: Any, kernel: Kernel) -> int:
    """Return the size of a convolution's weights, counted as float32."""
    assert kernel.anchor is not None
    region = schedule.get(block_ref(schedule, kernel.anchor)).reads[1]
    total = 4
    for extent in region_buffer(region).shape:
        total *= int(extent)
    return total


def _chunks(height: int) -> list[int]:
    """Return how many rows one thread may take at a time, the likelier first."""
    wanted = (height // 4, height // 2, 1, height // 8)
    return list(dict.fromkeys(max(_divisors(height, max(rows, 1))) for rows in wanted))


def _apply_window(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    """Keep a tile of outputs in registers over the whole reduction; write it once, epilogue included."""
    assert kernel.anchor is not None
    last = _merge_epilogue(schedule, kernel)
    anchor = block_ref(schedule, kernel.anchor)
    reduced = len(schedule.get_loops(anchor)) - 5
    out = schedule.cache_write(anchor, 0, "local") if last is None else block_ref(schedule, last)
    loops = schedule.get_loops(out)
    while len(loops) > 5:  # unit loops that a reshape left
        loops = [schedule.fuse(loops[0], loops[1]), *loops[2:]]
    batch, c, h, w, lane = loops
    c_outer, c_tile = schedule.split(c, [None, knobs["c_tile"]])
    h_chunk, h_outer, h_tile = schedule.split(h, [None, knobs["chunk"] // knobs["h_tile"], knobs["h_tile"]])
    w_outer, w_tile = schedule.split(w, [None, knobs["w_tile"]])
    if knobs["rows_first"]:
        schedule.reorder(batch, h_chunk, c_outer, h_outer, w_outer, c_tile, h_tile, w_tile, lane)
        rows = schedule.fuse(batch, h_chunk)
    else:
        schedule.reorder(batch, c_outer, h_chunk, h_outer, w_outer, c_tile, h_tile, w_tile, lane)
        rows = schedule.fuse(batch, c_outer, h_chunk)
    if knobs["parallel"]:
        schedule.parallel(rows)
    schedule.vectorize(lane)
    schedule.compute_at(anchor, w_outer, preserve_unit_loops=True)
    if last is not None:
        schedule.set_scope(anchor, 0, "local")
    for name in kernel.before:
        if knobs["pad_inside"]:
            padding = block_ref(schedule, name)
            schedule.compute_at(padding, rows, preserve_unit_loops=True)
            axes = schedule.get_loops(padding)[1:]
            if extents(schedule, axes[-1:])[0] <= 4 * VECTOR_LANES:
                schedule.vectorize(axes[-1])
        else:
            _spread(schedule, name, knobs["parallel"])
    for tile in schedule.get_loops(out)[-4:-1]:
        schedule.unroll(tile)
    inner = schedule.get_loops(anchor)[-5 - reduced :]
    n, c_inner, h_inner, w_inner, c_lane = inner[:5]
    steps = inner[5:]
    schedule.reorder(*steps, n, c_inner, h_inner, w_inner, c_lane)
    for tile in (c_inner, h_inner, w_inner):
        schedule.unroll(tile)
    schedule.vectorize(c_lane)
    if knobs["unroll"]:
        for step in steps[-1:] if reduced == 4 else steps[-2:]:
            schedule.unroll(step)
    schedule.decompose_reduction(anchor, steps[0])


# -- any other single reduction ---------------------------------------------------------------------------------------


def _covers_reduction(schedule: Any, kernel: Kernel) -> bool:
    if kernel.anchor is None:
        return False
    kinds = [int(v.iter_type) for v in schedule.get(block_ref(schedule, kernel.anchor)).iter_vars]
    loops = schedule.get_loops(block_ref(schedule, kernel.anchor))
    return len(kinds) == len(loops) and kinds == sorted(kinds) and kinds[0] == 0


def _reduction_shape(schedule: Any, kernel: Kernel) -> tuple[list[int], int]:
    assert kernel.anchor is not None
    reference = block_ref(schedule, kernel.anchor)
    kinds = [int(v.iter_type) for v in schedule.get(reference).iter_vars]
    return extents(schedule, schedule.get_loops(reference)), kinds.count(0)


def _reduction_candidates(schedule: Any, kernel: Kernel) -> list[Knobs]:
    sizes, spatial = _reduction_shape(schedule, kernel)
    assert kernel.anchor is not None
    order = _parallel_first(_work(schedule, kernel.anchor))
    lanes = sorted(_divisors(sizes[spatial - 1], 2 * VECTOR_LANES), key=lambda d: (abs(d - VECTOR_LANES), d))[:3]
    return [{"lanes": lane, "parallel": parallel, "unroll": unroll}
            for unroll in (0, 1) for lane in lanes for parallel in order]  # fmt: skip


def _apply_reduction(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    assert kernel.anchor is not None
    for name in kernel.before:
        _spread(schedule, name, knobs["parallel"])
    last = _merge_epilogue(schedule, kernel)
    if last is not None:
        _spread(schedule, last, knobs["parallel"])
    anchor = block_ref(schedule, kernel.anchor)
    _, spatial = _reduction_shape(schedule, kernel)
    loops = schedule.get_loops(anchor)
    outer = loops[: spatial - 1]
    tile, lane = schedule.split(loops[spatial - 1], [None, knobs["lanes"]])
    reduced = loops[spatial:]
    schedule.reorder(*outer, tile, *reduced, lane)
    rows = schedule.fuse(*outer, tile) if outer else tile
    if knobs["parallel"]:
        schedule.parallel(rows)
    if knobs["lanes"] > 1:
        schedule.vectorize(lane)
    if knobs["unroll"] and extents(schedule, [reduced[-1]])[0] <= 16:
        schedule.unroll(reduced[-1])
    schedule.decompose_reduction(anchor, reduced[0])


# -- no reduction, or several -----------------------------------------------------------------------------------------


def _elementwise_candidates(schedule: Any, kernel: Kernel) -> list[Knobs]:
    work = max((_work(schedule, name) for name in kernel.after), default=0)
    return [{"parallel": parallel} for parallel in _parallel_first(work)]


def _apply_elementwise(schedule: Any, kernel: Kernel, knobs: Knobs) -> None:
    for name in kernel.after:
        if name not in kernel.reductions:
            _spread(schedule, name, knobs["parallel"])


TEMPLATES = (
    Template(
        "packed_conv", lambda schedule, kernel: _window(schedule, kernel) is not None, _window_candidates, _apply_window
    ),
    Template("reduction", _covers_reduction, _reduction_candidates, _apply_reduction),
    Template("elementwise", lambda _schedule, _kernel: True, _elementwise_candidates, _apply_elementwise),
)


def template_for(function: Any) -> tuple[Template, list[Knobs]] | None:
    """Return the first template that covers a kernel, with its candidates; None where none does (dynamic shapes)."""
    try:
        schedule = new_schedule(function)
        kernel = look_at(schedule)
        for template in TEMPLATES:
            if template.covers(schedule, kernel):
                return template, template.candidates(schedule, kernel)
    except (ValueError, RuntimeError, TypeError):
        return None
    return None


def scheduled(function: Any, template: Template, knobs: Knobs) -> Any:
    """Return the schedule of a kernel under a template. Raises s_tir.ScheduleError where the knobs are illegal."""
    schedule = new_schedule(function)
    template.apply(schedule, look_at(schedule), knobs)
    return schedule
