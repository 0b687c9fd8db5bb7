"""Estimate the time of a schedule from its assembly and memory traffic, without a device.

Cycles are the maximum of compute (port pressure of the hot loops) and memory (bringing data into L1), plus a share of
the smaller one, since they do not overlap fully. Padding copies and the stores of the outputs are added. Only the
template `packed_conv` is modelled; other templates have few candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvmflow.ir.tir.blocks import classify_blocks, new_schedule
from tvmflow.ir.tir.workloads import anchor_extents
from tvmflow.ir.tvm_compat import PrimFunc, buffer_of
from tvmflow.schedules.cpu.convolution import WINDOW
from tvmflow.schedules.registry import Knobs
from tvmflow.targets.core_timing import Core
from tvmflow.tuning.cost_model.assembly import Loop, find_hot_loops

_ENTRY, _TILE = 2.0, 20.0  # cycles to enter a loop, and overhead of an output tile beside its loads and stores
_SPILL = 2.0  # cycles per register that a loop spills and reloads
_OVERLAP = 0.3  # share of the smaller of compute and memory that is not hidden
_L1_USED = 0.8  # share of L1 that keeps its data until it is reused
_SCALAR_COPY = 14.0  # cycles per value of a copy that is not vectorized
_LAUNCH_S = 1.5e-6  # to wake the other threads


@dataclass(frozen=True)
class _Window:
    """A convolution or pooling in NCHWc. reduction: input channels per output; depthwise: each output channel reads
    only its own input channel; image: input height and width; size: bytes of an element.
    """

    batch: int
    channels: int
    height: int
    width: int
    lanes: int
    kernel: tuple[int, int]
    reduction: int
    depthwise: bool
    image: tuple[int, int]
    size: int
    padded: bool

    @property
    def stride(self) -> int:
        return max(1, round(self.image[0] / self.height))

    def rows(self, outputs: int) -> int:
        """Return the input rows that this many output rows read."""
        return outputs * self.stride + self.kernel[0] - self.stride


def estimate_s(
    function: PrimFunc, template: str, knobs: Knobs, assembly: str, core: Core, threads: int
) -> float | None:
    """Return the estimated seconds of a scheduled kernel, None for kernels that the model does not cover.

    assembly: of the scheduled kernel.
    """
    window = _window(function) if template == WINDOW.name and not knobs.get("tiles") else None
    loops = find_hot_loops(assembly)
    if window is None or not loops:
        return None
    macs = math.prod(anchor_extents(function))
    compute, memory = _compute_cycles(window, knobs, loops, macs, core), _memory_cycles(window, knobs, core)
    cycles = max(compute, memory) + _OVERLAP * min(compute, memory) + _padding_cycles(window, knobs, core)
    cycles += (
        window.batch
        * window.channels
        * window.height
        * window.width
        * window.lanes
        * window.size
        / (core.stores * core.width / 2)
    )
    seconds = cycles / core.ghz / 1e9
    if not knobs["parallel"] or threads == 1:
        return seconds
    tasks = window.batch * window.height // knobs["chunk"]
    if not knobs["rows_first"]:
        tasks *= window.channels // knobs["c_tile"]
    return seconds * math.ceil(tasks / threads) / tasks + _LAUNCH_S


def _window(function: PrimFunc) -> _Window | None:
    extents = anchor_extents(function)
    image = buffer_of(function, function.params[0])
    if image is None or len(extents) not in (7, 8, 9, 10) or len(image.shape) != 5:
        return None
    batch, channels, height, width, lanes, *reduced = extents
    depthwise = len(reduced) == 2
    kernel = (reduced[0], reduced[1]) if depthwise else (reduced[1], reduced[2])
    sizes = [int(size) for size in image.shape]
    schedule = new_schedule(function)
    size = {"8": 1, "16": 2}.get(str(image.dtype).lstrip("abcdefghijklmnopqrstuvwxyz"), 4)
    if str(image.dtype) == "bfloat16":
        size = 2
    return _Window(
        batch,
        channels,
        height,
        width,
        lanes,
        kernel,
        math.prod(reduced) // (kernel[0] * kernel[1]),
        depthwise,
        (sizes[2], sizes[3]),
        size,
        bool(classify_blocks(schedule).before),
    )


def _loop_cycles(loop: Loop, core: Core) -> float:
    """Return the cycles of one iteration, limited by its most contended resource."""
    wide = max(1.0, loop.width / core.width)
    counts = loop.counts
    ports = max(
        sum(counts[kind] for kind in ("multiply_add", "load", "store", "vector", "other")) / core.issue,
        counts["multiply_add"] * wide / core.multiply_adds,
        counts["load"] * wide / core.loads,
        counts["store"] * wide / core.stores,
        loop.chain * core.latency,
    )
    return ports + _SPILL * counts["spill"]


def _compute_cycles(window: _Window, knobs: Knobs, loops: list[Loop], macs: int, core: Core) -> float:
    most = loops[0].counts["multiply_add"]
    hot = [
        loop for loop in loops if loop.counts["multiply_add"] >= most / 4
    ]  # variants of the same loop for the borders of the image
    count = sum(loop.counts["multiply_add"] for loop in hot)
    instructions = macs / hot[0].macs
    cycles = instructions * sum(_loop_cycles(loop, core) for loop in hot) / count
    entries = instructions / (count / len(hot) * (hot[0].trips or 8))
    tile = knobs["c_tile"] * knobs["h_tile"] * knobs["w_tile"]
    tiles = window.batch * window.channels * window.height * window.width / tile
    return cycles + _ENTRY * entries + tiles * (1.5 * tile * max(1.0, window.lanes * window.size / core.width) + _TILE)


def _memory_cycles(window: _Window, knobs: Knobs, core: Core) -> float:
    """Return the cycles to bring weights and image into L1, depending on which of them stays there."""
    c, h, w, chunk = knobs["c_tile"], knobs["h_tile"], knobs["w_tile"], knobs["chunk"]
    input_channels = window.lanes * c if window.depthwise else window.reduction  # input channels that a tile reads
    blocks, chunks = window.channels // c, window.batch * window.height // chunk
    tiles = window.batch * window.channels * window.height * window.width / (c * h * w)
    taps = window.kernel[0] * window.kernel[1]
    weights = c * window.lanes * window.reduction * taps * window.size
    row = input_channels * window.image[1] * window.size
    patch = input_channels * window.rows(h) * (w * window.stride + window.kernel[1] - window.stride) * window.size
    used = _L1_USED * core.l1
    weight_bytes = weights * blocks * chunks if weights + patch <= used else weights * tiles
    image = row * window.rows(chunk)
    reads = blocks if window.depthwise or image + weights > used else 1
    image_bytes = float(image * chunks * reads)
    if not window.depthwise and row * window.rows(h) > used:  # rows shared by two tiles are read twice
        image_bytes *= max(1.0, window.rows(h) / (h * window.stride))
    cycles = (weight_bytes + image_bytes) / core.l2_bytes
    if weights * blocks > core.l2 / 2:
        cycles += weights * blocks * (chunks if knobs["rows_first"] else 1) / core.far_bytes
    whole = (
        (window.channels * window.lanes if window.depthwise else window.reduction)
        * math.prod(window.image)
        * window.size
    )
    return cycles + (whole / core.far_bytes if whole > core.l2 / 2 else 0.0)


def _padding_cycles(window: _Window, knobs: Knobs, core: Core) -> float:
    """Return the cycles to copy the image with its padding."""
    if not window.padded:
        return 0.0
    channels = window.channels * window.lanes if window.depthwise else window.reduction
    row = window.image[1] * window.size
    if not knobs["pad_inside"]:
        values = channels * math.prod(window.image)
        if window.reduction < 8 and not window.depthwise:
            return _SCALAR_COPY * values
        working_set = copied = values * window.size
    else:
        chunks = window.batch * window.height // knobs["chunk"]
        times = 1 if knobs["rows_first"] or window.depthwise else window.channels // knobs["c_tile"]
        copied = chunks * window.rows(knobs["chunk"]) * row * channels * times
        working_set = window.rows(knobs["chunk"]) * row * (window.lanes if window.depthwise else window.reduction)
    if working_set <= _L1_USED * core.l1:
        return copied / (0.75 * core.width)
    return copied / (core.l2_bytes / 2 if working_set < 0.6 * core.l2 else core.far_bytes / 2)
