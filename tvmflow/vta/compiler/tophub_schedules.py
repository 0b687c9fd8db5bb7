"""Schedule as the original VTA stack does, to reproduce its published counters and compare with them.

Tiles are those of TopHub's `vta_v0.10.log` for ResNet-18; two virtual threads share the chip; the ALU sequence of a
relu has six operations; a residual sum is a separate operator that loads both operands into the accumulator; the sum
that leaves the region wraps, while ours saturates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.conv_tiling import ConvJob
from tvmflow.vta.compiler.convolution import Axis, Geometry
from tvmflow.vta.compiler.dma import load_image, spans, store_tile
from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import IMMEDIATE_MAX, AluOp, Uop
from tvmflow.vta.isa.program import LaunchBuilder, Loops
from tvmflow.vta.isa.region import Tail

Operations = list[tuple[AluOp, int | None]]


@dataclass(frozen=True)
class ReferenceTile:
    """rows, columns, co: of one tile; threads: along output channels (co), rows (h), or none."""

    rows: int
    columns: int
    co: int
    threads: str


# (input size, input blocks, output blocks, kernel, stride) of the 1x16 design
TOPHUB = {
    (56, 4, 4, 3, 1): ReferenceTile(8, 56, 2, "co"),
    (56, 4, 8, 3, 2): ReferenceTile(7, 28, 4, "co"),
    (56, 4, 8, 1, 2): ReferenceTile(7, 28, 4, "h"),
    (28, 8, 8, 3, 1): ReferenceTile(14, 28, 2, "h"),
    (28, 8, 16, 3, 2): ReferenceTile(14, 14, 4, "co"),
    (28, 8, 16, 1, 2): ReferenceTile(7, 14, 8, "co"),
    (14, 16, 16, 3, 1): ReferenceTile(14, 14, 4, "co"),
    (14, 16, 32, 3, 2): ReferenceTile(7, 7, 16, "co"),
    (14, 16, 32, 1, 2): ReferenceTile(7, 7, 16, "co"),
    (7, 32, 32, 3, 1): ReferenceTile(7, 7, 16, "co"),
}


def reference_tile(config: VtaConfig, g: Geometry) -> ReferenceTile:
    """Return TopHub's tile, or for other shapes the largest that fits the chip with two threads, else with one."""
    known = TOPHUB.get((g.rows.size, g.ci, g.co, g.kernel[0], g.rows.src))
    if known is not None and g.groups == 1 and config.block == 16 and _fits(config, g, known):
        return known
    fitting = [
        tile
        for rows, columns, co in itertools.product(_parts(g.rows.out), _parts(g.columns.out), _parts(g.co_group))
        for threads in ("co", "h", "")
        if _fits(config, g, tile := ReferenceTile(rows, columns, co, threads))
    ]
    if not fitting:
        raise ProgramError(f"a convolution of {g.rows.size} x {g.columns.size}", f"one that fits {config.name}")
    # Three rows or more put the taps of a tile into one instruction.
    return max(
        fitting,
        key=lambda t: (t.rows >= 3 or g.taps == 1, bool(t.threads), t.rows * t.columns * t.co, t.columns, t.rows),
    )


def _from_zero(axis: Axis) -> list[int]:
    """Return where each tap reads, from the first element of a tile's window on."""
    offsets = [offset for _, offset in sorted(axis.phases[0])]
    return [offset - min(offsets) for offset in offsets]


def _parts(size: int) -> list[int]:
    return [part for part in range(1, size + 1) if size % part == 0]


def _fits(config: VtaConfig, g: Geometry, tile: ReferenceTile) -> bool:
    threads = 2 if tile.threads else 1
    axis = {"co": g.co_group // tile.co, "h": g.rows.out // tile.rows, "": 1}[tile.threads]
    _, rows = g.rows.window(0, tile.rows)
    _, columns = g.columns.window(0, tile.columns)
    whole = g.kernel[0] if g.taps > 1 and tile.rows * tile.co >= 3 else 1
    return (
        axis % threads == 0
        and g.rows.out % tile.rows == 0
        and threads * rows * columns <= config.depth(Memory.INP)
        and threads * tile.co * g.taps <= config.depth(Memory.WGT)
        and threads * tile.co * (tile.rows * tile.columns + 1) <= config.depth(Memory.ACC)
        and whole * tile.co * tile.rows <= config.depth(Memory.UOP)
    )


def tail_operations(tail: Tail, has_bias: bool) -> Operations:
    """Return the reference's ALU sequence: six with a relu between bias and rounding, else the two adds in one."""
    ops: Operations = [(AluOp.SHR, -tail.left)] if tail.left else []
    ops += [(AluOp.ADD, None)] if has_bias else []
    if not bias_holds_rounding(tail):
        ops.append((AluOp.MAX, 0))
    if tail.half and not (has_bias and bias_holds_rounding(tail)):
        ops.append((AluOp.ADD, tail.half))
    if tail.right:
        ops.append((AluOp.SHR, tail.right))
    if tail.saturates:
        low = -127 if tail.low == 0 and not bias_holds_rounding(tail) else tail.low
        return [*ops, (AluOp.MIN, tail.high), (AluOp.MAX, low)]
    return [*ops, (AluOp.MAX, tail.low)] if tail.low >= 0 and bias_holds_rounding(tail) else ops


def bias_holds_rounding(tail: Tail) -> bool:
    """Whether bias and rounding are one vector: where no relu stands between them, or no immediate holds the
    rounding.
    """
    return tail.low != 0 or tail.half > IMMEDIATE_MAX


def reference_conv(
    builder: LaunchBuilder, job: ConvJob, tile: ReferenceTile, operations: Operations | None = None
) -> None:
    """Emit a convolution as the reference does, with its ALU operations or others. Fused sums have none."""
    g = job.geometry
    if job.residual is not None or g.rows.dst > 1 or g.columns.dst > 1:
        raise ProgramError(
            "a fused sum, or a transposed convolution with a stride in reference mode",
            "a plain one",
            "use mode optimized",
        )
    threads = 2 if tile.threads else 1
    inp, wgt = (builder.config.depth(memory) // threads for memory in (Memory.INP, Memory.WGT))
    acc, biases = tile.co * tile.rows * tile.columns, threads * tile.co
    operations = tail_operations(job.tail, job.bias is not None) if operations is None else operations
    for n, group in itertools.product(range(g.n), range(g.groups)):
        for tiles in _thread_groups(g, tile, threads, group):
            contexts = [
                _Thread(builder, job, n, group, inp * t, wgt * t, biases + acc * t, tile.co * t, *where)
                for t, where in enumerate(tiles)
            ]
            for context in contexts:
                context.reset()
            for ci in range(g.ci_group):
                for context in contexts:
                    context.load(ci)
                for context in contexts:
                    context.multiply()
            for context in contexts:
                context.finish(operations)


_Where = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


def _thread_groups(g: Geometry, tile: ReferenceTile, threads: int, group: int) -> Iterator[list[_Where]]:
    """Yield what runs side by side: (rows, output blocks, columns) of each thread."""
    rows, columns = list(spans(g.rows.out, tile.rows)), list(spans(g.columns.out, tile.columns))
    blocks = [(group * g.co_group + first, count) for first, count in spans(g.co_group, tile.co)]
    if tile.threads == "h":
        half = len(rows) // threads
        for r, co, column in itertools.product(range(half), blocks, columns):
            yield [(rows[t * half + r], co, column) for t in range(threads)]
    else:
        half = len(blocks) // threads
        for row, c, column in itertools.product(rows, range(half), columns):
            yield [(row, blocks[t * half + c], column) for t in range(threads)]


@dataclass
class _Thread:
    """One virtual thread at one tile, with its share of each memory. Biases lie in front, where the ALU reaches them on
    every design.
    """

    builder: LaunchBuilder
    job: ConvJob
    n: int
    group: int
    inp: int
    wgt: int
    acc: int
    bias: int
    rows: tuple[int, int]
    co: tuple[int, int]
    columns: tuple[int, int]

    @property
    def plane(self) -> int:
        return self.rows[1] * self.columns[1]

    def reset(self) -> None:
        """Clear: out = x, in = output block, micro-ops over rows."""
        uops = [(self.acc + y * self.columns[1], 0, 0) for y in range(self.rows[1])]
        loops = Loops(self.columns[1], self.co[1], (1, self.plane if self.co[1] > 1 else 0))
        self.builder.gemm(uops, loops, reset=True, site="reset")

    def load(self, ci: int) -> None:
        g, job = self.job.geometry, self.job
        (row, height), (column, width) = g.rows.window(*self.rows), g.columns.window(*self.columns)
        load_image(
            self.builder, self.inp, job.data, (self.n, self.group * g.ci_group + ci), 1, (row, height, column, width)
        )
        size = self.builder.config.element_bytes(Memory.WGT)
        address = job.weight + (self.co[0] * g.ci_group + ci) * g.taps * size
        self.builder.load(Memory.WGT, self.wgt, address, (self.co[1], g.taps), g.ci_group * g.taps)

    def multiply(self) -> None:
        g = self.job.geometry
        width, step = g.columns.window(*self.columns)[1], g.columns.src
        row_taps, column_taps = (_from_zero(axis) for axis in (g.rows, g.columns))
        places = [(co, y) for co in range(self.co[1]) for y in range(self.rows[1])]

        def uops(ky: int, kx: int) -> list[Uop]:
            return [
                (
                    self.acc + (co * self.rows[1] + y) * self.columns[1],
                    self.inp + (y * g.rows.src + row_taps[ky]) * width + column_taps[kx],
                    self.wgt + co * g.taps + ky * g.kernel[1] + kx,
                )
                for co, y in places
            ]

        kh, kw = g.kernel
        if g.taps == 1:  # out = x, in = output block, micro-ops over rows
            inner = self.co[1] > 1
            loops = Loops(self.columns[1], self.co[1], (1, self.plane if inner else 0), (step, 0), (0, int(inner)))
            self.builder.gemm(uops(0, 0)[: self.rows[1]], loops, site="multiply")
        elif len(places) < 3 or column_taps != sorted(
            column_taps
        ):  # a tap at a time; out = x, micro-ops over output block, row
            for ky, kx in itertools.product(range(kh), range(kw)):
                self.builder.gemm(uops(ky, kx), Loops(self.columns[1], 1, (1, 0), (step, 0)), site="multiply")
        else:  # out = x, in = kx, micro-ops over ky, output block, row
            loops = Loops(self.columns[1], kw, (1, 0), (step, 1), (0, 1))
            self.builder.gemm([uop for ky in range(kh) for uop in uops(ky, 0)], loops, site="multiply")

    def finish(self, operations: Operations) -> None:
        builder, total = self.builder, self.co[1] * self.plane
        if self.job.bias is not None:
            size = builder.config.element_bytes(Memory.ACC)
            builder.load(Memory.ACC, self.bias, self.job.bias + self.co[0] * size, (1, self.co[1]), self.co[1])
        for at, (op, operand) in enumerate(operations):
            if operand is None:
                inner = self.co[1] > 1
                loops = Loops(self.co[1], self.plane, (self.plane if inner else 0, 1), (int(inner), 0))
                builder.alu(op, [(self.acc, self.bias, 0)], loops, site=f"alu{at}")
            else:
                loops = Loops(1, total, (0, 1))
                builder.alu(op, [(self.acc, 0, 0)], loops, operand, site=f"alu{at}")
        window = (*self.rows, *self.columns)
        store_tile(builder, self.acc, self.job.out, (self.n, self.co[0]), self.co[1], window)


def reference_sum(builder: LaunchBuilder, inputs: list[tuple[int, int]], out: int, vectors: int, tail: Tail) -> None:
    """Emit a sum of operands loaded into the accumulator. inputs: (address, left shift)."""
    config = builder.config
    size = config.element_bytes(Memory.ACC_8BIT)
    part = min(config.depth(Memory.ACC) // len(inputs), config.depth(Memory.INP) // len(inputs))
    operations: Operations = [(AluOp.ADD, tail.half)] if tail.half else []
    if tail.right:
        operations.append((AluOp.SHR, tail.right))
    if tail.low >= 0:
        operations.append((AluOp.MAX, tail.low))
    if tail.saturates:
        operations += [(AluOp.MIN, tail.high), (AluOp.MAX, -127 if tail.low >= 0 else tail.low)]
    for first, count in spans(vectors, part):
        loops = Loops(1, count, (0, 1), (0, 1))
        for at, (address, left) in enumerate(inputs):
            builder.load(Memory.ACC_8BIT, at * part, address + first * size, (1, count), count)
            if left:
                builder.alu(AluOp.SHR, [(at * part, at * part, 0)], loops, -left, site=f"shift{at}")
        for at in range(1, len(inputs)):
            builder.alu(AluOp.ADD, [(0, at * part, 0)], loops, site="add")
        for number, (op, operand) in enumerate(operations):
            builder.alu(op, [(0, 0, 0)], loops, operand, site=f"alu{number}")
        builder.store(0, out + first * size, (1, count), count)
