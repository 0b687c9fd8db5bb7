"""Transfer data between DRAM and the chip: addresses, slots, loads of windows, stores of tiles."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import Memory
from tvmflow.vta.isa.instructions import MAX_ITERATIONS
from tvmflow.vta.isa.program import LaunchBuilder, Loops

MAX_FIELD = (1 << 16) - 1


@dataclass(frozen=True)
class Place:
    """The location of a value in DRAM, in units of one (batch, block) vector of bytes."""

    address: int
    blocks: int
    height: int
    width: int

    def vector(self, n: int, block: int, row: int, column: int) -> int:
        return ((n * self.blocks + block) * self.height + row) * self.width + column

    @property
    def plane(self) -> int:
        return self.height * self.width


class Slots:
    """Equal parts of one memory, each with the value of a key; the least recently used one is replaced."""

    def __init__(self, first: int, size: int, count: int) -> None:
        self.size = size
        self._free = list(range(first, first + size * count, size)) if size else []
        self._kept: dict[Hashable, int] = {}

    def take(self, key: Hashable = None) -> tuple[int, bool]:
        """Return where a value lies, and whether it must be loaded first. None: a value that nobody asks for again."""
        key = object() if key is None else key
        is_new = key not in self._kept
        if not is_new:
            place = self._kept.pop(key)
        elif self._free:
            place = self._free.pop(0)
        else:
            place = self._kept.pop(next(iter(self._kept)))
        self._kept[key] = place
        return place, is_new


def copy_in(builder: LaunchBuilder, slot: int, base: int, vectors: int, identity: int) -> None:
    """Add `vectors` of INP from `slot` on to the accumulators from `base` on, multiplied by the identity block."""
    for start in range(0, vectors, MAX_ITERATIONS):
        part = min(vectors - start, MAX_ITERATIONS)
        builder.gemm([(base + start, slot + start, identity)], Loops(1, part, (0, 1), (0, 1)))


def load_image(
    builder: LaunchBuilder,
    sram: int,
    place: Place,
    at: tuple[int, int],
    blocks: int,
    window: tuple[int, int, int, int],
    row_step: int = 1,
) -> None:
    """Load blocks [block, block + blocks) of a window (row, rows, column, columns), which may reach over the edge,
    dense.

    at: (n, first block). row_step: only every so many rows.
    """
    n, block = at
    row, rows, column, columns = window
    top = min(max(0, -(row // row_step)) if row < 0 else 0, rows)
    last = row + (rows - 1) * row_step
    over = max(0, -(-(last - place.height + 1) // row_step)) if last >= place.height else 0
    left, right = max(0, -column), max(0, column + columns - place.width)
    height, width = rows - top - over, columns - left - right
    first_row, first_column = row + top * row_step, max(column, 0)
    if height <= 0 or width <= 0:
        raise ProgramError(f"a tile of {rows} x {columns} inputs that lies in the padding", "a tile that holds inputs")
    whole = not (top or over or left or right) and width == place.width and row_step == 1
    base = place.address // builder.config.element_bytes(Memory.INP)
    if whole and place.plane <= MAX_FIELD and rows * width <= MAX_FIELD:
        _load_inp(builder, sram, base + place.vector(n, block, first_row, 0), (blocks, rows * width), place.plane)
        return
    for each in range(blocks):
        element = base + place.vector(n, block + each, first_row, first_column)
        _load_inp(
            builder,
            sram + each * rows * columns,
            element,
            (height, width),
            place.width * row_step,
            (top, over, left, right),
        )


def _load_inp(
    builder: LaunchBuilder,
    sram: int,
    element: int,
    shape: tuple[int, int],
    stride: int,
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> None:
    builder.load(Memory.INP, sram, element * builder.config.element_bytes(Memory.INP), shape, stride, pads)


def store_tile(
    builder: LaunchBuilder, base: int, place: Place, at: tuple[int, int], blocks: int, window: tuple[int, int, int, int]
) -> None:
    """Store accumulators [block][row][column] to a window (row, rows, column, columns) of blocks from `at` (n, block)
    on.
    """
    n, block = at
    row, rows, column, columns = window
    size = builder.config.element_bytes(Memory.OUT)
    origin = place.address // size
    if columns == place.width and place.plane <= MAX_FIELD and rows * columns <= MAX_FIELD:
        builder.store(base, (origin + place.vector(n, block, row, 0)) * size, (blocks, rows * columns), place.plane)
        return
    for each in range(blocks):
        address = (origin + place.vector(n, block + each, row, column)) * size
        builder.store(base + each * rows * columns, address, (rows, columns), place.width)


def spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) that cover 0..total."""
    for first in range(0, total, step):
        yield first, min(step, total - first)
