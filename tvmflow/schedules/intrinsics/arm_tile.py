"""Define tensor intrinsics of arm64 that sum a whole tile of outputs in registers, over all blocks of input channels.

Written in assembly: LLVM keeps more values than registers between its steps and spills them, loads at most two
registers at once and one by one beyond the offset of a pair. A step takes eight input channels of all pixels, whose
registers stay, and multiplies them by lane with weights, which are loaded four registers at a time, in the order of
memory, for each block of output channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvmflow.ir.tir.blocks import extents
from tvmflow.schedules.intrinsics.assembly import LOADED_BIAS, AssemblyCall
from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, Sized, find_instruction
from tvmflow.schedules.template import tile_sizes
from tvmflow.targets.cpu_features import CpuFeatures

_REGISTERS = 32
_CHANNELS = 8  # of a block of the image and of the outputs
_FARTHEST = 31  # pixels: the offset of a load of two registers is at most 1008 bytes
_WHOLE = 4  # steps up to which there is no loop
_SUMS_FOR_LATENCY = 8
_AHEAD = 2  # groups of weights in registers

_PARAMETERS = "ptr %c, i64 %sums, i64 %line, ptr %a, i64 %block, i64 %row, ptr %b, i64 %panel, i64 %group"


@dataclass(frozen=True)
class TileMla(Instruction):
    """A multiply-accumulate instruction by a lane, for tiles.

    weight, total: dtypes; operands: of the instruction in assembly, by the names of sum, weights and pixel; words: how
    many multiplications take the eight channels of a pixel; pixels: in a register; registers: of the pixel's channels,
    of the sums of a block of channels, of the weights of a word.
    """

    weight: str
    total: str
    operands: str
    words: int
    pixels: int
    registers: tuple[int, int, int]

    @property
    def group(self) -> int:
        """Return how many neighbouring input channels an instruction sums."""
        return _CHANNELS // self.words


TILES = (
    TileMla(181, "fmla", "neon", "float32", "float32", "float32", "{c}.4s, {w}.4s, {p}.s[{lane}]", 8, 1, (2, 2, 2)),
    TileMla(182, "fmla", "fp16", "float16", "float16", "float16", "{c}.8h, {w}.8h, {p}.h[{lane}]", 8, 1, (1, 1, 1)),
    TileMla(183, "sdot", "dotprod", "int8", "int8", "int32", "{c}.4s, {w}.16b, {p}.4b[{lane}]", 2, 2, (1, 2, 2)),
)


@dataclass(frozen=True)
class LaneTile(Sized):
    """A tile of outputs: c blocks of channels x h rows x w pixels, reduced over blocks of input channels.

    number: of the instruction; sh, sw: distance of pixels; taps: of the filter, whose weights lie between those of two
    blocks of input channels; 0 for Winograd's products, whose weights are behind the places of a tile.
    """

    PREFIX: ClassVar[str] = "tvmflow.tile"
    SIZES: ClassVar[str] = r"(?:_\d{1,6}){8}"
    number: int
    c: int
    h: int
    w: int
    blocks: int
    sh: int
    sw: int
    taps: int

    @property
    def of(self) -> TileMla:
        return next(row for row in TILES if row.number == self.number)

    @property
    def is_possible(self) -> bool:
        known = any(row.number == self.number for row in TILES)
        small = max(self.c, self.h, self.w, self.sh, self.sw) <= _REGISTERS and self.blocks <= 1 << 16
        return bool(known and small and math.prod(self._sizes) and self.unit and self._columns_in_reach)

    @property
    def _columns_in_reach(self) -> bool:
        """Whether a load of two registers reaches the last pixel of a row."""
        return self.joined or (self.w - 1) * self.sw <= _FARTHEST

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (self.c, self.h, self.w, self.blocks, self.sh, self.sw)

    @property
    def joined(self) -> bool:
        """Whether the pixels of a row are contiguous, and loaded as such."""
        return self.sw == 1

    @property
    def row_registers(self) -> int:
        """Return how many registers hold a row of pixels."""
        return -(-self.w // self.of.pixels) * self.of.registers[0] if self.joined else self.w * self.of.registers[0]

    @property
    def sums(self) -> int:
        return self.c * self.h * self.w * self.of.registers[1]

    @property
    def unit(self) -> int:
        """Return how many registers of weights are loaded at once, 0 if none is left for them."""
        left = _REGISTERS - self.sums - self.h * self.row_registers
        fits = [size for size in (4, 2, 1) if size <= left]
        return fits[0] if fits and self._pixels_in_reach else 0

    @property
    def buffers(self) -> int:
        """Return how many groups of weights are in registers, for cores in order, which wait for what they load.

        In short sums LLVM has more use of the registers.
        """
        if self.together == self.blocks:
            return 1
        left = _REGISTERS - self.sums - self.h * self.row_registers
        return min(left // self.unit, _AHEAD)

    @property
    def _pixels_in_reach(self) -> bool:
        """Whether registers of pixels can be operands by lane: of halves the first 16 only."""
        return self.of.data != "float16" or self.h * self.row_registers <= _REGISTERS // 2

    @property
    def together(self) -> int:
        """Return how many steps a pass of the loop has."""
        return self.blocks if self.blocks <= _WHOLE else next((n for n in (2, 3) if self.blocks % n == 0), 1)

    @property
    def instructions(self) -> float:
        """Return how many instructions the tile takes, the sums' start and end included."""
        of = self.of
        products = self.sums * of.words
        weights = self.c * of.words * of.registers[2] / self.unit
        image = self.h * len(self._row_loads())
        step = products + weights + image + self.h + self.c * (self.taps > 1)
        passes = self.blocks / self.together if self.together < self.blocks else 0
        return max(self.taps, 1) * (self.blocks * step + 2 * passes + 4 + self.h + self.c) + 3.5 * self.sums + 6

    def _row_loads(self) -> list[int]:
        """Return the sizes of the loads of a row, in registers."""
        if not self.joined:
            return [self.of.registers[0]] * self.w
        left, sizes = self.row_registers, []
        odd = self.w % self.of.pixels  # the last register is half full
        left -= bool(odd)
        while left:
            sizes.append(min(left, 4))
            left -= sizes[-1]
        return [*sizes, 0] if odd else sizes

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (blocks, rows, columns, 8), weights (c, blocks, 1, 1, 8, 8) and sums (c, h, w,
        8); of weights the last axes are (words, 8, group) if an instruction sums several channels.
        """
        of, several = self.of, self.of.group > 1
        high, wide = (self.h - 1) * self.sh + 1, (self.w - 1) * self.sw + 1
        channel = f"vu * {of.group} + vq" if several else "vu"
        place, apart = ("vi, 0, 0", "group, down, right") if self.taps else ("0, 0, vi", "down, right, group")
        outer = (self.blocks, 1, 1) if self.taps else (1, 1, self.blocks)
        shape = (self.c, *outer, of.words, _CHANNELS, of.group)[: 6 + several]
        inner, strides = ("vu, vv, vq", f"{8 * of.group}, {of.group}, 1") if several else ("vu, vv", "8, 1")
        return Intrinsic(
            self.name,
            "ohwviuq",
            (self.c, self.h, self.w, _CHANNELS, self.blocks, of.words, of.group),
            Operand(
                of.data,
                (self.blocks, high, wide, _CHANNELS),
                f"vi, vh * {self.sh}, vw * {self.sw}, {channel}",
                "block, row, 8, 1",
            ),
            Operand(of.weight, shape, f"vo, {place}, {inner}", f"panel, {apart}, {strides}"),
            Operand(of.total, (self.c, self.h, self.w, _CHANNELS), "vo, vh, vw, vv", "sums, line, 8, 1"),
            self._body(len(shape)),
            self._function() + LOADED_BIAS.text * (of.total == "int32"),
            from_bias=of.total == "int32",
        )

    def _body(self, axes: int) -> str:
        zeros = ", ".join(["0"] * axes)
        return (
            f'        T.evaluate(T.call_extern("int32", "{self._symbol}", T.address_of(C[0, 0, 0, 0]), sums, line, '
            f"T.address_of(A[0, 0, 0, 0]), block, row, T.address_of(B[{zeros}]), panel, group, A.data))"
        )

    @property
    def _symbol(self) -> str:
        return self.name.replace(".", "_")

    def _function(self) -> str:
        """Return the LLVM code of the tile: sums are loaded, passed through the assembly, and stored."""
        of, places = self.of, self._places()
        bits = {"float32": 32, "float16": 16, "int32": 32}[of.total]
        vector = f"<{128 // bits} x {({'float32': 'float', 'float16': 'half', 'int32': 'i32'})[of.total]}>"
        before = []
        for at, (o, h, w, part) in enumerate(places):
            before += [
                f"  %o{at} = mul i64 %sums, {o}",
                f"  %h{at} = mul i64 %line, {h}",
                f"  %p{at} = add i64 %o{at}, %h{at}",
                f"  %q{at} = add i64 %p{at}, {w * _CHANNELS + part * 128 // bits}",
                f"  %c{at} = getelementptr {vector.split()[-1][:-1]}, ptr %c, i64 %q{at}",
                f"  %s{at} = load {vector}, ptr %c{at}, align 16",
            ]
        size = {"float32": 4, "float16": 2, "int8": 1}[of.data]
        for h in range(self.h):
            before += [
                f"  %y{h} = mul i64 %row, {h * self.sh * size}",
                f"  %x{h} = getelementptr i8, ptr %a, i64 %y{h}",
            ]
        for o in range(self.c):
            before += [f"  %z{o} = mul i64 %panel, {o * size}", f"  %w{o} = getelementptr i8, ptr %b, i64 %z{o}"]
        moved = self.w * _CHANNELS * size if self.joined else 0
        before += [f"  %plane = mul i64 %block, {size}", f"  %rest = sub i64 %plane, {moved}"]
        before += [f"  %between = mul i64 %group, {size}", f"  %gap = sub i64 %between, {_CHANNELS**2 * size}"]
        pointers = [*(f"x{h}" for h in range(self.h)), *(f"w{o}" for o in range(self.c))]
        looped = self.together < self.blocks
        changing = [("ptr", f"%{one}") for one in pointers] + [("i64", f"{self.blocks // self.together}")] * looped
        used = self.h * self.row_registers + self.unit * self.buffers
        changed = [*(f"v{at}" for at in range(used)), "memory", *["cc"] * looped]
        inputs = [("r", "i64 %rest"), ("r", "i64 %gap")]
        call = AssemblyCall(vector, len(places), changing, inputs, changed, self._assembly())
        return call.function(self._symbol, _PARAMETERS, before)

    def _places(self) -> list[tuple[int, int, int, int]]:
        """Return block, row, column and part of each register of sums."""
        return [
            (o, h, w, part)
            for o in range(self.c)
            for h in range(self.h)
            for w in range(self.w)
            for part in range(self.of.registers[1])
        ]

    def _assembly(self) -> list[str]:
        """Return the instructions. Operands are sums, pointers of rows and of weights, the counter."""
        first = len(self._places())
        counter = first + self.h + self.c
        looped = self.together < self.blocks
        steps = self._pass(first, 2 * (counter + looped))  # behind the outputs, which are inputs, too
        return ["1:", *steps, f"subs ${{{counter}}}, ${{{counter}}}, #1", "b.ne 1b"] if looped else steps

    def _pass(self, first: int, fixed: int) -> list[str]:
        """Return the instructions of the steps of a pass. first: operand of the first row's pointer; fixed: that of the
        distance of planes.

        Weights are loaded ahead of their products where registers are left.
        """
        total, lines = self.of.words * self.of.registers[2], []
        groups = [
            (step, at, o) for step in range(self.together) for at in range(0, total, self.unit) for o in range(self.c)
        ]
        begin, loaded = self.h * self.row_registers, 0
        for index, (_, at, o) in enumerate(groups):
            if at == o == 0:
                lines += [line for h in range(self.h) for line in self._load_row(h, first + h)]
                lines += [f"add ${{{first + h}}}, ${{{first + h}}}, ${{{fixed}}}" for h in range(self.h)]
            while loaded < min(index + self.buffers, len(groups)):
                later, part, block = groups[loaded]
                lines += self._gap(first + self.h + block, fixed) if later and part == 0 else []
                start = begin + loaded % self.buffers * self.unit
                lines.append(_load(start, self.unit, first + self.h + block))
                loaded += 1
            lines += self._products(o, range(at, min(at + self.unit, total)), begin + index % self.buffers * self.unit)
        return [*lines, *(line for o in range(self.c) for line in self._gap(first + self.h + o, fixed))]

    def _gap(self, pointer: int, fixed: int) -> list[str]:
        """Return the instruction that moves a pointer of weights to those of the next block of input channels."""
        return [f"add ${{{pointer}}}, ${{{pointer}}}, ${{{fixed + 1}}}"] if self.taps > 1 else []

    def _products(self, o: int, weights: range, start: int) -> list[str]:
        """Return the products of a block of channels with weights of a step, in registers from `start` on."""
        of, lines = self.of, []
        for k in weights:
            for index, (block, h, w, part) in enumerate(self._places()):
                if (block, part) == (o, k % of.registers[2]):
                    register, lane = self._pixel(h, w, k // of.registers[2])
                    operands = of.operands.format(
                        c=f"${{{index}}}", w=f"v{start + k - weights[0]}", p=f"v{register}", lane=lane
                    )
                    lines.append(f"{of.name} {operands}")
        return lines

    def _load_row(self, h: int, pointer: int) -> list[str]:
        of, at = self.of, h * self.row_registers
        if not self.joined:
            size = {"float32": 32, "float16": 16, "int8": 8}[of.data]
            name = {"float32": "ldp q{0}, q{1}", "float16": "ldr q{0}", "int8": "ldr d{0}"}[of.data]
            registers = of.registers[0]
            return [
                f"{name.format(at + w * registers, at + w * registers + 1)}, [${{{pointer}}}, #{w * self.sw * size}]"
                for w in range(self.w)
            ]
        lines = []
        for size in self._row_loads():
            lines.append(_load(at, size, pointer) if size else f"ldr d{at}, [${{{pointer}}}], #8")
            at += size
        return lines

    def _pixel(self, h: int, w: int, word: int) -> tuple[int, int]:
        """Return register and lane of the channels that a word multiplies, of a pixel."""
        of, at = self.of, h * self.row_registers
        lanes = of.words // of.registers[0]  # of a pixel, in a register
        if of.pixels > 1 and self.joined:
            return at + w // of.pixels, w % of.pixels * lanes + word
        return at + w * of.registers[0] + word // lanes, word % lanes


def _load(register: int, size: int, pointer: int) -> str:
    """Return the load of consecutive registers; the pointer is moved behind them."""
    if size == 1:
        return f"ldr q{register}, [${{{pointer}}}], #16"
    names = ", ".join(f"v{register + at}.16b" for at in range(size))
    return f"ld1 {{ {names} }}, [${{{pointer}}}], #{16 * size}"


def find_tile(cpu: CpuFeatures, dtypes: tuple[str, str, str], inner: Sequence[int]) -> TileMla | None:
    """Return the instruction for a convolution, None if there is none.

    dtypes: of data, weights, sums; inner: output channels of a block, input channels of a block in groups and of a
    group.
    """

    def fits(row: TileMla) -> bool:
        same = (row.weight, row.total) == tuple(dtypes[1:])
        return same and tuple(inner) == (_CHANNELS, row.words, row.group)

    return find_instruction(TILES, cpu, dtypes[0], fits)


def find_matrix_tile(cpu: CpuFeatures, dtype: str) -> TileMla | None:
    """Return the instruction for products of matrices in blocks of eight columns, None if there is none."""
    return find_tile(cpu, (dtype, dtype, dtype), (_CHANNELS, _CHANNELS, 1))


def summed_in_tiles(cpu: CpuFeatures) -> tuple[str, ...]:
    """Return the types of floats whose products of matrices are summed in tiles."""
    return tuple(dtype for dtype in ("float32", "float16") if find_matrix_tile(cpu, dtype))


def rank_tiles(
    row: TileMla, sizes: tuple[int, int, int], blocks: int, taps: int, steps: tuple[int, int]
) -> list[tuple[int, int, int]]:
    """Return the tiles (blocks of channels, rows, columns), those with the fewest instructions first.

    sizes: of the outputs; blocks: of input channels; steps: distance of rows and columns.
    """

    def cost(point: tuple[int, int, int]) -> tuple[float, int, int]:
        """Return instructions per output. Too few sums do not hide the latency."""
        tile = LaneTile(row.number, *point, blocks, *steps, taps)
        hidden = min(tile.sums, _SUMS_FOR_LATENCY) / _SUMS_FOR_LATENCY
        return (tile.instructions / math.prod(point) / hidden, point[1], -point[2])

    points = [
        point
        for point in tile_sizes(sizes, (4, 4, 16))
        if LaneTile(row.number, *point, blocks, *steps, taps).is_possible
    ]
    return sorted(points, key=cost)[:8]


def tensorize_tile(
    schedule: Any,
    row: TileMla,
    block: Any,
    loops: Sequence[Any],
    taps: int,
    steps: tuple[int, int],
    outermost: Any,
) -> None:
    """Sum a tile by one intrinsic.

    loops: those that stay outside; blocks of channels, rows, columns, lanes; blocks of input channels and words, and,
    if an instruction sums several channels, these. taps: see LaneTile.
    """
    count = 6 + (row.group > 1)
    outer, inner = list(loops[:-count]), list(loops[-count:])
    sizes = extents(schedule, inner)
    once = [loop for loop, size in zip(inner, sizes, strict=True) if size == 1]
    many = [loop for loop, size in zip(inner, sizes, strict=True) if size > 1]
    schedule.reorder(*outer, *once, *many)
    c, h, w, _, blocks, *_ = sizes
    tile = LaneTile(row.number, c, h, w, blocks, *steps, taps)
    tile.intrinsic.tensorize(schedule, block, [*outer, *once, *many][0], many[0], outermost)
