"""Define tensor intrinsics of depthwise convolutions of int8 on arm64 by dot products.

sdot sums four products for each of four channels. A window of four pixels of eight channels is transposed by two tbl,
so that the four pixels of a channel are neighbours; products with the weights of a row of the filter, transposed alike,
give the output whose window begins there, and those with the weights behind a zero the next one. Written in assembly,
over the whole filter: LLVM would load all weights before the loop over tiles, and spill them in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from tvmflow.ir.tir.blocks import Kernel, extents
from tvmflow.schedules.intrinsics.assembly import AssemblyCall
from tvmflow.schedules.intrinsics.intrinsic import Instruction, Intrinsic, Operand, Sized, find_instruction
from tvmflow.schedules.template import anchor_of, dtypes_of, operands_of, stride_and_dilation, tile_sizes
from tvmflow.targets.cpu_features import CpuFeatures

COLUMNS = (3, 5, 7)  # those of a filter; its windows of four pixels are not full
STRIDES = (1, 2)
_REGISTERS = 32
_LANES = 8  # channels
_MOST_ROWS = 7
_TRANSPOSED = 2  # registers of a window
_ORDERS = 4  # registers with the order of bytes of a window, and of the last one of a filter's row
_NONE = 255  # tbl gives 0 for it


@dataclass(frozen=True)
class DepthwiseDot(Instruction):
    """A dot product of four pixels, for depthwise convolutions of filters with so many columns."""

    columns: int


DEPTHWISE_DOTS = tuple(DepthwiseDot(190 + columns, "sdot", "dotprod", "int8", columns) for columns in COLUMNS)


@dataclass(frozen=True)
class DepthwiseTile(Sized):
    """A row of output pixels under a whole filter of `rows` x `columns`, whose windows have a distance of `stride`."""

    PREFIX: ClassVar[str] = "tvmflow.depthwisedot"
    SIZES: ClassVar[str] = r"(?:_\d{1,2}){4}"
    rows: int
    columns: int
    pixels: int
    stride: int

    @property
    def is_possible(self) -> bool:
        small = 0 < self.rows <= _MOST_ROWS and 0 < self.pixels <= _REGISTERS
        return small and self.columns in COLUMNS and self.stride in STRIDES and self.image_registers > 1

    @property
    def reach(self) -> int:
        """Return how many columns of the image the tile reads."""
        return (self.pixels - 1) * self.stride + self.columns

    @property
    def windows(self) -> int:
        """Return how many windows of four pixels a row of the filter takes."""
        return -(-self.columns // 4)

    @property
    def weights(self) -> int:
        """Return how many registers hold the weights of a row of the filter, also behind a zero where pixels are one
        column apart.
        """
        return 2 * self.windows * (2 // self.stride)

    @property
    def image_registers(self) -> int:
        """Return how many registers the pixels can have, each of two."""
        left = _REGISTERS - 2 * self.pixels - self.weights - _TRANSPOSED - _ORDERS
        return left if left >= -(-self.columns // 2) - _TRANSPOSED else 0  # a row of the filter is there, too

    @property
    def instructions(self) -> int:
        """Return how many instructions the tile takes, the sums' start and end excluded."""
        return len(self._assembly())

    @cached_property
    def intrinsic(self) -> Intrinsic:
        """Return the intrinsic on data (rows, reach, 8), weights (rows, columns, 8) and sums (pixels, 8)."""
        return Intrinsic(
            self.name,
            "wiyx",
            (self.pixels, _LANES, self.rows, self.columns),
            Operand("int8", (self.rows, self.reach, _LANES), f"vy, vw * {self.stride} + vx, vi", "row, 8, 1"),
            Operand("int8", (self.rows, self.columns, _LANES), "vy, vx, vi", f"{_LANES * self.columns}, 8, 1"),
            Operand("int32", (self.pixels, _LANES), "vw, vi", "sum, 1"),
            f'        T.evaluate(T.call_extern("int32", "{self._symbol}", T.address_of(C[0, 0]), sum, '
            "T.address_of(A[0, 0, 0]), row, T.address_of(B[0, 0, 0]), A.data))",
            self._function(),
        )

    @property
    def _symbol(self) -> str:
        return self.name.replace(".", "_")

    def _function(self) -> str:
        """Return the LLVM code of the tile: sums are loaded, passed through the assembly, and stored."""
        before, kind = [], "<4 x i32>"
        for at in range(2 * self.pixels):
            before += [
                f"  %o{at} = mul i64 %sum, {at // 2}",
                f"  %q{at} = add i64 %o{at}, {at % 2 * 4}",
                f"  %c{at} = getelementptr i32, ptr %c, i64 %q{at}",
                f"  %s{at} = load {kind}, ptr %c{at}, align 16",
            ]
        orders = [_order_of(half, taps) for taps in (4, self._last_taps) for half in (0, 1)]
        inputs = [("w", f"<16 x i8> <{', '.join(f'i8 {byte}' for byte in order)}>") for order in orders]
        changed = [*(f"v{at}" for at in range(self._first_weight + self.weights)), "memory"]
        moved = [("ptr", "%a"), ("ptr", "%b")]
        call = AssemblyCall(kind, 2 * self.pixels, moved, [("r", "i64 %row"), *inputs], changed, self._assembly())
        return call.function(self._symbol, "ptr %c, i64 %sum, ptr %a, i64 %row, ptr %b", before)

    @property
    def _last_taps(self) -> int:
        """Return how many columns of the filter its last window has."""
        return self.columns - 4 * (self.windows - 1)

    @property
    def _held(self) -> int:
        """Return how many registers of pixels are loaded at once."""
        return min(self.image_registers, -(-self.reach // 2) + 1)

    @property
    def _first_weight(self) -> int:
        """Return the number of the first register of transposed weights; before it are pixels, then a window."""
        return max(self._held + _TRANSPOSED, -(-self.columns // 2))

    def _assembly(self) -> list[str]:
        """Return the instructions. Operands are sums, pointers of the image and of weights; behind them, as inputs, the
        same, the distance of rows and the orders of bytes.
        """
        image = 2 * self.pixels
        row = 2 * (image + 2)
        lines = []
        for y in range(self.rows):
            lines += [*self._load_weights(image + 1, row + 1), *self._row(image, row + 1)]
            if y < self.rows - 1:
                lines.append(f"add ${{{image}}}, ${{{image}}}, ${{{row}}}")
        return lines

    def _load_weights(self, pointer: int, orders: int) -> Iterator[str]:
        """Yield the instructions that load and transpose a row of the filter. orders: operand of the first order."""
        loaded = 0
        while loaded < self.columns:
            names = (
                f"ldp q{loaded // 2}, q{loaded // 2 + 1}"
                if self.columns - loaded >= 4
                else f"ldr {'q' if self.columns - loaded > 1 else 'd'}{loaded // 2}"
            )
            size = min(4 if names.startswith("ldp") else 2, self.columns - loaded)
            yield f"{names}, [${{{pointer}}}], #{_LANES * size}"
            loaded += size
        for window in range(self.windows):
            order = orders + 2 * (window == self.windows - 1)
            for half in (0, 1):
                table = f"{{ v{2 * window}.16b, v{2 * window + 1}.16b }}"
                yield f"tbl v{self._weight(0, window, half)}.16b, {table}, ${{{order + half}}}.16b"
        for window in range(self.windows) if self.stride == 1 else ():
            for half in (0, 1):
                moved = self._weight(1, window, half)
                yield f"shl v{moved}.4s, v{self._weight(0, window, half)}.4s, #8"
                if window:
                    yield f"sri v{moved}.4s, v{self._weight(0, window - 1, half)}.4s, #24"

    def _weight(self, moved: int, window: int, half: int) -> int:
        """Return the register of a window of weights. moved: 1 behind a zero; half: of the channels."""
        return self._first_weight + (moved * self.windows + window) * 2 + half

    def _row(self, pointer: int, orders: int) -> Iterator[str]:
        """Yield the instructions that multiply a row of the image. Registers hold two pixels; a window begins at any of
        them.
        """
        uses: dict[int, list[tuple[int, int, int]]] = {}  # register where a window begins -> pixel, moved, window
        for pixel in range(self.pixels):
            begin, moved = divmod(pixel * self.stride, 2)
            for window in range(self.windows):
                uses.setdefault(begin + 2 * window, []).append((pixel, moved, window))
        first = -self._held
        for begin in sorted(uses):
            if begin + 1 >= first + self._held:
                first = begin
                yield from self._load_pixels(pointer, first, min(max(uses) + 2, first + self._held))
            at = begin - first
            for half in (0, 1):
                table = f"{{ v{at}.16b, v{at + 1}.16b }}"
                yield f"tbl v{self._held + half}.16b, {table}, ${{{orders + half}}}.16b"
            for pixel, moved, window in uses[begin]:
                for half in (0, 1):
                    weight = self._weight(moved, window, half)
                    yield f"sdot ${{{2 * pixel + half}}}.4s, v{weight}.16b, v{self._held + half}.16b"

    def _load_pixels(self, pointer: int, first: int, end: int) -> Iterator[str]:
        """Yield the loads of registers from `first` to `end`, without what is behind the tile: its weights are 0."""
        at = first
        while at < end and 2 * at < self.reach:
            left = self.reach - 2 * at
            pair = left >= 4 and at + 1 < end
            names = f"ldp q{at - first}, q{at - first + 1}" if pair else f"ldr {'q' if left > 1 else 'd'}{at - first}"
            yield f"{names}, [${{{pointer}}}, #{16 * at}]"
            at += 1 + pair


def _order_of(half: int, taps: int) -> list[int]:
    """Return which bytes of four pixels of eight channels tbl takes for four channels: those of the first `taps`."""
    return [_LANES * t + 4 * half + lane if t < taps else _NONE for lane in range(4) for t in range(4)]


def sums_by_dots(data: str, weight: str, filter_size: tuple[int, int], steps: tuple[int, int, int, int]) -> bool:
    """Whether the intrinsics have a depthwise convolution. steps: stride and dilation of rows, of columns."""
    rows, columns = filter_size
    known = columns in COLUMNS and rows <= _MOST_ROWS and steps[2] in STRIDES
    return (data, weight) == ("int8", "int8") and known and steps[1] == steps[3] == 1


def find_depthwise_dot(schedule: Any, kernel: Kernel, cpu: CpuFeatures) -> DepthwiseDot | None:
    """Return the instruction for a depthwise convolution, None for others."""
    block, sizes = anchor_of(schedule, kernel)
    if len(sizes) != 7 or sizes[4] != _LANES or len(block.reads) < 2:
        return None
    total, data, weight = dtypes_of(schedule, kernel)
    if total != "int32" or not sums_by_dots(data, weight, (sizes[5], sizes[6]), _steps(block)):
        return None
    return find_instruction(DEPTHWISE_DOTS, cpu, data, lambda row: row.columns == sizes[6])


def _steps(block: Any) -> tuple[int, int, int, int]:
    """Return stride and dilation of rows, and of columns."""
    image = operands_of(block)[0]
    (sh, dh), (sw, dw) = (stride_and_dilation(image, axis, block, (axis, axis + 3)) for axis in (2, 3))
    return sh, dh, sw, dw


def rank_dot_tiles(schedule: Any, kernel: Kernel) -> list[tuple[int, int, int]]:
    """Return the register tiles (blocks of channels, rows, columns), those with the fewest instructions first."""
    block, sizes = anchor_of(schedule, kernel)
    stride = _steps(block)[2]

    def tile(point: tuple[int, int, int]) -> DepthwiseTile:
        return DepthwiseTile(sizes[5], sizes[6], point[2], stride)

    points = [point for point in tile_sizes((1, 1, sizes[3]), (1, 1, 16)) if tile(point).is_possible]
    return sorted(points, key=lambda point: tile(point).instructions / math.prod(point))[:12]


def tensorize_dots(schedule: Any, anchor: Any, inner: list[Any], outermost: Any) -> None:
    """Sum a tile in registers. inner: loops over n, blocks, rows, columns, lanes; rows and columns of the filter."""
    n, c_inner, h_inner, w_inner, lane, y, x = inner
    stride = _steps(schedule.get(anchor))[2]
    pixels, _, rows, columns = sizes = extents(schedule, [w_inner, lane, y, x])
    summed = (w_inner, lane, y, x)
    once = [loop for loop, size in zip(summed, sizes, strict=True) if size == 1]
    many = [loop for loop, size in zip(summed, sizes, strict=True) if size > 1]
    schedule.reorder(n, c_inner, h_inner, *once, *many)
    tile = DepthwiseTile(rows, columns, pixels, stride)
    tile.intrinsic.tensorize(schedule, anchor, n, many[0], outermost)
