"""The optimized schedules: how each operator of a region becomes loads, GEMMs, ALU work and stores.

Inputs and weights have two slots each, so that loads run ahead of the GEMM core; accumulators one region or two. Weights may
stay on the chip over all spatial tiles of their output channels. Values are copied into the accumulator by multiplying them
with an identity block: unlike an 8-bit accumulator load, real designs can do that, and it moves a quarter of the bytes that the
reference counts. A residual sum is such a product behind the tail of its convolution: the sum before it is never stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.errors import ProgramError
from tvmflow.vta.config import Memory, VtaConfig
from tvmflow.vta.convolution import Axis, Geometry
from tvmflow.vta.isa import IMMEDIATE_MAX, MAX_ITERATIONS, AluOp, Uop
from tvmflow.vta.program import LaunchBuilder, Loops
from tvmflow.vta.region import Tail

Array = np.ndarray[Any, Any]
MAX_FIELD = (1 << 16) - 1
MAX_PAD = 15


@dataclass(frozen=True)
class Tile:
    """rows, columns: of the output; co, ci: blocks of channels; resident: weights stay over spatial tiles; accumulators: 1 or 2."""

    rows: int
    columns: int
    co: int
    ci: int
    resident: bool
    accumulators: int = 1


@dataclass(frozen=True)
class Place:
    """Where a value lies in DRAM, in units of one (batch, block) vector of bytes."""

    address: int
    blocks: int
    height: int
    width: int

    def vector(self, n: int, block: int, row: int, column: int) -> int:
        return ((n * self.blocks + block) * self.height + row) * self.width + column

    @property
    def plane(self) -> int:
        return self.height * self.width


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
    """One convolution to be scheduled. bias: address of packed int32 vectors, or None; identity: address of scaled blocks."""

    geometry: Geometry
    data: Place
    out: Place
    weight: int
    tail: Tail
    bias: int | None
    residual: Residual | None = None
    identity: int | None = None


def tail_ops(tail: Tail, has_bias: bool) -> list[tuple[AluOp, int | None]]:
    """Return the ALU operations of a tail; None as operand is the bias, which then holds the rounding too."""
    ops: list[tuple[AluOp, int | None]] = []
    if tail.left:
        ops.append((AluOp.SHR, -tail.left))
    if has_bias:
        ops.append((AluOp.ADD, None))
    elif tail.half:
        ops.append((AluOp.ADD, tail.half))
    if tail.right:
        ops.append((AluOp.SHR, tail.right))
    if tail.saturates:
        ops += [(AluOp.MAX, tail.low), (AluOp.MIN, tail.high)]
    elif tail.low >= 0:
        ops.append((AluOp.MAX, tail.low))
    return ops


def needs_bias(tail: Tail) -> bool:
    """Whether a tail adds a vector from DRAM; a rounding too large for an immediate is one as well."""
    return (tail.bias is not None and bool(np.any(tail.bias))) or tail.half > IMMEDIATE_MAX


def bias_vector(tail: Tail, channels: int) -> Array:
    """Return int32 (C,): the bias with the rounding in it."""
    bias = np.zeros(channels, np.int32) if tail.bias is None else tail.bias.astype(np.int32)
    return bias + np.int32(tail.half)


# -- pieces -----------------------------------------------------------------------------------------------------------


class Slots:
    """Slots of one memory, used in turn."""

    def __init__(self, first: int, size: int, count: int) -> None:
        self.size = size
        self._next = itertools.cycle(range(first, first + size * count, size))

    def take(self) -> int:
        return next(self._next)


def copy_in(builder: LaunchBuilder, slot: int, base: int, vectors: int, identity: int) -> None:
    """Add `vectors` of INP from `slot` on to the accumulators from `base` on, times the identity block."""
    for start in range(0, vectors, MAX_ITERATIONS):
        part = min(vectors - start, MAX_ITERATIONS)
        builder.gemm([(base + start, slot + start, identity)], Loops(1, part, (0, 1), (0, 1)))


def apply_tail(
    builder: LaunchBuilder, ops: list[tuple[AluOp, int | None]], base: int, blocks: int, vectors: int
) -> None:
    """Apply operations to `blocks` times `vectors` accumulators from `base` on; the bias of a block lies at its number."""
    for op, operand in ops:
        if operand is None:
            loops = Loops(blocks, vectors, (vectors if blocks > 1 else 0, 1), (1 if blocks > 1 else 0, 0))
            builder.alu(op, [(base, 0, 0)], loops)
        else:
            builder.alu(op, [(base, 0, 0)], Loops(1, blocks * vectors, (0, 1)), operand)


def load_image(
    builder: LaunchBuilder, sram: int, place: Place, at: tuple[int, int], blocks: int, window: tuple[int, int, int, int],
    row_step: int = 1,
) -> None:  # fmt: skip
    """Load blocks [block, block + blocks) of a window (row, rows, column, columns), which may reach over the edge, dense.

    at: (n, first block). row_step: only every so many rows.
    """
    n, block = at
    row, rows, column, columns = window
    top = min(max(0, -(row // row_step)) if row < 0 else 0, rows)
    last = row + (rows - 1) * row_step
    over = max(0, -(-(last - place.height + 1) // row_step)) if last >= place.height else 0
    left, right = max(0, -column), max(0, column + columns - place.width)
    height, width = rows - top - over, columns - left - right
    first_row, first_column = row + top * row_step, max(column, 0)
    if height <= 0 or width <= 0:
        raise ProgramError(f"a tile of {rows} x {columns} inputs that lies in the padding", "a tile that holds inputs")
    whole = not (top or over or left or right) and width == place.width and row_step == 1
    base = place.address // builder.config.element_bytes(Memory.INP)
    if whole and place.plane <= MAX_FIELD and rows * width <= MAX_FIELD:
        _load_inp(builder, sram, base + place.vector(n, block, first_row, 0), (blocks, rows * width), place.plane)
        return
    for each in range(blocks):
        element = base + place.vector(n, block + each, first_row, first_column)
        _load_inp(
            builder, sram + each * rows * columns, element, (height, width), place.width * row_step,
            (top, over, left, right),
        )  # fmt: skip


def _load_inp(
    builder: LaunchBuilder, sram: int, element: int, shape: tuple[int, int], stride: int,
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> None:  # fmt: skip
    builder.load(Memory.INP, sram, element * builder.config.element_bytes(Memory.INP), shape, stride, pads)


def store_tile(
    builder: LaunchBuilder, base: int, place: Place, at: tuple[int, int], blocks: int, window: tuple[int, int, int, int]
) -> None:
    """Store accumulators [block][row][column] to a window (row, rows, column, columns) of blocks from `at` (n, block) on."""
    n, block = at
    row, rows, column, columns = window
    size = builder.config.element_bytes(Memory.OUT)
    origin = place.address // size
    if columns == place.width and place.plane <= MAX_FIELD and rows * columns <= MAX_FIELD:
        builder.store(base, (origin + place.vector(n, block, row, 0)) * size, (blocks, rows * columns), place.plane)
        return
    for each in range(blocks):
        address = (origin + place.vector(n, block + each, row, column)) * size
        builder.store(base + each * rows * columns, address, (rows, columns), place.width)


def spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) that cover 0..total."""
    for first in range(0, total, step):
        yield first, min(step, total - first)


# -- convolution ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How a tile lies on the chip. inp, wgt: elements of a slot; acc: accumulators of a region; bias: blocks before them."""

    inp: int
    wgt: int
    acc: int
    bias: int
    reserved_wgt: int
    wgt_slots: int


def layout_of(config: VtaConfig, job: ConvJob, tile: Tile) -> Layout | None:
    """Return the layout of a tile on the chip, None when it does not fit."""
    g = job.geometry
    _, rows = g.rows.window(0, min(tile.rows, g.rows.out))
    _, columns = g.columns.window(0, min(tile.columns, g.columns.out))
    if g.rows.is_sparse:
        rows = tile.rows
    reserved = 1 if job.residual is not None else 0
    inp = tile.ci * rows * columns
    wgt = tile.co * (g.ci_group if tile.resident else tile.ci) * g.taps
    room = config.depth(Memory.WGT) - reserved
    wgt_slots = 2 if 2 * wgt <= room else 1
    bias = tile.co if job.bias is not None else 0
    acc = tile.co * tile.rows * tile.columns
    plane = tile.rows * tile.columns
    fits = (
        2 * inp <= config.depth(Memory.INP)
        and wgt * (wgt_slots if tile.resident else 2) <= room
        and bias + tile.accumulators * acc <= config.depth(Memory.ACC)
        and (job.residual is None or 2 * min(plane, tile.columns) <= config.depth(Memory.INP))
        and acc <= MAX_ITERATIONS
        and columns * (1 if g.rows.is_sparse else g.rows.src) < config.depth(Memory.INP)
        and g.ci_group * g.taps <= MAX_FIELD
    )
    return Layout(inp, wgt, acc, bias, reserved, wgt_slots if tile.resident else 2) if fits else None


def schedule_conv(builder: LaunchBuilder, job: ConvJob, tile: Tile) -> None:
    """Emit a convolution. Raises ProgramError when the tile does not fit the chip."""
    layout = layout_of(builder.config, job, tile)
    if layout is None:
        raise ProgramError(f"{tile} does not fit {builder.config.name}", "a tile of the search")
    _Convolution(builder, job, tile, layout).emit()


class _Convolution:
    def __init__(self, builder: LaunchBuilder, job: ConvJob, tile: Tile, layout: Layout) -> None:
        config = builder.config
        self.builder, self.job, self.tile, self.layout = builder, job, tile, layout
        self.geometry = job.geometry
        self.inp = Slots(0, config.depth(Memory.INP) // 2, 2)
        self.wgt = Slots(layout.reserved_wgt, layout.wgt, layout.wgt_slots)
        self.acc = Slots(layout.bias, layout.acc, tile.accumulators)
        self.ops = tail_ops(job.tail, job.bias is not None)
        self.resident: dict[int, int] = {}

    def emit(self) -> None:
        job, tile, g = self.job, self.tile, self.geometry
        if job.residual is not None:
            assert job.identity is not None
            self.builder.load(Memory.WGT, 0, job.identity, (1, 1), 1)
        for group in range(g.groups):
            for first, blocks in spans(g.co_group, tile.co):
                block = group * g.co_group + first
                self.resident = {}
                if job.bias is not None:
                    size = self.builder.config.element_bytes(Memory.ACC)
                    self.builder.load(Memory.ACC, 0, job.bias + block * size, (1, blocks), blocks)
                weights = self.wgt.take() if tile.resident else 0
                for n in range(g.n):
                    for rows in spans(g.rows.out, tile.rows):
                        for columns in spans(g.columns.out, tile.columns):
                            self._tile(n, group, (block, blocks), rows, columns, weights)

    def _tile(
        self, n: int, group: int, co: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int], weights: int
    ) -> None:
        g, job, base = self.geometry, self.job, self.acc.take()
        plane = rows[1] * columns[1]
        self.builder.gemm([(base, 0, 0)], Loops(1, co[1] * plane, (0, 1)), reset=True)
        for first, blocks in spans(g.ci_group, self.tile.ci):
            slot = self.inp.take()
            window = self._load_inputs(slot, n, (group * g.ci_group + first, blocks), rows, columns)
            weight = self._load_weights(co, (first, blocks), weights)
            self._multiply(base, slot, weight, (co[1], blocks), (rows, columns), window)
        apply_tail(self.builder, self.ops, base, co[1], plane)
        if job.residual is not None:
            self._add_residual(job.residual, n, co, rows, columns, base)
        store_tile(self.builder, base, job.out, (n, co[0]), co[1], (*rows, *columns))

    def _load_inputs(
        self, slot: int, n: int, ci: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int]
    ) -> tuple[int, int, int, int]:
        """Load what a tile reads; returns (first row, rows, first column, columns) as they lie on the chip."""
        g = self.geometry
        row, height = g.rows.window(*rows)
        column, width = g.columns.window(*columns)
        step = 1
        if g.rows.is_sparse:
            height, step = rows[1], g.rows.src
        load_image(self.builder, slot, self.job.data, (n, ci[0]), ci[1], (row, height, column, width), step)
        return row, height, column, width

    def _load_weights(self, co: tuple[int, int], ci: tuple[int, int], base: int) -> int:
        """Load the weights of one step unless they are there; returns where they begin: [co][ci][taps]."""
        g = self.geometry
        if self.tile.resident:
            at = base + co[1] * ci[0] * g.taps
            if ci[0] in self.resident:
                return at
            self.resident[ci[0]] = at
        else:
            at = self.wgt.take()
        size = self.builder.config.element_bytes(Memory.WGT)
        element = (co[0] * g.ci_group + ci[0]) * g.taps
        self.builder.load(
            Memory.WGT, at, self.job.weight + element * size, (co[1], ci[1] * g.taps), g.ci_group * g.taps
        )
        return at

    def _multiply(
        self, base: int, slot: int, weight: int, blocks: tuple[int, int], tile: tuple[tuple[int, int], tuple[int, int]],
        window: tuple[int, int, int, int],
    ) -> None:  # fmt: skip
        """Multiply all taps of one step, phase by phase."""
        g, ((row0, rows), (column0, columns)) = self.geometry, tile
        _, height, first_column, width = window
        row_src = 1 if g.rows.is_sparse else g.rows.src
        row_offset = g.rows.window(row0, rows)[0] - (row0 // g.rows.dst) * g.rows.src
        column_offset = first_column - (column0 // g.columns.dst) * g.columns.src
        for (py, row_taps), (px, column_taps) in itertools.product(
            enumerate(g.rows.phases), enumerate(g.columns.phases)
        ):
            turns = (_turns(rows, py, g.rows.dst), _turns(columns, px, g.columns.dst))
            if 0 in turns:
                continue
            taps = [
                (ky * g.kernel[1] + kx, (dy - row_offset) * width + dx - column_offset)
                for (ky, dy), (kx, dx) in itertools.product(row_taps, column_taps)
            ]
            taps = [
                (slot + ci * height * width + offset, weight + ci * g.taps + tap)
                for ci in range(blocks[1])
                for tap, offset in taps
            ]
            factors = Loops(turns[0], turns[1], (g.rows.dst * columns, g.columns.dst), (row_src * width, g.columns.src))
            emit_gemm(
                self.builder, base + py * columns + px, blocks[0], rows * columns, taps, blocks[1] * g.taps, factors
            )

    def _add_residual(
        self,
        residual: Residual,
        n: int,
        co: tuple[int, int],
        rows: tuple[int, int],
        columns: tuple[int, int],
        base: int,
    ) -> None:
        """Copy the other operand onto the clipped sum, in parts that fit a slot; then the second tail."""
        builder, plane = self.builder, rows[1] * columns[1]
        if residual.host_left:
            apply_tail(builder, [(AluOp.SHR, -residual.host_left)], base, co[1], plane)
        whole = self.inp.size // plane
        for first, blocks in spans(co[1], max(whole, 1)):
            for row, part in spans(rows[1], rows[1] if whole else max(self.inp.size // columns[1], 1)):
                slot = self.inp.take()
                window = (rows[0] + row, part, *columns)
                load_image(builder, slot, residual.place, (n, co[0] + first), blocks, window)
                copy_in(builder, slot, base + first * plane + row * columns[1], blocks * part * columns[1], 0)
        apply_tail(builder, tail_ops(residual.tail, False), base, co[1], plane)


def _turns(count: int, phase: int, dst: int) -> int:
    return max(0, -(-(count - phase) // dst))


def emit_gemm(
    builder: LaunchBuilder, base: int, co: int, plane: int, taps: list[tuple[int, int]], co_stride: int, loops: Loops
) -> None:
    """Emit out[co][y][x] += sum over taps, `taps` being (INP index, WGT index of the first output block).

    With three output blocks or more one instruction does it, output blocks innermost. With fewer, rows join the micro-ops where
    they can, so that no accumulator comes back within three; else each tap is an instruction of its own.
    """
    rows = next((r for r in range(1, loops.out + 1) if loops.out % r == 0 and r * co >= 3), 0)
    outer = Loops(
        loops.out // max(rows, 1), loops.inner, (loops.dst[0] * max(rows, 1), loops.dst[1]),
        (loops.src[0] * max(rows, 1), loops.src[1]),
    )  # fmt: skip
    if outer.out == 1:
        outer = Loops(1, outer.inner, (0, outer.dst[1]), (0, outer.src[1]))
    sequences: list[list[Uop]] = []
    for src, wgt in taps:
        sequences.append(
            [
                (base + block * plane + row * loops.dst[0], src + row * loops.src[0], wgt + block * co_stride)
                for row in range(max(rows, 1))
                for block in range(co)
            ]
        )
    if not rows:
        for sequence in sequences:
            builder.gemm(sequence, outer)
        return
    room = builder.config.depth(Memory.UOP) // len(sequences[0])
    for first, count in spans(len(sequences), room):
        builder.gemm([uop for sequence in sequences[first : first + count] for uop in sequence], outer)


# -- sums and pools ---------------------------------------------------------------------------------------------------


def schedule_sum(
    builder: LaunchBuilder, inputs: list[tuple[int, int]], out: int, vectors: int, tail: Tail, identities: list[int]
) -> None:
    """Emit a sum of values that lie alike. inputs: (address, which identity); out: address; identities: addresses of blocks.

    An identity block times 2^k shifts its value left by k.
    """
    config = builder.config
    for at, address in enumerate(identities):
        builder.load(Memory.WGT, at, address, (1, 1), 1)
    slots = Slots(0, config.depth(Memory.INP) // 2, 2)
    regions = Slots(0, config.depth(Memory.ACC) // 2, 2)
    size = config.element_bytes(Memory.INP)
    step = min(slots.size, regions.size, MAX_ITERATIONS)
    for first, count in spans(vectors, step):
        base = regions.take()
        builder.gemm([(base, 0, 0)], Loops(1, count, (0, 1)), reset=True)
        for address, identity in inputs:
            slot = slots.take()
            builder.load(Memory.INP, slot, address + first * size, (1, count), count)
            copy_in(builder, slot, base, count, identity)
        apply_tail(builder, tail_ops(tail, False), base, 1, count)
        builder.store(base, out + first * size, (1, count), count)


def schedule_pool(
    builder: LaunchBuilder, axes: tuple[Axis, Axis], n: int, data: Place, out: Place, identity: int
) -> None:
    """Emit a max pool, one block of channels after the other, as many rows at once as fit."""
    config, (rows, columns) = builder.config, axes
    builder.load(Memory.WGT, 0, identity, (1, 1), 1)
    _, width = columns.window(0, out.width)
    slots = Slots(0, config.depth(Memory.INP) // 2, 2)
    tile = max(
        (h for h in range(1, out.height + 1) if _pool_fits(config, rows.window(0, h)[1] * width, h * out.width, slots.size)),
        default=0,
    )  # fmt: skip
    if not tile:
        raise ProgramError(f"a pool over rows of {width} vectors", f"rows that fit {config.name}")
    for image, block in itertools.product(range(n), range(data.blocks)):
        for row, count in spans(out.height, tile):
            slot = slots.take()
            first, height = rows.window(row, count)
            column, _ = columns.window(0, out.width)
            base, vectors = height * width, count * out.width
            load_image(builder, slot, data, (image, block), 1, (first, height, column, width))
            builder.gemm([(0, 0, 0)], Loops(1, base + vectors, (0, 1)), reset=True)
            copy_in(builder, slot, 0, height * width, 0)
            builder.alu(AluOp.ADD, [(base, 0, 0)], Loops(1, vectors, (0, 1)), -128)
            for (_, dy), (_, dx) in itertools.product(rows.phases[0], columns.phases[0]):
                src = (dy - rows.phases[0][0][1]) * width + dx - columns.phases[0][0][1]
                loops = Loops(count, out.width, (out.width, 1), (rows.src * width, columns.src))
                if count == 1:
                    loops = Loops(1, out.width, (0, 1), (0, columns.src))
                builder.alu(AluOp.MAX, [(base, src, 0)], loops)
            store_tile(builder, base, out, (image, block), 1, (row, count, 0, out.width))


def _pool_fits(config: VtaConfig, inputs: int, outputs: int, slot: int) -> bool:
    reach = min(
        config.depth(Memory.ACC), config.depth(Memory.INP)
    )  # the source index of an ALU micro-op has INP's width
    return inputs <= min(slot, reach) and inputs + outputs <= config.depth(Memory.ACC) and inputs <= MAX_ITERATIONS
