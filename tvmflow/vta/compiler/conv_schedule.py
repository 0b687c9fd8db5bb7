"""Schedule a convolution in optimized mode: loads, GEMMs, ALU work and stores, tile by tile.

Data already on the chip is not loaded again: weights stay for several tiles of the image, inputs for several output
channels, rows for the tile below. Values are copied into the accumulator by a multiplication with an identity block:
real designs support this, in contrast to an 8-bit accumulator load, and it moves a quarter of the bytes that the
reference counts. A residual sum is such a multiplication after the tail of its convolution: the intermediate sum is
never stored.
"""

from __future__ import annotations

import itertools

from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.conv_tiling import ConvJob, Layout, Residual, Span, Tile, Visit, Walk, layout_of
from tvmflow.vta.compiler.dma import Slots, copy_in, load_image, spans, store_tile
from tvmflow.vta.compiler.gemm import ONCE, Dimension, multiply
from tvmflow.vta.compiler.requantize import apply_tail, tail_ops
from tvmflow.vta.compiler.row_tiles import Piece
from tvmflow.vta.isa.config import Memory
from tvmflow.vta.isa.instructions import AluOp
from tvmflow.vta.isa.program import LaunchBuilder, Loops


def schedule_conv(builder: LaunchBuilder, job: ConvJob, tile: Tile) -> None:
    """Emit a convolution. Raises ProgramError when the tile does not fit the chip."""
    layout = layout_of(builder.config, job, tile)
    if layout is None:
        raise ProgramError(f"{tile} does not fit {builder.config.name}", "a tile of the search")
    _Convolution(builder, job, Walk(job.geometry, tile), layout).emit()


class _Convolution:
    def __init__(self, builder: LaunchBuilder, job: ConvJob, walk: Walk, layout: Layout) -> None:
        self.builder, self.job, self.walk = builder, job, walk
        self.geometry, tile = job.geometry, walk.tile
        self.inp = Slots(0, layout.inp, tile.inputs)
        self.residual = Slots(tile.inputs * layout.inp, layout.residual, 2)
        self.wgt = Slots(1 if job.residual is not None else 0, layout.wgt, tile.weights)
        self.acc = Slots(layout.bias, layout.acc, tile.accumulators)
        self.biased = -1
        self.ops = tail_ops(job.tail, job.bias is not None)

    def emit(self) -> None:
        if self.job.residual is not None:
            assert self.job.identity is not None
            self.builder.load(Memory.WGT, 0, self.job.identity, (1, 1), 1)
        for visit in self.walk.visits():
            self._visit(visit)

    def _visit(self, visit: Visit) -> None:
        bias, (base, _) = self._biases(visit), self.acc.take()
        rows, columns = (visit.rows.first, visit.rows.count), visit.columns.span
        blocks, plane = visit.co[1], rows[1] * columns[1]
        co = (visit.group * self.geometry.co_group + visit.co[0], blocks)
        self.builder.gemm([(base, 0, 0)], Loops(1, blocks * plane, (0, 1)), reset=True)
        for step in visit.steps:
            chunks = {chunk: self._inputs(visit, chunk, step) for chunk in visit.rows.chunks}
            weights = self._weights(visit, co, step)
            for piece in visit.rows.pieces:
                self._multiply(base, chunks[piece.chunk], weights, visit, piece, step[1])
        apply_tail(self.builder, self.ops, base, blocks, plane, bias)
        if self.job.residual is not None:
            self._add_residual(self.job.residual, visit.n, co, rows, columns, base)
        store_tile(self.builder, base, self.job.out, (visit.n, co[0]), blocks, (*rows, *columns))

    def _inputs(self, visit: Visit, chunk: int, step: Span) -> int:
        """Return where a chunk of inputs lies: [ci][row][column], padded columns among them."""
        slot, is_new = self.inp.take((visit.group, visit.n, visit.columns.first, chunk, step))
        if is_new:
            row, rows = self.walk.rows.chunks[chunk]
            window = (row, rows, visit.columns.low, visit.columns.window)
            first = visit.group * self.geometry.ci_group + step[0]
            load_image(self.builder, slot, self.job.data, (visit.n, first), step[1], window, self.walk.rows.step)
        return slot

    def _weights(self, visit: Visit, co: Span, step: Span) -> int:
        """Return where the weights of a step lie: [co][ci][taps]."""
        slot, is_new = self.wgt.take((visit.group, visit.co, step))
        if is_new:
            g, size = self.geometry, self.builder.config.element_bytes(Memory.WGT)
            address = self.job.weight + (co[0] * g.ci_group + step[0]) * g.taps * size
            self.builder.load(Memory.WGT, slot, address, (co[1], step[1] * g.taps), g.ci_group * g.taps)
        return slot

    def _biases(self, visit: Visit) -> int:
        """Return where the biases of some output blocks lie, all of a group's when output channels are the inner
        loop.
        """
        if self.job.bias is None:
            return 0
        g, tile = self.geometry, self.walk.tile
        first, count = visit.co if tile.channels_first else (0, g.co_group)
        block = visit.group * g.co_group + first
        if self.biased != block:
            size = self.builder.config.element_bytes(Memory.ACC)
            self.builder.load(Memory.ACC, 0, self.job.bias + block * size, (1, count), count)
            self.biased = block
        return visit.co[0] - first

    def _multiply(self, base: int, slot: int, weights: int, visit: Visit, piece: Piece, blocks: int) -> None:
        """Multiply all taps of one piece, one phase of columns after the other."""
        g, strip = self.geometry, visit.columns
        columns, width = strip.count, strip.window
        column_offset = strip.low - strip.first // g.columns.dst * g.columns.src
        plane, height = visit.rows.count * columns, self.walk.rows.chunks[piece.chunk][1]
        for phase, column_taps in enumerate(g.columns.phases):
            turns = -(-(columns - phase) // g.columns.dst)
            if turns <= 0:
                continue
            line = _line(column_taps)
            taps = [
                (
                    slot + (ci * height + row) * width + offset - column_offset,
                    weights + ci * g.taps + tap * g.kernel[1] + column_tap,
                )
                for ci in range(blocks)
                for tap, row in piece.taps
                for column_tap, offset in (column_taps if line is ONCE else column_taps[:1])
            ]
            places = (
                Dimension(visit.co[1], dst=plane, wgt=blocks * g.taps),
                Dimension(piece.count, dst=g.rows.dst * columns, src=g.rows.src // self.walk.rows.step * width),
                Dimension(turns, dst=g.columns.dst, src=g.columns.src),
            )
            start = base + (piece.turn * g.rows.dst + piece.phase) * columns + phase
            multiply(self.builder, start, places, taps, line)

    def _add_residual(self, residual: Residual, n: int, co: Span, rows: Span, columns: Span, base: int) -> None:
        """Copy the other operand onto the clipped sum, in parts that fit a slot; then the second tail."""
        builder, plane, room = self.builder, rows[1] * columns[1], self.residual.size
        if residual.host_left:
            apply_tail(builder, [(AluOp.SHR, -residual.host_left)], base, co[1], plane)
        whole = room // plane
        for first, blocks in spans(co[1], max(whole, 1)):
            for row, part in spans(rows[1], rows[1] if whole else room // columns[1]):
                slot, _ = self.residual.take()
                window = (rows[0] + row, part, *columns)
                load_image(builder, slot, residual.place, (n, co[0] + first), blocks, window)
                copy_in(builder, slot, base + first * plane + row * columns[1], blocks * part * columns[1], 0)
        apply_tail(builder, tail_ops(residual.tail, False), base, co[1], plane)


def _line(taps: tuple[tuple[int, int], ...]) -> Dimension:
    """Return the taps of a row as a loop, or ONCE where they are no such thing."""
    steps = {(b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(taps)}
    if len(steps) != 1 or min(min(steps)) < 0:
        return ONCE
    ((src, wgt),) = steps
    return Dimension(len(taps), src=src, wgt=wgt)
