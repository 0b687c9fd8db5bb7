"""Define tensor intrinsics of first layers on arm64: a row of pixels by lanes of dot products or multiply-adds.

A register holds neighbouring columns of the image: of int8 images four pixels, each one group of four channels, of
float32 and float16 images, which are planes, four or eight values of a channel. The intrinsic sums each pixel of a row
in a register, under all columns of the filter; the input of a pixel is a lane of one of few registers, at any offset,
so that no pixel or weight is loaded twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvmflow.ir.tir.blocks import Kernel, extents
from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, Sized, find_instruction
from tvmflow.schedules.template import anchor_of, dtypes_of, operands_of, tile_sizes, unroll_loops, window_steps
from tvmflow.targets.cpu_features import CpuFeatures

_REGISTERS = 32

_DOT = """
define weak_odr <4 x i32> @tvmflow_columns_{name}_{lane}\
(<4 x i32> %sum, <4 x i32> %a, <16 x i8> %b, ptr %0) alwaysinline nounwind {{
  %s = shufflevector <4 x i32> %a, <4 x i32> poison, <4 x i32> <i32 {lane}, i32 {lane}, i32 {lane}, i32 {lane}>
  %x = bitcast <4 x i32> %s to <16 x i8>
  %r = call <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8(<4 x i32> %sum, <16 x i8> {factors})
  ret <4 x i32> %r
}}
"""
_DOT_DECLARED = "declare <4 x i32> @llvm.aarch64.neon.{name}.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)\n"
_FMA = """
define weak_odr {v} @tvmflow_columns_{name}_{lane}({v} %sum, {v} %a, {v} %b, ptr %0) alwaysinline nounwind {{
  %s = shufflevector {v} %a, {v} poison, <{lanes} x i32> <{mask}>
  %r = call {v} @llvm.fma.v{lanes}f{bits}({v} %b, {v} %s, {v} %sum)
  ret {v} %r
}}
"""
_FMA_DECLARED = "declare {v} @llvm.fma.v{lanes}f{bits}({v}, {v}, {v})\n"


@dataclass(frozen=True)
class ColumnDot(Instruction):
    """An instruction for the columns of a filter.

    weight, total: dtypes; lanes: outputs, or columns of the image, in a register; group: channels that it sums at once.
    """

    columns: int
    weight: str = "int8"
    total: str = "int32"
    lanes: int = 4
    group: int = 4

    @property
    def imports(self) -> str:
        """Return LLVM code of the functions that the kernel calls."""
        if self.group > 1:
            # usdot takes the unsigned operand first
            factors = "%x, <16 x i8> %b" if self.data == "uint8" else "%b, <16 x i8> %x"
            functions = [_DOT.format(name=self.name, lane=lane, factors=factors) for lane in range(self.lanes)]
            return "".join(functions) + _DOT_DECLARED.format(name=self.name)
        vector = f"<{self.lanes} x {'half' if self.total == 'float16' else 'float'}>"
        texts = {"name": self.name, "v": vector, "lanes": self.lanes, "bits": self.total.removeprefix("float")}
        masks = [", ".join([f"i32 {lane}"] * self.lanes) for lane in range(self.lanes)]
        functions = [_FMA.format(**texts, lane=lane, mask=mask) for lane, mask in enumerate(masks)]
        return "".join(functions) + _FMA_DECLARED.format(**texts)


_FLOATS = ((80, "fmla", "neon", "float32", 4), (100, "fmla_half", "fp16", "float16", 8))
COLUMN_DOTS = (
    *(
        ColumnDot(number + columns, name, needs, data, columns)
        for number, name, needs, data in ((20, "sdot", "dotprod", "int8"), (40, "usdot", "i8mm", "uint8"))
        for columns in range(2, 8)
    ),
    *(
        ColumnDot(number + columns, name, needs, data, columns, data, data, lanes, 1)
        for number, name, needs, data, lanes in _FLOATS
        for columns in range(2, 17)
    ),
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
        return known and 0 < self.pixels <= _REGISTERS and self.reach >= self.of.lanes

    @property
    def reach(self) -> int:
        """Return how many columns of the image the row reads."""
        return (self.pixels - 1) * self.stride + self.of.columns

    @property
    def starts(self) -> list[int]:
        """Return the first columns of the registers that hold the row."""
        return [min(at, self.reach - self.of.lanes) for at in range(0, self.reach, self.of.lanes)]

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on int8 or uint8 data (reach, 4), weights (columns, 1, 4, 4), sums (pixels, 4); floats
        without the groups of four channels.
        """
        of = self.of
        sizes, sums = (
            (self.pixels, of.lanes, of.columns),
            Operand(of.total, (self.pixels, of.lanes), "vw, vi", "pixel, 1"),
        )
        place = f"vw * {self.stride} + vx"
        if of.group > 1:
            data = Operand(of.data, (self.reach, 4), f"{place}, vq", "4, 1")
            weights = Operand(of.weight, (of.columns, 1, of.lanes, 4), "vx, 0, vi, vq", "step, unit, 4, 1")
            return Intrinsic(self.name, "wixq", (*sizes, 4), data, weights, sums, self._body(), of.imports)
        data = Operand(of.data, (self.reach,), place)
        weights = Operand(of.weight, (of.columns, of.lanes), "vx, vi", "step, 1")
        return Intrinsic(self.name, "wix", sizes, data, weights, sums, self._body(), of.imports)

    def _body(self) -> str:
        of, starts = self.of, self.starts
        total = f"{of.total}x{of.lanes}"
        several, values = of.group > 1, of.lanes * of.group
        lines = []
        for at, start in enumerate(starts):
            load = f'A.vload([{start}{", 0" * several}], dtype="{of.data}x{values}")'
            lines.append(f"a{at} = " + (f'T.reinterpret({load}, dtype="{total}")' if several else load))
        for x in range(of.columns):
            lines.append(f'b{x} = B.vload([{x}, 0{", 0, 0" * several}], dtype="{of.weight}x{values}")')
            for w in range(self.pixels):
                column = w * self.stride + x
                at = min(column // of.lanes, len(starts) - 1)
                lines.append(
                    f'C[{w}, T.ramp(0, 1, {of.lanes})] = T.call_extern("{total}", '
                    f'"tvmflow_columns_{of.name}_{column - starts[at]}", '
                    f'C.vload([{w}, 0], dtype="{total}"), a{at}, b{x}, A.data)'
                )
        return "\n".join(" " * 8 + line for line in lines)


def find_column_dot(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> ColumnDot | None:
    """Return the instruction for a first layer without groups and dilation, None for others."""
    block, sizes = anchor_of(schedule, kernel)
    total, data, weight = dtypes_of(schedule, kernel)
    lanes, (image, _) = sizes[4], operands_of(block)
    if len(sizes) == 10:  # an image of one block of channels
        groups, _, columns, words, group = sizes[5:]
        known = (groups, words, group) == (1, 1, 4)
    else:  # an image of planes
        columns, group = sizes[-1], 1
        known = len(sizes) == 8 and len(image.region) == 4 and image.region[1].min.same_as(block.iter_vars[5].var)
    if not known or window_steps(block)[1][1] != 1:
        return None
    wanted = (columns, group, weight, total)

    def fits(row: ColumnDot) -> bool:
        return (row.columns, row.group, row.weight, row.total) == wanted and lanes % row.lanes == 0

    return find_instruction(COLUMN_DOTS, cpu, data, fits)


def rank_column_tiles(schedule: Any, kernel: Kernel, row: ColumnDot) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest instructions first."""
    block, (_, channels, height, width, lanes, *_) = anchor_of(schedule, kernel)
    stride, registers = window_steps(block)[1][0], lanes // row.lanes

    def loads(w: int) -> int:
        return len(ColumnRow(row.number, w, stride).starts)

    def held(w: int) -> int:
        """Return how many registers of a row are in use at once; windows without overlap are read one by one."""
        return loads(w) if stride < row.columns else min(loads(w), 2 * w)

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Return instructions per multiplication. Too few sums do not hide the latency."""
        c, h, w = point
        sums = c * registers * h * w
        operands = h * loads(w) / 2 + (c - 0.5) * registers * row.columns
        return ((1 + operands / (sums * row.columns)) / min(sums, 8), h, -w)

    def fits(point: tuple[int, int, int]) -> bool:
        c, h, w = point
        possible = ColumnRow(row.number, w, stride).is_possible
        return possible and c * registers * h * w + h * held(w) + 2 <= _REGISTERS

    return sorted(filter(fits, tile_sizes((channels, height, width), (4, 4, 28))), key=cost)[:12]


def tensorize_columns(schedule: Any, row: ColumnDot, anchor: Any, inner: list[Any], outermost: Any) -> None:
    """Sum a tile in registers, one row of its pixels at a time."""
    n, c_inner, h_inner, w_inner, c_lane, i, y, x, *group = inner
    stride = window_steps(schedule.get(anchor))[1][0]
    block, lane = schedule.split(c_lane, [None, row.lanes])
    words, values = group[:1], group[1:]
    schedule.reorder(i, y, n, *words, c_inner, block, h_inner, w_inner, lane, x, *values)
    unroll_loops(schedule, c_inner, block, h_inner)
    pixels = extents(schedule, [w_inner])[0]
    loop = w_inner if pixels > 1 else lane
    ColumnRow(row.number, pixels, stride).intrinsic.tensorize(schedule, anchor, i, loop, outermost)
