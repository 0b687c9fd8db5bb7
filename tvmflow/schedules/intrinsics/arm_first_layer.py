"""Define tensor intrinsics of int8 first layers on arm64: a row of pixels by lanes of dot products.

Each pixel is one group of four channels, and a register holds four columns of the image. The intrinsic sums each pixel
of a row in a register, under all columns of the filter; the input of a pixel is a lane of one of few registers, at any
offset, so that no pixel or weight is loaded twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvmflow.ir.tir.blocks import Kernel, extents
from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, Sized, find_instruction
from tvmflow.schedules.template import anchor_of, dtypes_of, tile_sizes, unroll_loops, window_steps
from tvmflow.targets.cpu_features import CpuFeatures

_LANES = 4  # outputs, or columns of the image, in a register
_MOST_COLUMNS = 7
_REGISTERS = 32

_FUNCTION = """
define weak_odr <4 x i32> @tvmflow_columns_{name}_{lane}\
(<4 x i32> %sum, <4 x i32> %a, <16 x i8> %b, ptr %0) alwaysinline nounwind {{
  %s = shufflevector <4 x i32> %a, <4 x i32> poison, <4 x i32> <i32 {lane}, i32 {lane}, i32 {lane}, i32 {lane}>
  %x = bitcast <4 x i32> %s to <16 x i8>
  %r = call <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8(<4 x i32> %sum, <16 x i8> {factors})
  ret <4 x i32> %r
}}
"""
_DECLARE = "declare <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)\n"


@dataclass(frozen=True)
class ColumnDot(Instruction):
    """A dot product instruction for the columns of a filter."""

    columns: int

    @property
    def imports(self) -> str:
        """Return LLVM code of the functions that the kernel calls."""
        # usdot takes the unsigned operand first
        factors = "%x, <16 x i8> %b" if self.data == "uint8" else "%b, <16 x i8> %x"
        functions = [_FUNCTION.format(name=self.name, lane=lane, factors=factors) for lane in range(_LANES)]
        return "".join(functions) + _DECLARE.format(name=self.name)


COLUMN_DOTS = tuple(
    ColumnDot(number + columns, name, needs, data, columns)
    for number, name, needs, data in ((20, "sdot", "dotprod", "int8"), (40, "usdot", "i8mm", "uint8"))
    for columns in range(2, _MOST_COLUMNS + 1)
)


@dataclass(frozen=True)
class ColumnRow(Sized):
    """A row of pixels, whose windows have a distance of `stride` columns; number: of the instruction."""

    PREFIX: ClassVar[str] = "tvmflow.columns"
    SIZES: ClassVar[str] = r"(?:_\d{1,3}){3}"
    number: int
    pixels: int
    stride: int

    @property
    def of(self) -> ColumnDot:
        return next(row for row in COLUMN_DOTS if row.number == self.number)

    @property
    def is_possible(self) -> bool:
        known = any(row.number == self.number for row in COLUMN_DOTS)
        return known and 0 < self.pixels <= _REGISTERS and self.reach >= _LANES

    @property
    def reach(self) -> int:
        """Return how many columns of the image the row reads."""
        return (self.pixels - 1) * self.stride + self.of.columns

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on int8 or uint8 data (reach, 4), weights (columns, 1, 4, 4), sums (pixels, 4)."""
        columns = self.of.columns
        return Intrinsic(
            self.name,
            "wixq",
            (self.pixels, _LANES, columns, 4),
            Operand(self.of.data, (self.reach, 4), f"vw * {self.stride} + vx, vq", "4, 1"),
            Operand("int8", (columns, 1, _LANES, 4), "vx, 0, vi, vq", "step, unit, 4, 1"),
            Operand("int32", (self.pixels, _LANES), "vw, vi", "pixel, 1"),
            self._body(),
            self.of.imports,
        )

    def _body(self) -> str:
        starts = [min(at, self.reach - _LANES) for at in range(0, self.reach, _LANES)]
        lines = [
            f'a{at} = T.reinterpret(A.vload([{start}, 0], dtype="{self.of.data}x16"), dtype="int32x4")'
            for at, start in enumerate(starts)
        ]
        for x in range(self.of.columns):
            lines.append(f'b{x} = B.vload([{x}, 0, 0, 0], dtype="int8x16")')
            for w in range(self.pixels):
                column = w * self.stride + x
                at = min(column // _LANES, len(starts) - 1)
                lines.append(
                    f'C[{w}, T.ramp(0, 1, 4)] = T.call_extern("int32x4", '
                    f'"tvmflow_columns_{self.of.name}_{column - starts[at]}", '
                    f'C.vload([{w}, 0], dtype="int32x4"), a{at}, b{x}, A.data)'
                )
        return "\n".join(" " * 8 + line for line in lines)


def find_column_dot(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> ColumnDot | None:
    """Return the instruction for a first layer of int8 or uint8 without groups and dilation, None for others."""
    block, (*outer, lanes, groups, _, columns, words, group) = anchor_of(schedule, kernel)
    if (groups, words, group) != (1, 1, 4) or lanes % _LANES or len(outer) != 4:
        return None
    found = find_instruction(COLUMN_DOTS, cpu, dtypes_of(schedule, kernel)[1], lambda row: row.columns == columns)
    return found if found and window_steps(block)[1][1] == 1 else None


def rank_column_tiles(schedule: Any, kernel: Kernel, row: ColumnDot) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest instructions first."""
    block, (_, channels, height, width, lanes, *_) = anchor_of(schedule, kernel)
    stride, registers = window_steps(block)[1][0], lanes // _LANES

    def loads(w: int) -> int:
        return -(-ColumnRow(row.number, w, stride).reach // _LANES)

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Return instructions per multiplication. Too few sums do not hide the latency."""
        c, h, w = point
        sums = c * registers * h * w
        operands = h * loads(w) / 2 + (c - 0.5) * registers * row.columns
        return ((1 + operands / (sums * row.columns)) / min(sums, 8), h, -w)

    def fits(point: tuple[int, int, int]) -> bool:
        c, h, w = point
        return (
            c * registers * h * w + h * loads(w) + 2 <= _REGISTERS and ColumnRow(row.number, w, stride).reach >= _LANES
        )

    return sorted(filter(fits, tile_sizes((channels, height, width), (4, 4, 28))), key=cost)[:12]


def tensorize_columns(schedule: Any, row: ColumnDot, anchor: Any, inner: list[Any], outermost: Any) -> None:
    """Sum a tile in registers, one row of its pixels at a time."""
    n, c_inner, h_inner, w_inner, c_lane, i, y, x, u, q = inner
    stride = window_steps(schedule.get(anchor))[1][0]
    block, lane = schedule.split(c_lane, [None, _LANES])
    schedule.reorder(i, y, n, u, c_inner, block, h_inner, w_inner, lane, x, q)
    unroll_loops(schedule, c_inner, block, h_inner)
    pixels = extents(schedule, [w_inner])[0]
    loop = w_inner if pixels > 1 else lane
    ColumnRow(row.number, pixels, stride).intrinsic.tensorize(schedule, anchor, i, loop, outermost)
