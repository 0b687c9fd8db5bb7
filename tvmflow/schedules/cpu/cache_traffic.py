"""Choose the order of a convolution's outer loops by the bytes that it fetches from beyond its core's caches.

Chunks of rows come first, with all blocks of channels for each, or blocks of channels, with all rows for each. The
first fetches the weights again for each chunk that leaves no room for them, the second the image for each block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmflow.ir.tir.blocks import Kernel, block_ref, buffer_bytes, region_buffer
from tvmflow.schedules.intrinsics.arm_tile import TILES
from tvmflow.schedules.intrinsics.intrinsic import instruction_of
from tvmflow.schedules.template import anchor_of, divisors, operands_of, stored_weight_bytes, stride_and_dilation
from tvmflow.targets.cpu_features import CpuFeatures

_FILLED = 0.85  # share of a cache that is used again before it is replaced: sets fill unevenly
_FROM_L2 = 4  # what a byte from beyond L2 costs, in bytes from beyond L1
_OF_KIND = 3  # places that are tried of those alike but for chunks and groups

# Whether rows come first, whether each piece pads its rows, rows of a chunk, tiles of channels in a group: each row of
# tiles is multiplied by all of a group before the next.
Place = tuple[int, int, int, int]


@dataclass(frozen=True)
class Streams:
    """What a convolution reads and writes.

    height: rows of outputs; row: bytes of a row of its padded image; step, window: rows of the image from one row of
    outputs to the next, and of one; pixels: bytes of the image that a row of tiles reads; weights, outputs: bytes;
    passes: tiles of channels that are computed one after the other, each from `share` of the image's channels;
    is_copied: whether the image is copied with its padding, is_by_channel: for one block of channels at a time where
    pieces pad their rows; has_groups: whether channels can be grouped.
    """

    height: int
    row: float
    step: int
    window: int
    pixels: float
    weights: int
    outputs: float
    passes: int
    share: float
    is_copied: bool
    is_by_channel: bool
    has_groups: bool

    def cost(self, place: Place, cpu: CpuFeatures) -> float:
        """Return the bytes from beyond the caches, and those of copies, which take instructions."""
        near, far = (self._beyond(place, _FILLED * size) for size in (cpu.l1_bytes, cpu.l2_bytes // 2))
        size, times = self._copies(place)
        return near + _FROM_L2 * far + size * times

    def groups(self, cpu: CpuFeatures) -> tuple[int, ...]:
        """Return the sizes of groups worth trying: none, and as many as have their weights in L1."""
        left = _FILLED * cpu.l1_bytes - self.pixels
        most = max(divisors(self.passes, max(int(left * self.passes / max(self.weights, 1)), 1)))
        return (1, most) if most > 1 and self.has_groups else (1,)

    def _beyond(self, place: Place, cache: float) -> float:
        """Return the bytes from beyond a cache."""
        by_rows, inside, chunk, group = place
        pieces, part, whole = self.height // chunk, self._bytes_of(chunk), self._bytes_of(self.height)
        held = part if by_rows else whole
        overlaps = (by_rows or inside) and (whole if by_rows else 2 * whole * self.share) > cache
        image = pieces * part if overlaps else whole
        of_pass = (self.weights + self.outputs / (pieces if by_rows else 1)) / self.passes
        if held * (1 if by_rows else self.share) + of_pass > cache:
            image *= max(self.passes // group * self.share, 1)
        again = pieces if by_rows and held + self.weights > cache else 1
        size, times = self._copies(place)
        return image + self.weights * again + (2 * size * times if 2 * size > cache else 0)

    def _bytes_of(self, rows: int) -> float:
        """Return the bytes that rows of outputs read."""
        return ((rows - 1) * self.step + self.window) * self.row

    def _copies(self, place: Place) -> tuple[float, int]:
        """Return the bytes of a copy, of the whole image or of the rows that a piece reads, and how many there are."""
        if not self.is_copied:
            return 0, 0
        if not place[1]:
            return self._bytes_of(self.height), 1
        times = self.height // place[2]
        if self.is_by_channel:
            return self._bytes_of(place[2]) / self.passes, times * self.passes
        return self._bytes_of(place[2]), times


def streams_of(schedule: Any, kernel: Kernel, reduced: int, number: int, tile: tuple[int, int, int]) -> Streams:
    """Return what a convolution reads and writes; reduced: see cpu/convolution.py; number: of the instruction; tile:
    blocks of channels, rows and columns.
    """
    block, sizes = anchor_of(schedule, kernel)
    images, channels, height = sizes[:3]
    region, taps = operands_of(block)[0], 5 if reduced == 2 else 6
    stride, dilation = stride_and_dilation(region, 2, block, (2, taps))
    image, passes = region_buffer(region), max(channels // tile[0], 1)
    row = buffer_bytes(image) / images / int(image.shape[2])
    window = (sizes[taps] - 1) * max(dilation, 1) + 1
    written = schedule.get(block_ref(schedule, kernel.after[-1])) if kernel.after else block
    return Streams(
        height,
        row,
        stride,
        window,
        ((tile[1] - 1) * stride + window) * row,
        stored_weight_bytes(schedule, kernel) if len(block.reads) > 1 else 0,
        buffer_bytes(region_buffer(written.writes[0])) / images,
        passes,
        1 / passes if reduced == 2 else min(sizes[5] / int(image.shape[1]), 1) if reduced > 3 else 1,
        bool(kernel.before),
        reduced == 2,
        instruction_of(TILES, {"dot": number}) is not None,
    )


def rank_by_traffic(streams: Streams, places: list[tuple[int, int, int]], cpu: CpuFeatures) -> list[Place]:
    """Return the places with chunks and groups of any size, those with the least traffic first.

    Several threads keep their order of rows and channels, as what a thread wrote is in its caches.
    """

    def cost(place: Place) -> tuple[float, int, int]:
        return streams.cost(place, cpu), place[3], -place[2]

    chunks = divisors(streams.height, max(streams.height // cpu.threads, 1))
    found: list[Place] = []
    for rows, inside in dict.fromkeys(place[:2] for place in places):
        of_kind = [(rows, inside, chunk, group) for chunk in chunks for group in streams.groups(cpu)]
        found += sorted(of_kind, key=cost)[:_OF_KIND]
    return found if cpu.threads > 1 else sorted(found, key=cost)
