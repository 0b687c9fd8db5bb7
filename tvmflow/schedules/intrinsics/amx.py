"""Define tensor intrinsics of AMX tiles: initialize sums in tile registers, sum and store a tile.

Tile registers are configured once for all tiles of a thread's share (HoistAmxConfig).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from tvmflow.schedules.intrinsics.intrinsic import Intrinsic, Operand, Sized
from tvmflow.schedules.template import divisors

LANES = 16  # channels of a block; int32 or float32 values in a row of a tile
ROWS, ROW_BYTES, REGISTERS = 16, 64, 8
_NEAR = 48 << 10  # bytes of the L1 cache of processors with AMX

# A process requests the permission for AMX once (Linux: arch_prctl); without it ldtilecfg traps.
_CONFIGURE = """
@tvmflow_tiles_allowed = weak_odr hidden global i32 0
@{name}_shape = weak_odr hidden constant [64 x i8] [{shape}], align 64
define weak_odr i32 @{name}() alwaysinline nounwind {{
  %allowed = load i32, ptr @tvmflow_tiles_allowed
  %unasked = icmp eq i32 %allowed, 0
  br i1 %unasked, label %ask, label %ready
ask:
  %r = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  store i32 1, ptr @tvmflow_tiles_allowed
  br label %ready
ready:
  call void asm sideeffect "ldtilecfg ($0)", "r,~{{memory}}"(ptr @{name}_shape)
  ret i32 0
}}
declare i64 @syscall(i64, ...)
"""
# These are inline assembly: LLVM would rename tile registers of its own intrinsics after they are configured.
_MOVE = """
define weak_odr i32 @tvmflow_{name}_{tile}(ptr %at, i64 %step) alwaysinline nounwind {{
  call void asm sideeffect "{name} {operands}", "r,r,~{{memory}}"(ptr %at, i64 %step)
  ret i32 0
}}
"""
_CLEAR = """
define weak_odr i32 @tvmflow_tilezero_{tile}() alwaysinline nounwind {{
  call void asm sideeffect "tilezero %tmm{tile}", ""()
  ret i32 0
}}
"""
_MULTIPLY = """
define weak_odr i32 @tvmflow_{name}_{sums}_{pixels}_{weights}() alwaysinline nounwind {{
  call void asm sideeffect "{name} %tmm{weights}, %tmm{pixels}, %tmm{sums}", ""()
  ret i32 0
}}
"""
RELEASED = "tvmflow_tilerelease"
_RELEASE = """
define weak_odr i32 @tvmflow_tilerelease(ptr %0) alwaysinline nounwind {
  call void asm sideeffect "tilerelease", ""()
  ret i32 0
}
"""
STORED = "tvmflow_tilestored_"  # prefix of the functions that store sums
CONFIGURED = "tvmflow_tiles_"  # prefix of the functions that configure tiles
_INSTRUCTIONS = {"uint8": "tdpbusd", "int8": "tdpbssd", "bfloat16": "tdpbf16ps"}


@dataclass(frozen=True)
class Tile(Sized):
    """A tile of outputs: c blocks of channels x h rows x w pixels, reduced over kh x kw x blocks of `inner` channels.

    plain: 1 if an image of one block is read without a copy, (block, row, pixel, channel); 0: (row, pixel, block,
    channel). joined: 1 if the columns of a filter row are contiguous, so that an instruction may sum several. ph, py:
    distance in pixels of output rows and of filter rows if the rows of the image are joined, else 0.
    """

    PREFIX: ClassVar[str] = "tvmflow.tiles"
    SIZES: ClassVar[str] = r"_(?:u?int8|bfloat16)(?:_\d{1,6}){15}"
    data: str
    c: int
    h: int
    w: int
    kh: int
    kw: int
    blocks: int
    inner: int
    plain: int
    joined: int
    sh: int
    sw: int
    dh: int
    dw: int
    ph: int = 0
    py: int = 0

    @property
    def is_possible(self) -> bool:
        fits = min(self.c, self.h, self.w, self.blocks) > 0 and registers_of(self.c, self.h) <= REGISTERS
        return fits and self.w <= ROWS and self.inner in (4, 8, 16) and max(self.plain, self.joined) <= 1

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (rows, columns, blocks, inner), weights (c, kh, kw, blocks, words, 16, group)
        and sums (c, h, w, 16); if plain, data (blocks, rows, columns, inner).

        The tile is initialized by its second intrinsic; the sums stay in registers.
        """
        weight, total, group = ("bfloat16", "float32", 2) if self.data == "bfloat16" else ("int8", "int32", 4)
        words, (high, wide) = self.inner // group, self.window
        place = f"vh * {self.sh} + vy * {self.dh}, vw * {self.sw} + vx * {self.dw} + vh * {self.ph} + vy * {self.py}"
        shape, index, strides = (high, wide, self.blocks, self.inner), f"{place}, vi", f"row, pixel, {self.inner}"
        if self.plain:
            shape, index, strides = (self.blocks, high, wide, self.inner), f"vi, {place}", "unit, row, pixel"
        weights = (self.c, self.kh, self.kw, self.blocks, words, LANES, group)
        return Intrinsic(
            self.name,
            "ohwvyxiuq",
            (self.c, self.h, self.w, LANES, self.kh, self.kw, self.blocks, words, group),
            Operand(self.data, shape, f"{index}, vu * {group} + vq", f"{strides}, 1"),
            Operand(weight, weights, "vo, vy, vx, vi, vu, vv, vq"),
            Operand(total, (self.c, self.h, self.w, LANES), "vo, vh, vw, vv", "sums, line, 16, 1"),
            self._body(),
            self._imports(),
            self._start(),
        )

    @property
    def size(self) -> int:
        """Return the bytes of an input value."""
        return 2 if self.data == "bfloat16" else 1

    @property
    def window(self) -> tuple[int, int]:
        """Return how many rows and columns of the image a tile reads."""
        high = (self.h - 1) * self.sh + (self.kh - 1) * self.dh + 1
        across = (self.h - 1) * self.ph + (self.kh - 1) * self.py  # if the rows of the image are joined
        return high, (self.w - 1) * self.sw + (self.kw - 1) * self.dw + across + 1

    @property
    def stays_near(self) -> bool:
        """Whether the L1 cache holds the tile's part of the image until the next row of the filter reads it again."""
        high, wide = self.window
        return self.kh * self.kw == 1 or high * wide * self.blocks * self.inner * self.size <= _NEAR

    @property
    def run(self) -> int:
        """Return how many contiguous words of four bytes are summed for a pixel."""
        return (self.kw if self.joined else 1) * self.blocks * self.inner * self.size // 4

    @property
    def depth(self) -> int:
        """Return how many words of four bytes one instruction sums."""
        return tile_depth(self.run)

    @property
    def configure(self) -> str:
        """Return the name of the function that configures the tiles."""
        return f"{CONFIGURED}{self.c}_{self.h}_{self.w}_{4 * self.depth}"

    @property
    def products(self) -> list[tuple[int, int, int]]:
        """Return the registers of a step's instructions: sums, pixels, weights.

        The sums come first, then the operand that stays; the other operand rotates through the remaining registers.
        """
        held, spare = self.c * self.h, REGISTERS - self.c * self.h - min(self.c, self.h)
        if self.h <= self.c:
            return [(o * self.h + h, held + h, held + self.h + o % spare) for o in range(self.c) for h in range(self.h)]
        return [(o * self.h + h, held + self.c + h % spare, held + o) for h in range(self.h) for o in range(self.c)]

    def _imports(self) -> str:
        """Return LLVM code of the functions that the bodies call."""
        sums, depth = self.c * self.h, self.depth
        pixels, weights = (self.w, 4 * depth), (depth, ROW_BYTES)
        shapes = [(self.w, ROW_BYTES)] * sums
        shapes += [pixels] * self.h if self.h <= self.c else [weights] * self.c
        shapes += [weights if self.h <= self.c else pixels] * (REGISTERS - len(shapes))
        table = bytearray(64)
        table[0] = 1  # the palette
        table[16:32] = b"".join(columns.to_bytes(2, "little") for _, columns in shapes)
        table[48:56] = bytes(rows for rows, _ in shapes)
        parts = [_CONFIGURE.format(name=self.configure, shape=", ".join(f"i8 {value}" for value in table)), _RELEASE]
        for tile in range(sums, REGISTERS):
            parts.append(_MOVE.format(name="tileloadd", tile=tile, operands=f"($0,$1,1), %tmm{tile}"))
        for tile in range(sums):
            parts.append(_CLEAR.format(tile=tile))
            parts.append(_MOVE.format(name="tilestored", tile=tile, operands=f"%tmm{tile}, ($0,$1,1)"))
        for total, pixel, weight in self.products:
            name = _INSTRUCTIONS[self.data]
            parts.append(_MULTIPLY.format(name=name, sums=total, pixels=pixel, weights=weight))
        return "".join(parts)

    def _start(self) -> str:
        """Return the TVMScript body of the intrinsic that initializes the sums, which stay in registers."""
        lines = [_extern_call(8, self.configure.removeprefix("tvmflow_"))]
        return "\n".join([*lines, *(_extern_call(8, f"tilezero_{tile}") for tile in range(self.c * self.h))])

    def _body(self) -> str:
        """Return the TVMScript body of the intrinsic that sums."""
        line, steps = f"T.int64({ROW_BYTES})", self.run // self.depth
        taps = [("y", self.kh)] if self.joined else [("y", self.kh), ("x", self.kw)]
        loops = [*taps, ("s", steps)] if self.stays_near else [("s", steps), *taps]
        x = "0" if self.joined else "x"
        names, sizes = (", ".join(str(loop[at]) for loop in loops) for at in (0, 1))
        lines = [f"        for {names} in T.grid({sizes}):"]
        for total, pixels, weights in self.products:
            o, h = divmod(total, self.h)
            if o == 0:  # an index past the end of an axis continues in the next one
                place = f"{h * self.sh} + y * {self.dh}, {x} * {self.dw} + {h * self.ph} + y * {self.py}"
                inner = f"s * {4 * self.depth // self.size}"
                address = f"A[0, {place}, {inner}]" if self.plain else f"A[{place}, 0, {inner}]"
                step = f"pixel * T.int64({self.sw * self.size})"
                lines.append(_extern_call(12, f"tileloadd_{pixels}", f"T.address_of({address})", step))
            if h == 0:
                address = f"B[{o}, y, {x}, 0, s * {self.depth}, 0, 0]"
                lines.append(_extern_call(12, f"tileloadd_{weights}", f"T.address_of({address})", line))
            lines.append(_extern_call(12, f"{_INSTRUCTIONS[self.data]}_{total}_{pixels}_{weights}"))
        for tile in range(self.c * self.h):
            o, h = divmod(tile, self.h)
            lines.append(_extern_call(8, f"tilestored_{tile}", f"T.address_of(C[{o}, {h}, 0, 0])", line))
        return "\n".join([*lines, _extern_call(8, RELEASED.removeprefix("tvmflow_"), "A.data")])


def _extern_call(indent: int, name: str, *arguments: str) -> str:
    given = ", ".join(('"int32"', f'"tvmflow_{name}"', *arguments))
    return " " * indent + f"T.evaluate(T.call_extern({given}))"


def registers_of(c: int, h: int) -> int:
    """Return the registers of c x h sums, one operand that stays and one register of the other."""
    return c * h + min(c, h) + 1


def tile_depth(run: int) -> int:
    """Return how many of `run` words of four bytes one instruction sums."""
    return max(divisors(run, ROW_BYTES // 4))
