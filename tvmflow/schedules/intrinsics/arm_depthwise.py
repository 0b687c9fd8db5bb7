"""Define tensor intrinsics of depthwise convolutions on arm64: a row of pixels, under one row of the filter.

The weights of a row of the filter are in registers, each pixel is loaded once, and multiplied for all outputs that it
belongs to. LLVM would load all weights of a filter before the loop over tiles, and spill them in it: their address is
hidden from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvmflow.ir.tir.blocks import Kernel, extents
from tvmflow.schedules.intrinsics.arm_depthwise_dot import (
    DEPTHWISE_DOTS,
    find_depthwise_dot,
    rank_dot_tiles,
    tensorize_dots,
)
from tvmflow.schedules.intrinsics.intrinsic import (
    Instruction,
    Intrinsic,
    Operand,
    Sized,
    find_instruction,
    instruction_of,
)
from tvmflow.schedules.template import (
    Knobs,
    anchor_of,
    dtypes_of,
    operands_of,
    stride_and_dilation,
    tile_sizes,
    unroll_loops,
)
from tvmflow.targets.cpu_features import CpuFeatures

_REGISTERS = 32
_SPARE = 4  # registers of pixels, and of what the epilogue keeps
_COLUMNS = range(2, 8)
_LOAD = """
define weak_odr ptr @tvmflow_depthwise_hidden(ptr %place, ptr %0) alwaysinline nounwind {{
  %r = call ptr asm sideeffect "", "=r,0"(ptr %place)
  ret ptr %r
}}
define weak_odr {v} @tvmflow_depthwise_{name}_pixel(ptr %row, i32 %at, ptr %0) alwaysinline nounwind {{
  %place = getelementptr {v}, ptr %row, i32 %at
  %r = load {v}, ptr %place, align 16
  ret {v} %r
}}
define weak_odr {v} @tvmflow_depthwise_{name}_weights(ptr %row, i32 %at, ptr %0) alwaysinline nounwind {{
  %place = getelementptr {w}, ptr %row, i32 %at
{load}
  ret {v} %r
}}
"""
_LOADED = "  %r = load {v}, ptr %place, align 16"
_WIDENED = """\
  %w = load {w}, ptr %place, align 8
  %r = sext {w} %w to {v}"""
_FMA = """
define weak_odr {s} @tvmflow_depthwise_{name}({s} %sum, {v} %a, {v} %b, ptr %0) alwaysinline nounwind {{
  %r = call {s} @llvm.fma.v8f{bits}({v} %a, {v} %b, {s} %sum)
  ret {s} %r
}}
declare {s} @llvm.fma.v8f{bits}({v}, {v}, {s})
"""
_SMLAL = """
define weak_odr {s} @tvmflow_depthwise_{name}({s} %sum, {v} %a, {v} %b, ptr %0) alwaysinline nounwind {{
  %x = sext {v} %a to {s}
  %y = sext {v} %b to {s}
  %p = mul {s} %x, %y
  %r = add {s} %sum, %p
  ret {s} %r
}}
"""


@dataclass(frozen=True)
class DepthwiseMla(Instruction):
    """A multiply-accumulate of eight channels for the columns of a filter.

    weight, total: dtypes; registers: of the sums of a pixel.
    """

    columns: int
    weight: str
    total: str
    registers: int

    @property
    def held(self) -> int:
        """Return how many registers hold the weights of a row of the filter."""
        return self.columns * (2 if self.data == "float32" else 1)

    @property
    def imports(self) -> str:
        """Return LLVM code of the functions that the kernel calls."""
        kinds = {"float32": "float", "float16": "half", "int32": "i32", "int16": "i16", "int8": "i8"}
        texts = {
            "name": self.name,
            "v": f"<8 x {kinds[self.data]}>",
            "s": f"<8 x {kinds[self.total]}>",
            "w": f"<8 x {kinds[self.weight]}>",
            "bits": self.total.removeprefix("float"),
        }
        loaded = _WIDENED if self.weight != self.data else _LOADED
        return _LOAD.format(**texts, load=loaded.format(**texts)) + (_SMLAL if self.total == "int32" else _FMA).format(
            **texts
        )


_ROWS = (
    (120, "fmla", "neon", "float32", "float32", "float32", 2),
    (140, "fmla_half", "fp16", "float16", "float16", "float16", 1),
    (160, "smlal", "neon", "int16", "int8", "int32", 2),
)
DEPTHWISE = tuple(
    DepthwiseMla(number + columns, name, needs, data, columns, weight, total, registers)
    for number, name, needs, data, weight, total, registers in _ROWS
    for columns in _COLUMNS
)


@dataclass(frozen=True)
class DepthwiseRow(Sized):
    """A row of pixels, whose windows have a distance of `stride` columns; number: of the instruction."""

    PREFIX: ClassVar[str] = "tvmflow.depthwise"
    SIZES: ClassVar[str] = r"(?:_\d{1,3}){3}"
    number: int
    pixels: int
    stride: int

    @property
    def of(self) -> DepthwiseMla:
        return next(row for row in DEPTHWISE if row.number == self.number)

    @property
    def is_possible(self) -> bool:
        known = any(row.number == self.number for row in DEPTHWISE)
        return known and 0 < self.pixels <= _REGISTERS and 0 < self.stride <= _REGISTERS

    @property
    def reach(self) -> int:
        """Return how many columns of the image the row reads."""
        return (self.pixels - 1) * self.stride + self.of.columns

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (reach, 8), weights (columns, 8) and sums (pixels, 8)."""
        of = self.of
        return Intrinsic(
            self.name,
            "wix",
            (self.pixels, 8, of.columns),
            Operand(of.data, (self.reach, 8), f"vw * {self.stride} + vx, vi", "8, 1"),
            Operand(of.weight, (of.columns, 8), "vx, vi", "8, 1"),
            Operand(of.total, (self.pixels, 8), "vw, vi", "sum, 1"),
            self._body(),
            of.imports,
        )

    def _body(self) -> str:
        of = self.of
        name = f"tvmflow_depthwise_{of.name}"
        lines = [
            'row = T.call_extern("handle", "tvmflow_depthwise_hidden", T.address_of(A[0, 0]), A.data)',
            'taps = T.call_extern("handle", "tvmflow_depthwise_hidden", T.address_of(B[0, 0]), A.data)',
        ]
        lines += [
            f'b{x} = T.call_extern("{of.data}x8", "{name}_weights", taps, {x}, A.data)' for x in range(of.columns)
        ]
        for column in range(self.reach):
            uses = [(w, column - w * self.stride) for w in range(self.pixels)]
            uses = [(w, x) for w, x in uses if 0 <= x < of.columns]
            if uses:
                lines.append(f'a{column} = T.call_extern("{of.data}x8", "{name}_pixel", row, {column}, A.data)')
            lines += [
                f'C[{w}, T.ramp(0, 1, 8)] = T.call_extern("{of.total}x8", "{name}", '
                f'C.vload([{w}, 0], dtype="{of.total}x8"), a{column}, b{x}, A.data)'
                for w, x in uses
            ]
        return "\n".join(" " * 8 + line for line in lines)


def _column_steps(block: Any) -> list[int]:
    """Return stride and dilation of the columns of a depthwise convolution."""
    return stride_and_dilation(operands_of(block)[0], 3, block, (3, 6))


def depthwise_variants(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Return the variants of a depthwise convolution by instructions of arm64, the most promising first: 0, number of
    the instruction, register tile.
    """
    by_dots = find_depthwise_dot(schedule, kernel, cpu)
    if by_dots:
        return [(0, by_dots.number, point) for point in rank_dot_tiles(schedule, kernel)]
    row = _find_depthwise(schedule, kernel, cpu)
    return [(0, row.number, point) for point in _rank_depthwise_tiles(schedule, kernel, row)] if row else []


def _find_depthwise(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> DepthwiseMla | None:
    """Return the instruction for a depthwise convolution without dilation of columns, None for others."""
    block, sizes = anchor_of(schedule, kernel)
    if len(sizes) != 7 or sizes[4] != 8 or len(block.reads) < 2 or _column_steps(block)[1] != 1:
        return None
    total, data, weight = dtypes_of(schedule, kernel)
    return find_instruction(
        DEPTHWISE, cpu, data, lambda row: (row.columns, row.weight, row.total) == (sizes[6], weight, total)
    )


def _rank_depthwise_tiles(schedule: Any, kernel: Kernel, row: DepthwiseMla) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest loads first."""
    block, (_, _, _, width, *_) = anchor_of(schedule, kernel)
    stride = _column_steps(block)[0]

    def cost(point: tuple[int, int, int]) -> tuple[float, int]:
        """Return loads per pixel, of pixels and weights. Too few sums do not hide the latency."""
        w = point[2]
        loads = DepthwiseRow(row.number, w, stride).reach + row.columns
        return ((row.columns + loads / w) / min(w * row.registers, 8), -w)

    def fits(point: tuple[int, int, int]) -> bool:
        return point[2] * row.registers + row.held + _SPARE <= _REGISTERS

    return sorted(filter(fits, tile_sizes((1, 1, width), (1, 1, 28))), key=cost)[:12]


def tensorize_depthwise(schedule: Any, knobs: Knobs, anchor: Any, inner: list[Any], outermost: Any) -> bool:
    """Sum a tile in registers by the instruction that the knobs choose; return whether it is one of arm64's."""
    if instruction_of(DEPTHWISE_DOTS, knobs):
        tensorize_dots(schedule, anchor, inner, outermost)
        return True
    row = instruction_of(DEPTHWISE, knobs)
    if row is None:
        return False
    n, c_inner, h_inner, w_inner, c_lane, y, x = inner
    block = schedule.get(anchor)
    schedule.reorder(y, n, c_inner, h_inner, w_inner, c_lane, x)  # one row of the filter at a time
    unroll_loops(schedule, c_inner, h_inner)
    pixels = extents(schedule, [w_inner])[0]
    loop = w_inner if pixels > 1 else c_lane
    sized = DepthwiseRow(row.number, pixels, _column_steps(block)[0])
    sized.intrinsic.tensorize(schedule, anchor, y, loop, outermost)
    return True
