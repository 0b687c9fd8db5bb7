"""Matrix tiles (x86 AMX): sums of up to 16 pixels x 16 channels, over up to 64 bytes of input channels at a time.

One instruction multiplies a tile of pixels (rows) by a tile of weights. Both are read from memory with a constant step
between rows, so the image is copied with all channels of a pixel side by side, beside its padding, and weights lie
(OC, KH, KW, IC, ...). A tensor intrinsic is a whole tile of outputs: sums enter and leave registers once.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, fields
from functools import cache
from typing import Any

from tvmflow.kernels.blocks import Kernel, block_ref, extents, region_buffer
from tvmflow.targets.cpu_features import TILES_FOR, CpuFeatures
from tvmflow.templates.primitives import Knobs, divisors, meaning_of_axes, register_intrinsic, steps_of, tensorize_tile

TILED_CONVOLUTION = "conv2d_tiles"  # name of the block whose weights lie (OC, KH, KW, IC, ...)
_LANES = 16  # channels of a block; int32 or float32 values in a row of a tile
_ROWS, _ROW_BYTES, _REGISTERS = 16, 64, 8
_LATENCY = 52  # cycles until a sum can be added to again (Intel's optimization manual, chapter on AMX)

_SOURCE = """
@T.prim_func(s_tir=True)
def function(a: T.handle, b: T.handle, c: T.handle) -> None:
    row, pixel, sums, line = T.int64(), T.int64(), T.int64(), T.int64()
    A = T.match_buffer(a, ({high}, {wide}, {blocks}, 16), "{data}", strides=[row, pixel, 16, 1], offset_factor=1)
    B = T.match_buffer(b, ({c}, {kh}, {kw}, {blocks}, {words}, 16, {group}), "{weight}", offset_factor=1)
    C = T.match_buffer(c, ({c}, {h}, {w}, 16), "{total}", strides=[sums, line, 16, 1], offset_factor=1, scope="local")
    with T.sblock("root"):
        T.reads(C[0:{c}, 0:{h}, 0:{w}, 0:16], A[0:{high}, 0:{wide}, 0:{blocks}, 0:16],
                B[0:{c}, 0:{kh}, 0:{kw}, 0:{blocks}, 0:{words}, 0:16, 0:{group}])
        T.writes(C[0:{c}, 0:{h}, 0:{w}, 0:16])
{body}
"""
_MEANING = """
        for {loops} in T.grid({extents}):
            with T.sblock("update"):
                {axes} = T.axis.remap("{kinds}", [{loops}])
                C[{vo}, {vh}, {vw}, {vv}] = C[{vo}, {vh}, {vw}, {vv}] + T.Cast(
                    "{total}", A[{vh} * {sh} + {vy} * {dh}, {vw} * {sw} + {vx} * {dw}, {vi}, {vu} * {group} + {vq}]
                ) * T.Cast("{total}", B[{vo}, {vy}, {vx}, {vi}, {vu}, {vv}, {vq}])
"""
# The permission for tiles is asked of the kernel (Linux: arch_prctl) once in a process; without it the next line traps.
_CONFIGURE = """
@tvmflow_tiles_allowed = weak_odr hidden global i32 0
@{name}_shape = weak_odr hidden constant [64 x i8] [{shape}], align 64
define weak_odr i32 @{name}(ptr %0) alwaysinline nounwind {{
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
# As assembly: of its own instructions for tiles LLVM renames registers after they got their shapes.
_MOVE = """
define weak_odr i32 @tvmflow_{name}_{tile}(ptr %at, i64 %step) alwaysinline nounwind {{
  call void asm sideeffect "{name} {operands}", "r,r,~{{memory}}"(ptr %at, i64 %step)
  ret i32 0
}}
"""
_MULTIPLY = """
define weak_odr i32 @tvmflow_{name}_{sums}_{pixels}_{weights}() alwaysinline nounwind {{
  call void asm sideeffect "{name} %tmm{weights}, %tmm{pixels}, %tmm{sums}", ""()
  ret i32 0
}}
"""
_RELEASE = """
define weak_odr i32 @tvmflow_tilerelease() alwaysinline nounwind {
  call void asm sideeffect "tilerelease", ""()
  ret i32 0
}
"""
_INSTRUCTIONS = {"uint8": "tdpbusd", "int8": "tdpbssd", "bfloat16": "tdpbf16ps"}


@dataclass(frozen=True)
class _Tile:
    """A tile of outputs: c blocks of channels x h rows x w pixels, summed over kh x kw x blocks of 16 input channels."""

    data: str
    c: int
    h: int
    w: int
    kh: int
    kw: int
    blocks: int
    sh: int
    sw: int
    dh: int
    dw: int

    @property
    def intrinsic_name(self) -> str:
        return "tvmflow.tiles_" + "_".join(str(value) for value in astuple(self))

    @property
    def size(self) -> int:
        """Return the bytes of an input value."""
        return 2 if self.data == "bfloat16" else 1

    @property
    def registers(self) -> int:
        """Return how many registers hold sums and pixels: at least one is left for weights."""
        return self.c * self.h + self.h

    @property
    def depth(self) -> int:
        """Return how many blocks of input channels one instruction sums."""
        return _depth(self.blocks, self.size)

    @property
    def configure(self) -> str:
        """Return the name of the function that tells the processor the shapes of the tiles."""
        return f"tvmflow_tiles_{self.c * self.h}_{self.h}_{self.w}_{self.depth * self.size}"

    @property
    def products(self) -> list[tuple[int, int, int]]:
        """Return the registers of a step's instructions: sums, pixels, weights. Sums come first, then pixels, then weights."""
        pixels = self.c * self.h
        weights = pixels + self.h
        return [
            (o * self.h + h, pixels + h, weights + o % (_REGISTERS - weights))
            for o in range(self.c)
            for h in range(self.h)
        ]

    @property
    def imports(self) -> str:
        """Return LLVM's text of the functions that the body calls."""
        sums, width = self.c * self.h, self.depth * self.size * _LANES
        shapes = [(self.w, _ROW_BYTES)] * sums + [(self.w, width)] * self.h
        shapes += [(width // 4, _ROW_BYTES)] * (_REGISTERS - len(shapes))
        table = bytearray(64)
        table[0] = 1  # the palette
        table[16:32] = b"".join(columns.to_bytes(2, "little") for _, columns in shapes)
        table[48:56] = bytes(rows for rows, _ in shapes)
        parts = [_CONFIGURE.format(name=self.configure, shape=", ".join(f"i8 {value}" for value in table)), _RELEASE]
        for tile in range(_REGISTERS):
            parts.append(_MOVE.format(name="tileloadd", tile=tile, operands=f"($0,$1,1), %tmm{tile}"))
        for tile in range(sums):
            parts.append(_MOVE.format(name="tilestored", tile=tile, operands=f"%tmm{tile}, ($0,$1,1)"))
        for total, pixels, weights in self.products:
            name = _INSTRUCTIONS[self.data]
            parts.append(_MULTIPLY.format(name=name, sums=total, pixels=pixels, weights=weights))
        return "".join(parts)

    def instructions(self) -> str:
        """Return the body in TVMScript."""
        line = f"T.int64({_ROW_BYTES})"

        def call(indent: int, name: str, *arguments: str) -> str:
            given = ", ".join(('"int32"', f'"tvmflow_{name}"', *arguments))
            return " " * indent + f"T.evaluate(T.call_extern({given}))"

        def moved(name: str) -> list[str]:
            places = ((o, h) for o in range(self.c) for h in range(self.h))
            return [
                call(8, f"{name}_{tile}", f"T.address_of(C[{o}, {h}, 0, 0])", line)
                for tile, (o, h) in enumerate(places)
            ]

        # A.data is passed for TVM's sake: memory that is seen outside of loads and stores is not widened to float32.
        lines = [f'        T.evaluate(T.call_extern("int32", "{self.configure}", A.data))', *moved("tileloadd")]
        lines.append(f"        for y, x, i in T.grid({self.kh}, {self.kw}, {self.blocks // self.depth}):")
        for total, pixels, weights in self.products:
            o, h = divmod(total, self.h)
            if o == 0:
                address = f"A[{h * self.sh} + y * {self.dh}, x * {self.dw}, i * {self.depth}, 0]"
                step = f"pixel * T.int64({self.sw * self.size})"
                lines.append(call(12, f"tileloadd_{pixels}", f"T.address_of({address})", step))
            if h == 0:
                address = f"B[{o}, y, x, i * {self.depth}, 0, 0, 0]"
                lines.append(call(12, f"tileloadd_{weights}", f"T.address_of({address})", line))
            lines.append(call(12, f"{_INSTRUCTIONS[self.data]}_{total}_{pixels}_{weights}"))
        return "\n".join([*lines, *moved("tilestored"), call(8, "tilerelease")])


def _depth(blocks: int, size: int) -> int:
    return max(divisors(blocks, _ROW_BYTES // (_LANES * size)))


def tile_knobs(schedule: Any, kernel: Kernel, cpu: CpuFeatures, reduced: int) -> list[Knobs]:
    """Return the tiles of outputs worth trying, the likelier first: c_tile, h_tile, w_tile. Empty where there are none."""
    if reduced != 5 or kernel.anchor is None or not kernel.anchor.startswith(TILED_CONVOLUTION):
        return []
    block = schedule.get(block_ref(schedule, kernel.anchor))
    data = str(region_buffer(block.reads[0]).dtype)
    _, channels, height, width, lanes, _, _, blocks, words, group = extents(
        schedule, schedule.get_loops(block_ref(schedule, kernel.anchor))
    )
    if TILES_FOR.get(data, "") not in cpu.dots or (lanes, words * group) != (_LANES, _LANES):
        return []
    rows = _depth(blocks, 1 if group == 4 else 2) * words

    def cycles(tile: tuple[int, int, int]) -> float:
        """Cycles per useful row: an instruction takes one for each of its pixels, a register one for two of its rows."""
        c, h, w = tile
        return max(c * h * w, _LATENCY, 0.5 * h * w + 1.3 * c * rows) / (c * h * w)

    tiles = [
        (c, h, w)
        for c in divisors(channels, _REGISTERS - 2)
        for h in divisors(height, 3)
        for w in divisors(width, _ROWS)
        if c * h + h < _REGISTERS
    ]
    tiles.sort(key=lambda tile: (cycles(tile), -tile[0] * tile[1] * tile[2]))
    return [{"c_tile": c, "h_tile": h, "w_tile": w} for c, h, w in tiles[:12]]


def pixels_together(schedule: Any, kernel: Kernel) -> str:
    """Let a convolution read a copy of its image, (N, H, W, C/16, 16); return the name of the block that makes it."""
    assert kernel.anchor is not None
    if kernel.before:
        copy = block_ref(schedule, kernel.before[-1])
    else:
        copy = schedule.cache_read(block_ref(schedule, kernel.anchor), 0, "global")
    schedule.transform_layout(copy, ("write", 0), lambda n, c, h, w, v: (n, h, w, c, v))
    return str(schedule.get(copy).name_hint)


def sum_in_tiles(schedule: Any, anchor: Any, outermost: Any) -> None:
    """Let the innermost tile of a convolution's outputs be one intrinsic; its image is read pixel by pixel."""
    c, h, w, _, kh, kw, blocks, _, _ = extents(schedule, schedule.get_loops(anchor)[-9:])
    block = schedule.get(anchor)
    image = block.reads[0]
    (sh, dh), (sw, dw) = steps_of(image, 1, block, (2, 5)), steps_of(image, 2, block, (3, 6))
    tile = _Tile(str(region_buffer(image).dtype), c, h, w, kh, kw, blocks, sh, sw, dh, dw)
    tensorize_tile(schedule, anchor, _intrinsic(tile))
    schedule.annotate(outermost, "pragma_import_llvm", tile.imports)


def register_tiles_in(trace: str) -> None:
    """Register the intrinsics that a trace names."""
    for tile in tiles_in(trace):
        _intrinsic(tile)


def tiles_in(trace: str) -> list[_Tile]:
    """Return the tiles that a trace names, without those that no processor has."""
    names = set(re.findall(r"tvmflow\.tiles_(u?int8|bfloat16)((?:_\d{1,6}){10})\b", trace))
    tiles = [_Tile(data, *(int(value) for value in sizes.split("_")[1:])) for data, sizes in names]
    return [
        tile for tile in tiles if min(tile.c, tile.h, tile.w) > 0 and tile.w <= _ROWS and tile.registers < _REGISTERS
    ]


@cache
def _intrinsic(tile: _Tile) -> str:
    """Register a tile with TVM and return its name."""
    group = 2 if tile.data == "bfloat16" else 4
    sizes = (tile.c, tile.h, tile.w, _LANES, tile.kh, tile.kw, tile.blocks, _LANES // group, group)
    values = {
        **meaning_of_axes("ohwvyxiuq", sizes),
        **{field.name: getattr(tile, field.name) for field in fields(tile)},
        "high": (tile.h - 1) * tile.sh + (tile.kh - 1) * tile.dh + 1,
        "wide": (tile.w - 1) * tile.sw + (tile.kw - 1) * tile.dw + 1,
        "words": _LANES // group, "group": group, "weight": "bfloat16" if group == 2 else "int8",
        "total": "float32" if group == 2 else "int32",
    }  # fmt: skip
    return register_intrinsic(tile.intrinsic_name, _SOURCE, _MEANING, tile.instructions(), values)
