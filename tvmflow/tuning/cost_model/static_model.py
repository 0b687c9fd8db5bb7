"""How long a schedule takes, estimated from its machine code and from what it reads: a rank of schedules without a
device.

Cycles are the larger of what the core's ports need for the loops that multiply and add and of what its caches need to
bring, and of the smaller a part, since not everything overlaps; copies of padding and the outputs come on top. Kernels
of the template `packed_conv` only: others have few candidates, and the template's order serves them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmflow.ir.tir.blocks import look_at, new_schedule
from tvmflow.ir.tir.workloads import anchor_extents
from tvmflow.ir.tvm_compat import buffer_of
from tvmflow.schedules.cpu.convolution import WINDOW
from tvmflow.schedules.registry import Knobs
from tvmflow.targets.core_timing import Core
from tvmflow.tuning.cost_model.assembly import Loop, hot_loops

_ENTRY, _TILE = 2.0, 20.0  # cycles that entering a loop costs, and a tile of outputs beside its loads and stores
_SPILL = 2.0  # cycles for each register that a loop writes to the stack and reads again
_OVERLAP = 0.3  # of the shorter of computing and bringing
_L1_USED = 0.8  # of it, before what is needed again is gone
_SCALAR_COPY = 14.0  # cycles for each value that a copy takes one by one
_LAUNCH_S = 1.5e-6  # to wake the other threads


@dataclass(frozen=True)
class _Window:
    """A convolution or pool on packed channels. taken: input channels of one output; image: height and width of its
    input.
    """

    batch: int
    channels: int
    height: int
    width: int
    lanes: int
    kernel: tuple[int, int]
    taken: int
    by_channel: bool
    image: tuple[int, int]
    size: int
    padded: bool

    @property
    def stride(self) -> int:
        return max(1, round(self.image[0] / self.height))

    def rows(self, outputs: int) -> int:
        """Return how many rows of the image as many rows of outputs need."""
        return outputs * self.stride + self.kernel[0] - self.stride


def estimate_s(function: Any, template: str, knobs: Knobs, assembly: str, core: Core, threads: int) -> float | None:
    """Return the estimated seconds of a kernel under knobs. assembly: of the scheduled kernel; None for what the model
    does not know.
    """
    window = _window(function) if template == WINDOW.name and not knobs.get("tiles") else None
    loops = hot_loops(assembly)
    if window is None or not loops:
        return None
    products = math.prod(anchor_extents(function))
    busy, bring = _computing(window, knobs, loops, products, core), _bringing(window, knobs, core)
    cycles = max(busy, bring) + _OVERLAP * min(busy, bring) + _copying(window, knobs, core)
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


def _window(function: Any) -> _Window | None:
    extents = anchor_extents(function)
    image = buffer_of(function, function.params[0])
    if image is None or len(extents) not in (7, 8, 9, 10) or len(image.shape) != 5:
        return None
    batch, channels, height, width, lanes, *reduced = extents
    by_channel = len(reduced) == 2
    kernel = (reduced[0], reduced[1]) if by_channel else (reduced[1], reduced[2])
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
        by_channel,
        (sizes[2], sizes[3]),
        size,
        bool(look_at(schedule).before),
    )


def _loop_cycles(loop: Loop, core: Core) -> float:
    """Return the cycles of a turn, by the busiest of what it needs."""
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


def _computing(window: _Window, knobs: Knobs, loops: list[Loop], products: int, core: Core) -> float:
    most = loops[0].counts["multiply_add"]
    hot = [loop for loop in loops if loop.counts["multiply_add"] >= most / 4]  # the same at other borders
    count = sum(loop.counts["multiply_add"] for loop in hot)
    instructions = products / hot[0].products
    cycles = instructions * sum(_loop_cycles(loop, core) for loop in hot) / count
    entries = instructions / (count / len(hot) * (hot[0].trips or 8))
    tile = knobs["c_tile"] * knobs["h_tile"] * knobs["w_tile"]
    tiles = window.batch * window.channels * window.height * window.width / tile
    return cycles + _ENTRY * entries + tiles * (1.5 * tile * max(1.0, window.lanes * window.size / core.width) + _TILE)


def _bringing(window: _Window, knobs: Knobs, core: Core) -> float:
    """Return the cycles to bring weights and image into L1, by which of them stays there."""
    c, h, w, chunk = knobs["c_tile"], knobs["h_tile"], knobs["w_tile"], knobs["chunk"]
    own = window.lanes * c if window.by_channel else window.taken  # channels of the image that a tile needs
    blocks, chunks = window.channels // c, window.batch * window.height // chunk
    tiles = window.batch * window.channels * window.height * window.width / (c * h * w)
    taps = window.kernel[0] * window.kernel[1]
    weights = c * window.lanes * window.taken * taps * window.size
    row = own * window.image[1] * window.size
    piece = own * window.rows(h) * (w * window.stride + window.kernel[1] - window.stride) * window.size
    used = _L1_USED * core.l1
    bytes_of_weights = weights * blocks * chunks if weights + piece <= used else weights * tiles
    image = row * window.rows(chunk)
    again = blocks if window.by_channel or image + weights > used else 1
    bytes_of_image = float(image * chunks * again)
    if not window.by_channel and row * window.rows(h) > used:  # rows between tiles are read again
        bytes_of_image *= max(1.0, window.rows(h) / (h * window.stride))
    cycles = (bytes_of_weights + bytes_of_image) / core.l2_bytes
    if weights * blocks > core.l2 / 2:
        cycles += weights * blocks * (chunks if knobs["rows_first"] else 1) / core.far_bytes
    whole = (
        (window.channels * window.lanes if window.by_channel else window.taken) * math.prod(window.image) * window.size
    )
    return cycles + (whole / core.far_bytes if whole > core.l2 / 2 else 0.0)


def _copying(window: _Window, knobs: Knobs, core: Core) -> float:
    """Return the cycles to copy the image with its padding."""
    if not window.padded:
        return 0.0
    every = window.channels * window.lanes if window.by_channel else window.taken
    row = window.image[1] * window.size
    if not knobs["pad_inside"]:
        values = every * math.prod(window.image)
        if window.taken < 8 and not window.by_channel:
            return _SCALAR_COPY * values
        held = copied = values * window.size
    else:
        chunks = window.batch * window.height // knobs["chunk"]
        times = 1 if knobs["rows_first"] or window.by_channel else window.channels // knobs["c_tile"]
        copied = chunks * window.rows(knobs["chunk"]) * row * every * times
        held = window.rows(knobs["chunk"]) * row * (window.lanes if window.by_channel else window.taken)
    if held <= _L1_USED * core.l1:
        return copied / (0.75 * core.width)
    return copied / (core.l2_bytes / 2 if held < 0.6 * core.l2 else core.far_bytes / 2)
