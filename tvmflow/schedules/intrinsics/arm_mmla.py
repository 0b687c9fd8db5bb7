"""Define tensor intrinsics of arm64's matrix multiply-accumulates (smmla, usmmla, bfmmla).

An instruction sums two pixels x two output channels over 8 bytes of input channels. A register holds two output
channels of weights, two pixels of the image, or all four sums. The intrinsic covers a whole tile of outputs: pixels are
paired row by row; sums are interleaved before the reduction and deinterleaved behind it, once, so that bias and
epilogue see plain channels. An odd pixel is paired with itself.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvmflow.ir.tir.blocks import Kernel, extents
from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, Sized, find_instruction
from tvmflow.schedules.template import anchor_of, dtypes_of, tile_sizes, window_steps
from tvmflow.targets.cpu_features import CpuFeatures

PAIRED_CONVOLUTION = "conv2d_paired"  # block whose weights are (OC, IC, KH, KW, words, 8, 8 bytes)
PAIRED_LANES = 8  # channels of a block of the image and of the outputs
PAIRED_BYTES = 8  # bytes of input channels that one instruction sums
_REGISTERS = 32
_MOST_UNROLLED = 11  # columns of a filter that are unrolled
_MOST_PLACES = 9  # taps of a filter that LLVM unrolls completely

_SHUFFLES = """
define weak_odr <4 x i32> @tvmflow_pairs_low(<4 x i32> %a, <4 x i32> %b) alwaysinline nounwind {
  %r = shufflevector <4 x i32> %a, <4 x i32> %b, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  ret <4 x i32> %r
}
define weak_odr <4 x i32> @tvmflow_pairs_high(<4 x i32> %a, <4 x i32> %b) alwaysinline nounwind {
  %r = shufflevector <4 x i32> %a, <4 x i32> %b, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  ret <4 x i32> %r
}
define weak_odr <4 x i32> @tvmflow_pairs_join(<2 x i32> %a, <2 x i32> %b) alwaysinline nounwind {
  %r = shufflevector <2 x i32> %a, <2 x i32> %b, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  ret <4 x i32> %r
}
"""
_MULTIPLY = """
define weak_odr <4 x i32> @tvmflow_pairs_{name}\
(<4 x i32> %sum, <4 x i32> %a, <4 x i32> %b, ptr %0) alwaysinline nounwind {{
  %s = bitcast <4 x i32> %sum to {sum}
  %x = bitcast <4 x i32> %a to {packed}
  %y = bitcast <4 x i32> %b to {packed}
  %p = call {sum} @{llvm}({sum} %s, {packed} %x, {packed} %y)
  %r = bitcast {sum} %p to <4 x i32>
  ret <4 x i32> %r
}}
declare {sum} @{llvm}({sum}, {packed}, {packed})
"""


@dataclass(frozen=True)
class Mmla(Instruction):
    """A matrix multiply-accumulate instruction. weight, total: dtypes; llvm: name of LLVM's intrinsic."""

    weight: str
    total: str
    llvm: str

    @property
    def group(self) -> int:
        """Return how many neighbouring input channels an instruction sums."""
        return 4 if self.data == "bfloat16" else 8

    @property
    def imports(self) -> str:
        """Return LLVM code of the functions that the body calls."""
        sums, packed = ("<4 x float>", "<8 x bfloat>") if self.data == "bfloat16" else ("<4 x i32>", "<16 x i8>")
        return _SHUFFLES + _MULTIPLY.format(name=self.name, llvm=self.llvm, sum=sums, packed=packed)


PAIRS = (
    Mmla(14, "smmla", "i8mm", "int8", "int8", "int32", "llvm.aarch64.neon.smmla.v4i32.v16i8"),
    Mmla(15, "usmmla", "i8mm", "uint8", "int8", "int32", "llvm.aarch64.neon.usmmla.v4i32.v16i8"),
    Mmla(16, "bfmmla", "bf16", "bfloat16", "bfloat16", "float32", "llvm.aarch64.neon.bfmmla"),
)


@dataclass(frozen=True)
class PairTile(Sized):
    """A tile of outputs: c blocks of channels x h rows x w pixels, reduced over blocks of input channels x kh x kw.

    number: of the instruction.
    """

    PREFIX: ClassVar[str] = "tvmflow.pairs"
    SIZES: ClassVar[str] = r"(?:_\d{1,6}){11}"
    number: int
    c: int
    h: int
    w: int
    blocks: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int

    @property
    def row(self) -> Mmla:
        return next(row for row in PAIRS if row.number == self.number)

    @property
    def is_possible(self) -> bool:
        known = any(row.number == self.number for row in PAIRS)
        return known and 0 < self.c * self.h * self.w and self.c * (self.h * self.w + 1) * 2 <= _REGISTERS

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (blocks, rows, columns, 8), weights (c, blocks, kh, kw, words, 8, group) and
        sums (c, h, w, 8).
        """
        row, lanes = self.row, PAIRED_LANES
        high = (self.h - 1) * self.sh + (self.kh - 1) * self.dh + 1
        wide = (self.w - 1) * self.sw + (self.kw - 1) * self.dw + 1
        place = f"vh * {self.sh} + vy * {self.dh}, vw * {self.sw} + vx * {self.dw}, vu * {row.group} + vq"
        weights = (self.c, self.blocks, self.kh, self.kw, self.words, lanes, row.group)
        return Intrinsic(
            self.name,
            "ohwviyxuq",
            (self.c, self.h, self.w, lanes, self.blocks, self.kh, self.kw, self.words, row.group),
            Operand(row.data, (self.blocks, high, wide, lanes), f"vi, {place}", "block, row, 8, 1"),
            Operand(row.weight, weights, "vo, vi, vy, vx, vu, vv, vq"),
            Operand(row.total, (self.c, self.h, self.w, lanes), "vo, vh, vw, vv", "sums, line, 8, 1"),
            self._body(),
            row.imports,
        )

    @property
    def words(self) -> int:
        """Return how many registers hold a pair of pixels."""
        return PAIRED_LANES // self.row.group

    def _body(self) -> str:
        row, pairs = self.row, _pixel_pairs(self.h, self.w)
        weights = list(itertools.product(range(self.c), range(PAIRED_LANES // 2)))  # blocks, pairs of channels
        sums = {place: at for at, place in enumerate((o, j, p) for o, j in weights for p in range(len(pairs)))}
        lines = [f'S = T.alloc_local(({len(sums)}, 4), "int32")']
        for (o, j, p), at in sums.items():
            loads = [f'C.vload([{o}, {y}, {x}, {j // 2 * 4}], dtype="{row.total}x4")' for y, x in pairs[p]]
            values = [_cast_to_words(load, row.total) for load in loads]
            value = _extern_call("high" if j % 2 else "low", values[0], values[-1])
            lines.append(f"S[{at}, T.ramp(0, 1, 4)] = {value}")
        lines += [
            f"for i, y in T.grid({self.blocks}, {self.kh}):",
            f"    for x in {'T.unroll' if self.kw <= _MOST_UNROLLED else 'T.serial'}({self.kw}):",
        ]
        lines += [" " * 8 + line for p, pair in enumerate(pairs) for line in self._load_pixels(p, pair)]
        for (o, j), u in itertools.product(weights, range(self.words)):
            load = f'B.vload([{o}, i, y, x, {u}, {2 * j}, 0], dtype="{row.weight}x{2 * row.group}")'
            lines.append(f"        b{o}_{j}_{u} = {_cast_to_words(load, row.weight)}")
            for p in range(len(pairs)):
                at = sums[o, j, p]
                value = _extern_call(row.name, _load_sums(at), f"a{p}_{u}", f"b{o}_{j}_{u}", "A.data")
                lines.append(f"        S[{at}, T.ramp(0, 1, 4)] = {value}")
        for (o, j, p), at in sums.items():
            for side, (y, x) in zip(("low", "high"), () if j % 2 else pairs[p], strict=False):
                # combined with the register of the next pair of channels of the same pixels
                value = _extern_call(side, _load_sums(at), _load_sums(sums[o, j + 1, p]))
                value = value if row.total == "int32" else f'T.reinterpret({value}, dtype="{row.total}x4")'
                lines.append(f"C[{o}, {y}, {x}, T.ramp({2 * j}, 1, 4)] = {value}")
        return "\n".join(" " * 8 + line for line in lines)

    def _load_pixels(self, number: int, pair: list[tuple[int, int]]) -> list[str]:
        """Return the loads of a pair of pixels."""

        def load(pixel: tuple[int, int], values: int) -> str:
            h, w = pixel
            return (
                f"A.vload([i, {h * self.sh} + y * {self.dh}, {w * self.sw} + x * {self.dw}, 0], "
                f'dtype="{self.row.data}x{values}")'
            )

        if self.words == 2:
            lines = [f"p{number}_{k} = {_cast_to_words(load(pixel, 8), self.row.data)}" for k, pixel in enumerate(pair)]
            names = f"p{number}_0", f"p{number}_{len(pair) - 1}"
            return lines + [f"a{number}_{u} = {_extern_call(side, *names)}" for u, side in enumerate(("low", "high"))]
        if _are_neighbours(pair, self.sw):
            return [f"a{number}_0 = {_cast_to_words(load(pair[0], 16), self.row.data)}"]
        lines = [f'p{number}_{k} = T.reinterpret({load(pixel, 8)}, dtype="int32x2")' for k, pixel in enumerate(pair)]
        return [*lines, f"a{number}_0 = {_extern_call('join', f'p{number}_0', f'p{number}_{len(pair) - 1}')}"]


def _load_sums(at: int) -> str:
    return f'S.vload([{at}, 0], dtype="int32x4")'


def _cast_to_words(value: str, dtype: str) -> str:
    return value if dtype == "int32" else f'T.reinterpret({value}, dtype="int32x4")'


def _extern_call(name: str, *arguments: str) -> str:
    return f'T.call_extern("int32x4", "tvmflow_pairs_{name}", {", ".join(arguments)})'


def find_mmla(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> Mmla | None:
    """Return the instruction for a convolution with paired weights, None for others."""
    if kernel.anchor is None or not kernel.anchor.startswith(PAIRED_CONVOLUTION):
        return None
    return find_instruction(PAIRS, cpu, dtypes_of(schedule, kernel)[1])


def _pixel_pairs(h: int, w: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of pixels of a tile, (row, column) each, row by row; the last may be a single pixel."""
    places = [(y, x) for y in range(h) for x in range(w)]
    return [places[at : at + 2] for at in range(0, len(places), 2)]


def _are_neighbours(pair: list[tuple[int, int]], stride: int) -> bool:
    """Whether two pixels are contiguous in memory."""
    return len(pair) == 2 and stride == 1 and pair[0][0] == pair[1][0]


def rank_mmla_tiles(schedule: Any, kernel: Kernel, row: Mmla) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest instructions first."""
    block, (_, channels, height, width, _, _, kh, kw, words, _) = anchor_of(schedule, kernel)
    (sh, _), (sw, _) = window_steps(block)

    def fits(point: tuple[int, int, int]) -> bool:
        weights, pairs = point[0] * PAIRED_LANES // 2, len(_pixel_pairs(*point[1:]))
        return weights * pairs + min(weights, pairs) + 2 <= _REGISTERS

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Return instructions per output for 8 input channels, with columns of the filter unrolled, and few rows, too.

        Weights of the first block of channels are loaded in pairs; pixels once for all unrolled taps. Too few sums do
        not hide the latency.
        """
        c, h, w = point
        pairs = _pixel_pairs(h, w)
        columns = min((w - 1) * sw + kw, w * kw)
        rows = min((h - 1) * sh + kh, h * kh) if kh * kw <= _MOST_PLACES else h * kh
        apart = sum(not _are_neighbours(pair, sw) for pair in pairs) if words == 1 else len(pairs) * words
        image = rows * columns if apart else rows * (columns - 1 if kw > 1 else w / 4)
        sums = c * PAIRED_LANES // 2 * len(pairs)
        of_tap = sums * words + (c - 0.5) * (PAIRED_LANES // 2) * words + apart
        return ((of_tap * kh * kw + image) / (c * h * w) / min(sums, 8), h, -w)

    return sorted(filter(fits, tile_sizes((channels, height, width), (4, 4, 28))), key=cost)[:24]


def tensorize_mmla(schedule: Any, row: Mmla, anchor: Any, outermost: Any) -> None:
    """Tensorize the innermost tile of a convolution's outputs."""
    block = schedule.get(anchor)
    (sh, dh), (sw, dw) = window_steps(block)
    c, h, w, _, blocks, kh, kw, _, _ = extents(schedule, schedule.get_loops(anchor)[-9:])
    tile = PairTile(row.number, c, h, w, blocks, kh, kw, sh, sw, dh, dw)
    tile.intrinsic.tensorize_tile(schedule, anchor, outermost)
