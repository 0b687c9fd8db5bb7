"""Define tensor intrinsics of AMX tiles: initialize sums in tile registers, sum and store a tile.

Tile registers are configured once for all tiles of a thread's share (HoistAmxConfig).
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, fields
from functools import cache

from tvmflow.schedules.template import describe_axes, divisors, register_intrinsic

LANES = 16  # channels of a block; int32 or float32 values in a row of a tile
ROWS, ROW_BYTES, REGISTERS = 16, 64, 8
_NEAR = 48 << 10  # bytes of the L1 cache of processors with AMX

_SOURCE = """
@T.prim_func(s_tir=True)
def function(a: T.handle, b: T.handle, c: T.handle) -> None:
    {unit}row, pixel, sums, line = {unit_type}T.int64(), T.int64(), T.int64(), T.int64()
    A = T.match_buffer(a, ({image}), "{data}", strides=[{steps}, 1], offset_factor=1)
    B = T.match_buffer(b, ({c}, {kh}, {kw}, {blocks}, {words}, 16, {group}), "{weight}", offset_factor=1)
    C = T.match_buffer(c, ({c}, {h}, {w}, 16), "{total}", strides=[sums, line, 16, 1], offset_factor=1, scope="local")
    with T.sblock("root"):
        T.reads(C[0:{c}, 0:{h}, 0:{w}, 0:16], A[{whole}],
                B[0:{c}, 0:{kh}, 0:{kw}, 0:{blocks}, 0:{words}, 0:16, 0:{group}])
        T.writes(C[0:{c}, 0:{h}, 0:{w}, 0:16])
{body}
"""
_MEANING = """
        for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                C[{vo}, {vh}, {vw}, {vv}] = C[{vo}, {vh}, {vw}, {vv}] + T.Cast(
                    "{total}", A[{pixel}, {vu} * {group} + {vq}]
                ) * T.Cast("{total}", B[{vo}, {vy}, {vx}, {vi}, {vu}, {vv}, {vq}])
"""
_ZERO = """
@T.prim_func(s_tir=True)
def function(c: T.handle) -> None:
    sums, line = T.int64(), T.int64()
    C = T.match_buffer(c, ({c}, {h}, {w}, 16), "{total}", strides=[sums, line, 16, 1], offset_factor=1, scope="local")
    with T.sblock("root"):
        T.reads()
        T.writes(C[0:{c}, 0:{h}, 0:{w}, 0:16])
{body}
"""
_ZERO_MEANING = """
        for {loops} in T.grid({extents}):
            with T.sblock("init"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                C[{vo}, {vh}, {vw}, {vv}] = T.{total}(0)
"""
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
class Tile:
    """A tile of outputs: c blocks of channels x h rows x w pixels, reduced over kh x kw x blocks of `inner` channels.

    plain: 1 if an image of one block is read without a copy, (block, row, pixel, channel); 0: (row, pixel, block,
    channel). joined: 1 if the columns of a filter row are contiguous, so that an instruction may sum several. ph, py:
    distance in pixels of output rows and of filter rows if the rows of the image are joined, else 0.
    """

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
    def intrinsic_name(self) -> str:
        return "tvmflow.tiles_" + "_".join(str(value) for value in astuple(self))

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
    def registers(self) -> int:
        """Return how many registers a tile needs."""
        return registers_of(self.c, self.h)

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

    @property
    def imports(self) -> str:
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

    def zeros(self) -> str:
        """Return the TVMScript body of the intrinsic that initializes the sums, which stay in registers."""
        lines = [_extern_call(8, self.configure.removeprefix("tvmflow_"))]
        return "\n".join([*lines, *(_extern_call(8, f"tilezero_{tile}") for tile in range(self.c * self.h))])

    def instructions(self) -> str:
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
        # A.data is passed so that TVM does not widen the buffer to float32, as it does with only loads and stores.
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


def register_tiles_in(trace: str) -> None:
    """Register the intrinsics that a trace names."""
    for tile in tiles_in(trace):
        register_tile(tile)


def tiles_in(trace: str) -> list[Tile]:
    """Return the tiles that a trace names, without impossible ones."""
    names = set(re.findall(r"tvmflow\.tiles_(u?int8|bfloat16)((?:_\d{1,6}){15})(?![\d])", trace))
    tiles = [Tile(data, *(int(value) for value in sizes.split("_")[1:])) for data, sizes in names]
    return [tile for tile in tiles if _is_possible(tile)]


def _is_possible(tile: Tile) -> bool:
    """Whether the registers suffice for a tile, and its sizes are supported."""
    fits = min(tile.c, tile.h, tile.w, tile.blocks) > 0 and tile.w <= ROWS and tile.registers <= REGISTERS
    return fits and tile.inner in (4, 8, 16) and tile.plain <= 1 and tile.joined <= 1


@cache
def register_tile(tile: Tile) -> str:
    """Register the intrinsics of a tile and return the name; the one with the suffix _zero initializes its sums."""
    group = 2 if tile.data == "bfloat16" else 4
    sizes = (tile.c, tile.h, tile.w, LANES, tile.kh, tile.kw, tile.blocks, tile.inner // group, group)
    axes = describe_axes("ohwvyxiuq", sizes)
    column = (
        f"{axes['vw']} * {tile.sw} + {axes['vx']} * {tile.dw} + {axes['vh']} * {tile.ph} + {axes['vy']} * {tile.py}"
    )
    place = f"{axes['vh']} * {tile.sh} + {axes['vy']} * {tile.dh}, {column}"
    high, wide = tile.window
    image = (tile.blocks, high, wide, tile.inner) if tile.plain else (high, wide, tile.blocks, tile.inner)
    values = {
        **axes,
        **{field.name: getattr(tile, field.name) for field in fields(tile)},
        "image": ", ".join(map(str, image)),
        "whole": ", ".join(f"0:{size}" for size in image),
        "unit": "unit, " if tile.plain else "",
        "unit_type": "T.int64(), " if tile.plain else "",
        "steps": "unit, row, pixel" if tile.plain else f"row, pixel, {tile.inner}",
        "pixel": f"{axes['vi']}, {place}" if tile.plain else f"{place}, {axes['vi']}",
        "words": tile.inner // group,
        "group": group,
        "weight": "bfloat16" if group == 2 else "int8",
        "total": "float32" if group == 2 else "int32",
    }
    register_intrinsic(
        f"{tile.intrinsic_name}_zero",
        _ZERO,
        _ZERO_MEANING,
        tile.zeros(),
        {**values, **describe_axes("ohwv", sizes[:4])},
    )
    return register_intrinsic(tile.intrinsic_name, _SOURCE, _MEANING, tile.instructions(), values)
