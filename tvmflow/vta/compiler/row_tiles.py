"""Choose the input rows of each row of tiles and their chunks on the chip.

A tile's rows are on the chip either as one window or, if `rolling`, as chunks that the tile below reads too, so that no
row is loaded twice. Rows in the padding are not loaded, and their multiplications are left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tvmflow.vta.compiler.convolution import Axis


@dataclass(frozen=True)
class Piece:
    """Turns [turn, turn + count) of one phase of a tile read one chunk. taps: (tap, row of the chunk that `turn`
    reads).
    """

    phase: int
    chunk: int
    turn: int
    count: int
    taps: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RowTile:
    """first, count: output rows; pieces: what is multiplied; chunks: what they read, in order."""

    first: int
    count: int
    pieces: tuple[Piece, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class RowPlan:
    """chunks: number -> (first input row, rows). step: an input row of `step` is loaded. live: chunks of one tile at
    most.
    """

    tiles: tuple[RowTile, ...]
    chunks: dict[int, tuple[int, int]]
    step: int

    @cached_property
    def live(self) -> int:
        return max((tile.chunks[-1] - tile.chunks[0] + 1 for tile in self.tiles if tile.chunks), default=0)

    @cached_property
    def largest(self) -> int:
        """Return the rows of the largest chunk."""
        return max((rows for _, rows in self.chunks.values()), default=0)

    @cached_property
    def loaded(self) -> tuple[int, ...]:
        """Return the rows of the chunks of each tile that reads any."""
        return tuple(sum(self.chunks[chunk][1] for chunk in tile.chunks) for tile in self.tiles if tile.chunks)

    @cached_property
    def pieces(self) -> int:
        return sum(len(tile.pieces) for tile in self.tiles)

    @cached_property
    def multiplied(self) -> int:
        """Return how many pairs of an output row and a tap there are."""
        return sum(piece.count * len(piece.taps) for tile in self.tiles for piece in tile.pieces)


@dataclass(frozen=True)
class Strip:
    """Output columns of a tile. low, window: first input column and how many, padding included; width: those that are
    none.
    """

    first: int
    count: int
    low: int
    window: int
    width: int

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.count


@lru_cache(maxsize=4096)
def strips(axis: Axis, columns: int) -> tuple[Strip, ...]:
    """Return the tiles of an axis, `columns` outputs each."""
    tiles = []
    for first in range(0, axis.out, columns):
        count = min(columns, axis.out - first)
        low, window = axis.window(first, count)
        tiles.append(Strip(first, count, low, window, max(0, min(low + window, axis.size) - max(low, 0))))
    return tuple(tiles)


@lru_cache(maxsize=4096)
def row_plan(axis: Axis, rows: int, rolling: bool) -> RowPlan:
    """Return the plan of an axis in tiles of `rows` output rows."""
    step = axis.src if axis.is_sparse else 1
    low = min(offset for phase in axis.phases for _, offset in phase)
    height = rows // axis.dst * axis.src  # of a chunk, when rolling
    tile_reads: list[tuple[int, int, list[tuple[int, int, int, int, int]]]] = []
    read: dict[int, set[int]] = defaultdict(set)
    for number, first in enumerate(range(0, axis.out, rows)):
        count, reads = min(rows, axis.out - first), []
        start = first // axis.dst * axis.src
        for phase, taps in enumerate(axis.phases):
            turns = -(-(count - phase) // axis.dst)
            for tap, offset in taps:
                for turn in range(turns):
                    row = start + turn * axis.src + offset
                    if 0 <= row < axis.size:
                        chunk = (row - low) // height if rolling else number
                        reads.append((phase, chunk, turn, tap, row))
                        read[chunk].add(row)
        tile_reads.append((first, count, reads))
    chunks = {chunk: (min(lines), (max(lines) - min(lines)) // step + 1) for chunk, lines in sorted(read.items())}
    tiles = tuple(
        RowTile(first, count, _pieces(reads, chunks, step), tuple(sorted({chunk for _, chunk, *_ in reads})))
        for first, count, reads in tile_reads
    )
    return RowPlan(tiles, chunks, step)


def _pieces(
    reads: list[tuple[int, int, int, int, int]], chunks: dict[int, tuple[int, int]], step: int
) -> tuple[Piece, ...]:
    """Group what a tile reads: taps of one phase that read one chunk in the same turns."""
    turns: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for phase, chunk, turn, tap, row in reads:
        turns[phase, chunk, tap].append((turn, row))
    pieces: dict[tuple[int, int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for (phase, chunk, tap), at in turns.items():
        turn, row = at[0]
        pieces[phase, chunk, turn, len(at)].append((tap, (row - chunks[chunk][0]) // step))
    return tuple(Piece(*key, tuple(sorted(taps))) for key, taps in sorted(pieces.items(), key=lambda item: item[0]))
