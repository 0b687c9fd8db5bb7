"""Compute the layout, order and memory traffic of a convolution's tiles by formula."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tvmflow.vta.compiler.convolution import Geometry
from tvmflow.vta.compiler.dma import MAX_FIELD, Place, Slots, spans
from tvmflow.vta.compiler.row_tiles import RowPlan, RowTile, Strip, row_plan, strips
from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import MAX_ITERATIONS
from tvmflow.vta.isa.region import Tail

MAX_PAD = 15
Span = tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """The sizes of a convolution's tiles, and how much data stays on the chip.

    rows, columns: of the output; co: output blocks; ci: input blocks of a step. inputs, weights: how many steps' inputs
    and weights are on the chip; accumulators: number of their regions. rolling: rows are kept for the tile below.
    channels_first: the outer loop is over output channels and the inner one over the image, otherwise the reverse.
    """

    rows: int
    columns: int
    co: int
    ci: int
    inputs: int = 2
    weights: int = 2
    accumulators: int = 1
    rolling: bool = False
    channels_first: bool = True


@dataclass(frozen=True)
class Residual:
    """A value added behind the first tail of a convolution, with a second tail.

    host_left: how far the convolution's own value is shifted left before; the other one is by its identity block.
    """

    place: Place
    host_left: int
    tail: Tail


@dataclass(frozen=True)
class ConvJob:
    """One convolution to be scheduled. bias: address of packed int32 vectors, or None; identity: address of scaled
    blocks.
    """

    geometry: Geometry
    data: Place
    out: Place
    weight: int
    tail: Tail
    bias: int | None
    residual: Residual | None = None
    identity: int | None = None


@dataclass(frozen=True)
class Visit:
    """One tile. group: of blocks; co: (first, count) output blocks within it; steps: (first, count) input blocks, in
    order.
    """

    group: int
    n: int
    co: Span
    rows: RowTile
    columns: Strip
    steps: tuple[Span, ...]


@dataclass(frozen=True)
class Walk:
    """A tile size applied to a geometry: order of the tiles and traffic.

    Data that a slot still holds is not loaded again. Steps go back and forth if that finds more data on the chip.
    """

    geometry: Geometry
    tile: Tile

    @cached_property
    def rows(self) -> RowPlan:
        return row_plan(self.geometry.rows, self.tile.rows, self.tile.rolling)

    @cached_property
    def columns(self) -> tuple[Strip, ...]:
        return strips(self.geometry.columns, self.tile.columns)

    @cached_property
    def steps(self) -> tuple[Span, ...]:
        return tuple(spans(self.geometry.ci_group, self.tile.ci))

    @cached_property
    def blocks(self) -> tuple[Span, ...]:
        return tuple(spans(self.geometry.co_group, self.tile.co))

    @cached_property
    def widths(self) -> list[int]:
        """Return the input columns of each strip that has any."""
        return [strip.width for strip in self.columns if strip.width]

    @cached_property
    def working(self) -> int:
        """Return how many tiles of the image read any input; the others lie in the padding."""
        return self.geometry.n * len(self.widths) * len(self.rows.loaded)

    @cached_property
    def order(self) -> tuple[bool, bool]:
        """Return whether steps go back and forth from tile to tile, and whether all tiles do from one sweep to the
        next.
        """
        if self.tile.rolling:
            return False, False
        outer, inner, kept_outer, kept_inner = self._loops
        turns = inner > 1 and kept_outer < len(self.steps)
        return turns, outer > 1 and 2 < kept_inner < inner * len(self.steps)

    @property
    def _loops(self) -> tuple[int, int, int, int]:
        """Return turns of both loops, and slots of what each of them changes."""
        tile, channels = self.tile, len(self.blocks)
        if tile.channels_first:
            return channels, self.working, tile.weights, tile.inputs
        return self.working, channels, tile.inputs, tile.weights

    def visits(self) -> Iterator[Visit]:
        """Yield all tiles in order."""
        turns, sweeps = self.order
        blocks, lines = self.blocks, self.rows.tiles
        image = [(n, strip, rows) for n in range(self.geometry.n) for strip in self.columns for rows in lines]
        first = self.tile.channels_first
        outer, inner = (len(blocks), len(image)) if first else (len(image), len(blocks))
        for group in range(self.geometry.groups):
            visit = sweep = 0
            for a in range(outer):
                worked = False
                for b in reversed(range(inner)) if sweeps and sweep % 2 else range(inner):
                    co, (n, columns, rows) = (blocks[a], image[b]) if first else (blocks[b], image[a])
                    steps: tuple[Span, ...] = ()
                    if rows.pieces and columns.width:
                        back = visit % 2 if turns else sweep % 2 if sweeps else 0
                        steps, visit, worked = self.steps[::-1] if back else self.steps, visit + 1, True
                    yield Visit(group, n, co, rows, columns, steps)
                sweep += worked

    # -- traffic --

    @property
    def traffic(self) -> tuple[int, int]:
        """Return how many input vectors and weight blocks are loaded."""
        g, tile = self.geometry, self.tile
        image = [lines * width for width in self.widths for lines in self.rows.loaded] * g.n
        channels = [count * g.taps for _, count in self.blocks]
        if not image:
            return 0, 0
        outer, inner = (channels, image) if tile.channels_first else (image, channels)
        moved = self._count_loads(outer, inner)
        inputs, weights = moved[::-1] if tile.channels_first else moved
        if tile.rolling:
            inputs = self._count_rolling_loads()
        return inputs * g.groups, weights * g.groups

    def _count_rolling_loads(self) -> int:
        """Return what is loaded when rows are kept for the tile below; in a later sweep, what no slot still holds."""
        chunks = self.rows.chunks
        strips = self.geometry.n * len(self.widths)
        kept, distinct = self.tile.inputs, strips * len(chunks) * len(self.steps)
        once = self.geometry.n * sum(rows for _, rows in chunks.values()) * sum(self.widths) * self.geometry.ci_group
        if not self.tile.channels_first or distinct <= kept:
            return once
        # A chunk outlives the other strips of a sweep only if the slots hold all of them.
        met = self._count_rolling_hits() if distinct - len(chunks) * len(self.steps) < kept else 0
        return once * len(self.blocks) - met * (len(self.blocks) - 1)

    def _count_rolling_hits(self) -> int:
        """Return how many input vectors of a sweep are still on the chip from the sweep before."""
        slots, loaded = Slots(0, 1, self.tile.inputs), [0, 0]
        for sweep, n, (strip, width) in itertools.product(range(2), range(self.geometry.n), enumerate(self.widths)):
            for lines, step in itertools.product(self.rows.tiles, self.steps):
                for chunk in lines.chunks:
                    if slots.take((n, strip, chunk, step))[1]:
                        loaded[sweep] += self.rows.chunks[chunk][1] * width * step[1]
        return loaded[0] - loaded[1]

    def _count_loads(self, outer: list[int], inner: list[int]) -> tuple[int, int]:
        """Return what is loaded of the values that the outer loop and that the inner loop changes; sizes are of one
        input block.
        """
        counts = [count for _, count in self.steps]
        steps, total = len(counts), sum(counts)
        _, _, kept_outer, kept_inner = self._loops
        turns, sweeps = self.order
        first = sum(outer) * total
        again = 0
        if turns:
            missed = (sum(counts[kept_outer:]), sum(counts[: steps - kept_outer]))
            for at, size in enumerate(outer):
                visits = range(at * len(inner) + 1, (at + 1) * len(inner))
                back = (visits.stop // 2) - (visits.start // 2)
                again += size * (missed[1] * back + missed[0] * (len(visits) - back))
        elif kept_outer < steps:
            again = first * (len(inner) - 1)
        each = sum(inner) * total
        if kept_inner >= len(inner) * steps:
            return first + again, each
        saved = (
            sum(self._count_hits(inner, counts, kept_inner, sweep) for sweep in range(len(outer) - 1)) if sweeps else 0
        )
        return first + again, each * len(outer) - saved

    def _count_hits(self, inner: list[int], counts: list[int], kept: int, sweep: int) -> int:
        """Return how many of the inner loop's values are still on the chip when the sweep after `sweep` begins."""
        turns, _ = self.order
        met, left, visit = 0, kept, (sweep + 1) * len(inner) - 1
        for size in inner if sweep % 2 else reversed(inner):
            back = visit % 2 if turns else sweep % 2
            last = counts[:left] if back else counts[-left:]
            met, left, visit = met + size * sum(last), left - len(last), visit - 1
            if left <= 0:
                break
        return met


# -- the chip ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a tile lies on the chip. inp, wgt: elements of a slot; acc: accumulators of a region; bias: blocks before
    them.

    residual: elements of each of two slots behind the inputs.
    """

    inp: int
    wgt: int
    acc: int
    bias: int
    residual: int


def layout_of(config: VtaConfig, job: ConvJob, tile: Tile) -> Layout | None:
    """Return the layout of a tile on the chip, None when it does not fit."""
    g = job.geometry
    walk = Walk(g, tile)
    inp, wgt = tile.ci * walk.rows.largest * walk.columns[0].window, tile.co * tile.ci * g.taps
    bias = 0 if job.bias is None else tile.co if tile.channels_first else g.co_group
    acc = tile.co * tile.rows * tile.columns
    rest = config.depth(Memory.INP) - tile.inputs * inp
    residual = min(rest // 2, acc) if job.residual is not None else 0
    fits = (
        rest >= 0
        and tile.weights * wgt + (job.residual is not None) <= config.depth(Memory.WGT)
        and bias + tile.accumulators * acc <= config.depth(Memory.ACC)
        and (job.residual is None or residual >= tile.columns)
        and acc <= MAX_ITERATIONS
        and tile.co <= config.depth(Memory.UOP)
        and g.ci_group * g.taps <= MAX_FIELD
        and (not tile.rolling or tile.inputs >= walk.rows.live * len(walk.steps))
        and all(max(-s.low, s.low + s.window - g.columns.size) <= MAX_PAD for s in walk.columns if s.width)
    )
    return Layout(inp, wgt, acc, bias, residual) if fits else None


def count_moved_bytes(config: VtaConfig, job: ConvJob, tile: Tile) -> int:
    """Return the bytes of inputs, weights, biases and outputs that a tile transfers, without micro-ops."""
    g = job.geometry
    vector, block = config.element_bytes(Memory.INP), config.element_bytes(Memory.WGT)
    inputs, weights = Walk(g, tile).traffic
    return inputs * vector + weights * block + count_fixed_bytes(config, job)


def count_fixed_bytes(config: VtaConfig, job: ConvJob) -> int:
    """Return the bytes of biases, outputs and the residual's operand, which do not depend on the tile."""
    g = job.geometry
    outputs = g.n * g.co * g.rows.out * g.columns.out * config.element_bytes(Memory.INP)
    bias = g.co * config.element_bytes(Memory.ACC) if job.bias is not None else 0
    return outputs + bias + (outputs + config.element_bytes(Memory.WGT) if job.residual is not None else 0)


def count_multiplications(g: Geometry, tile: Tile) -> int:
    """Return the expected gemm_counter, without padded rows and tiles in padded columns."""
    walk = Walk(g, tile)
    columns = 0
    for strip in walk.columns:
        if strip.width:
            columns += sum(
                len(taps) * max(0, -(-(strip.count - phase) // g.columns.dst))
                for phase, taps in enumerate(g.columns.phases)
            )
    return g.n * g.groups * g.ci_group * g.co_group * walk.rows.multiplied * columns
