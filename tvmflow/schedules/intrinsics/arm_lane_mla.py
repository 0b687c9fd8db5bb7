"""Define tensor intrinsics of NEON multiply-accumulates by a lane.

Input channels are in one register, each lane of which is multiplied with a register of weights, so that values of a
pixel are loaded once for several instructions, where a broadcast takes one for each. The intrinsic sums all lanes of
one register into a register of outputs; the loops around it hold a tile of outputs. It is written in LLVM IR, whose
splats of a lane become that operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, find_instruction
from tvmflow.schedules.template import tile_sizes, unroll_loops
from tvmflow.targets.cpu_features import CpuFeatures

_BODY = """
        C[T.ramp(T.int32(0), T.int32(1), {lanes})] = T.call_extern(
            "{total}x{lanes}", "tvmflow_lane_{name}", C.vload([0], dtype="{total}x{lanes}"),
            {load}, {loads}, A.data)
"""
_FUNCTION = """
define weak_odr {sums} @tvmflow_lane_{name}({sums} %sum, {pixel} %a, {weights}, ptr %0) alwaysinline nounwind {{
{body}
  ret {sums} %r
}}
{declare}
"""
# The steps of functions: {k} is the number of a word, {total} the sum so far, {found} the next one, {mask} repeats a
# lane's number.
_FMA = """\
  %s{k} = shufflevector {pixel} %a, {pixel} poison, <{lanes} x i32> <{mask}>
  {found} = call {sums} @llvm.fma.v{lanes}f{bits}({sums} %b{k}, {sums} %s{k}, {sums} {total})"""
_FMA_DECLARED = "declare {sums} @llvm.fma.v{lanes}f{bits}({sums}, {sums}, {sums})"
# Values are widened by NEON's intrinsic: LLVM would widen each splat instead of the register.
_WIDENED = """\
  %i = bitcast <8 x half> %a to <8 x i16>
  %h0 = shufflevector <8 x i16> %i, <8 x i16> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %x0 = call <4 x float> @llvm.aarch64.neon.vcvthf2fp(<4 x i16> %h0)
  %h1 = shufflevector <8 x i16> %i, <8 x i16> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %x1 = call <4 x float> @llvm.aarch64.neon.vcvthf2fp(<4 x i16> %h1)
"""
_FMA_WIDE = """\
  %c{k} = bitcast <4 x half> %b{k} to <4 x i16>
  %w{k} = call <4 x float> @llvm.aarch64.neon.vcvthf2fp(<4 x i16> %c{k})
  %s{k} = shufflevector <4 x float> %x{half}, <4 x float> poison, <4 x i32> <{mask_of_half}>
  {found} = call <4 x float> @llvm.fma.v4f32(<4 x float> %w{k}, <4 x float> %s{k}, <4 x float> {total})"""
_FMA_WIDE_DECLARED = """\
declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)
declare <4 x float> @llvm.aarch64.neon.vcvthf2fp(<4 x i16>)"""
_SDOT = """\
  %s{k} = shufflevector {pixel} %a, {pixel} poison, <4 x i32> <{mask}>
  %x{k} = bitcast <4 x i32> %s{k} to <16 x i8>
  %y{k} = bitcast <16 x i8> %b{k} to <16 x i8>
  {found} = call <4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32> {total}, <16 x i8> %y{k}, <16 x i8> %x{k})"""
_SDOT_DECLARED = "declare <4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)"
# int8 products in 16 bits, added pairwise in 32 bits: two products fit into 16 bits, as weights are at least -127.
_SMULL = """\
  %s{k} = shufflevector {pixel} %a, {pixel} poison, <4 x i32> <{mask}>
  %x{k} = bitcast <4 x i16> %s{k} to <8 x i8>
  %p{k} = call <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8> %b{k}, <8 x i8> %x{k})"""
_SADDLP = """
  %t{k} = add <8 x i16> %p{before}, %p{k}
  %l{k} = call <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16> %t{k})
  {found} = add <4 x i32> {total}, %l{k}"""
_SMULL_DECLARED = """\
declare <8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)
declare <4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)"""
_REGISTERS = 32
_STREAMED = 4  # registers of pixels that are multiplied once
_LLVM_TYPES = {"float32": "float", "float16": "half", "int32": "i32", "int8": "i8"}


@dataclass(frozen=True)
class LaneMla(Instruction):
    """A multiply-accumulate instruction by a lane.

    weight, total: dtypes; lanes: sums in a register; values: input channels in a register; group: channels that the
    instruction sums at once; steps: LLVM code for a word, in turn; declare, start: LLVM code behind the function and
    before its steps; working: registers for intermediate products.
    """

    weight: str
    total: str
    lanes: int
    values: int
    group: int
    steps: tuple[str, ...]
    declare: str
    start: str = ""
    working: int = 0

    @property
    def words(self) -> int:
        """Return how many multiplications one register of input channels takes."""
        return self.values // self.group

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (values,), weights (words, lanes, group) and sums (lanes,).

        Weights are (words, lanes) if the group is one channel.
        """
        group, several, width = self.group, self.group > 1, self.lanes * self.group
        load, pixel = f'A.vload([0], dtype="{self.data}x{self.values}")', _vector(self.data, self.values)
        if several:
            load = f'T.reinterpret({load}, dtype="int{8 * group}x{self.words}")'
            pixel = f"<{self.words} x i{8 * group}>"
        place = ", 0, 0" if several else ", 0"
        loads = [f'B.vload([{word}{place}], dtype="{self.weight}x{width}")' for word in range(self.words)]
        texts = {
            **vars(self),
            "load": load,
            "loads": ", ".join(loads),
            "pixel": pixel,
            "sums": _vector(self.total, self.lanes),
            "bits": self.total.removeprefix("float"),
            "weights": ", ".join(f"{_vector(self.weight, width)} %b{word}" for word in range(self.words)),
        }
        texts |= {"body": self._function(texts), "declare": self.declare.format(**texts)}
        shape = (self.words, self.lanes, group)[: 2 + several]
        index, strides = ("vu, vi, vq", f"step, {group}, 1") if several else ("vu, vi", "step, 1")
        return Intrinsic(
            f"tvmflow.lane_{self.name}",
            "iuq",
            (self.lanes, self.words, group),
            Operand(self.data, (self.values,), f"vu * {group} + vq"),
            Operand(self.weight, shape, index, strides),
            Operand(self.total, (self.lanes,), "vi"),
            _BODY.format(**texts),
            _FUNCTION.format(**texts),
        )

    def _function(self, texts: dict[str, object]) -> str:
        """Return the LLVM code of all words."""
        lines, total = [], "%sum"
        for k in range(self.words):
            step, found = self.steps[k % len(self.steps)], "%r" if k == self.words - 1 else f"%r{k}"
            mask, mask_of_half = (", ".join([f"i32 {lane}"] * self.lanes) for lane in (k, k % 4))
            values = {**texts, "k": k, "before": k - 1, "half": k // 4, "mask": mask, "mask_of_half": mask_of_half}
            lines.append(step.format(**{**values, "found": found, "total": total}))
            total = found if "{found}" in step else total
        return self.start + "\n".join(lines)


def _vector(dtype: str, lanes: int) -> str:
    """Return a vector type of LLVM."""
    return f"<{lanes} x {_LLVM_TYPES[dtype]}>"


_PAIR = (_SMULL, _SMULL + _SADDLP)
LANES = (
    LaneMla(6, "fmla", "neon", "float32", "float32", "float32", 4, 4, 1, (_FMA,), _FMA_DECLARED),
    LaneMla(7, "fmla_half", "fp16", "float16", "float16", "float16", 8, 8, 1, (_FMA,), _FMA_DECLARED),
    LaneMla(
        8, "fmla_wide", "neon", "float16", "float16", "float32", 4, 8, 1, (_FMA_WIDE,), _FMA_WIDE_DECLARED, _WIDENED
    ),
    LaneMla(9, "sdot", "dotprod", "int8", "int8", "int32", 4, 8, 4, (_SDOT,), _SDOT_DECLARED),
    LaneMla(12, "smull", "neon", "int8", "int8", "int32", 4, 8, 2, _PAIR, _SMULL_DECLARED, working=12),
    LaneMla(13, "smull_few", "neon", "int8", "int8", "int32", 4, 4, 2, _PAIR, _SMULL_DECLARED, working=12),
)


def find_lane_mla(cpu: CpuFeatures, dtypes: tuple[str, str, str], block: int, inner: tuple[int, int]) -> LaneMla | None:
    """Return the instruction for a convolution, None if there is none.

    dtypes: of data, weights, sums; block: output channels of a block; inner: input channels of a block, in groups and
    of a group.
    """

    def fits(row: LaneMla) -> bool:
        same = (row.weight, row.total, row.group) == (*dtypes[1:], inner[1])
        return same and inner[0] % row.words == 0 and block % row.lanes == 0

    return find_instruction(LANES, cpu, dtypes[0], fits)


def rank_lane_tiles(
    row: LaneMla, channels: int, height: int, width: int, lanes: int, columns: tuple[int, int] = (1, 1)
) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest loads first.

    columns: the unrolled columns of the filter, and the stride between their windows.
    """
    per_block = lanes // row.lanes

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Return instructions per multiplication; pixels, and weights of the first block, are loaded in pairs.

        Windows of neighbouring pixels overlap; a step of the loop takes four instructions. Too few sums do not hide the
        latency.
        """
        c, h, w = point
        sums = c * per_block * h * w
        taps, step = columns
        pixels = h * min((w - 1) * step + taps, w * taps) / taps
        loads = 0.5 * pixels + 4 / taps + row.words * per_block * (c - 0.5)
        return ((1 + loads / (sums * row.words)) / min(sums, 8), h, -w)

    def fits(point: tuple[int, int, int]) -> bool:
        return held_registers(row, point, lanes, columns[0]) + row.working <= _REGISTERS

    return sorted(filter(fits, tile_sizes((channels, height, width), (4, 4, 28))), key=cost)[:24]


def held_registers(row: LaneMla, tile: tuple[int, int, int], lanes: int, taps: int = 1) -> int:
    """Return how many registers a tile (blocks of channels, rows, columns) takes: sums, pixels, and weights of a step.

    If one register of weights has all channels of a tile, a pixel is multiplied once, and needs none afterwards.
    """
    c, h, w = tile
    registers = c * lanes // row.lanes
    return registers * h * w + (min(h * w, _STREAMED) if registers == taps == 1 else h * w) + row.words


def tensorize_lane_mla(
    schedule: Any, row: LaneMla, block: Any, outer: Sequence[Any], inner: Sequence[Any], outermost: Any
) -> None:
    """Sum a tile in registers; each register of weights is multiplied by all pixels before the next.

    outer: loops around the tile, the first over the reduction. inner: others, then those over blocks of channels, rows,
    columns, lanes, words and, if an instruction sums several channels, these.
    """
    several = row.group > 1
    *others, c, h, w, lane, word = inner[:-1] if several else inner
    words, word = schedule.split(word, [None, row.words])
    part, lane = schedule.split(lane, [None, row.lanes])
    schedule.reorder(*outer, words, *others, c, part, h, w, lane, word, *inner[len(inner) - several :])
    unroll_loops(schedule, c, part, h, w)
    row.intrinsic.tensorize(schedule, block, outer[0], lane, outermost)
