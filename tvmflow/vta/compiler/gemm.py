"""Emit the multiplications of one step as GEMM instructions.

Two dimensions become the hardware's loops, the others micro-ops. The two are chosen for the fewest micro-ops, since
micro-ops are loaded too. No accumulator is written again within three micro-ops, so that real designs compute the same
as the simulator.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tvmflow.vta.compiler.dma import spans
from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import Uop
from tvmflow.vta.isa.program import LaunchBuilder, Loops


@dataclass(frozen=True)
class Dimension:
    """A loop: how often, and what each turn adds to the indices of ACC, INP and WGT."""

    count: int
    dst: int = 0
    src: int = 0
    wgt: int = 0


ONCE = Dimension(1)
Places = tuple[Dimension, Dimension, Dimension]
"""Output blocks, rows, columns."""
Taps = list[tuple[int, int]]
"""(INP index, WGT index) of what is added up."""


@dataclass(frozen=True)
class Fold:
    """outer, inner: the hardware's loops; places: the rest, as micro-ops of each tap. by_line: inner is a line of
    taps.
    """

    outer: Dimension
    inner: Dimension
    places: tuple[Dimension, ...]
    by_line: bool = False

    @cached_property
    def offsets(self) -> list[Uop]:
        """Return what the micro-ops of one tap add to its indices."""
        turns = itertools.product(*(range(place.count) for place in self.places))
        return [
            (
                sum(t * place.dst for t, place in zip(turn, self.places, strict=True)),
                sum(t * place.src for t, place in zip(turn, self.places, strict=True)),
                sum(t * place.wgt for t, place in zip(turn, self.places, strict=True)),
            )
            for turn in turns
        ]

    @cached_property
    def loops(self) -> Loops:
        outer, inner = (loop if loop.count > 1 else ONCE for loop in (self.outer, self.inner))
        return Loops(outer.count, inner.count, (outer.dst, inner.dst), (outer.src, inner.src), (outer.wgt, inner.wgt))


@lru_cache(maxsize=4096)
def fold(config: VtaConfig, places: Places, taps: int, line: Dimension) -> tuple[Fold, bool]:
    """Return the fold of so many taps (or lines of taps) with the fewest micro-ops, and whether one instruction adds
    them up.
    """
    folds = [
        Fold(places[a], places[b], tuple(place for at, place in enumerate(places) if at not in (a, b)))
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    folds += _split(places)
    if line.count > 1:
        folds += [Fold(place, line, (*places[:at], *places[at + 1 :]), True) for at, place in enumerate(places)]

    def width(each: Fold) -> int:
        return math.prod(place.count for place in each.places)

    folds = [each for each in folds if width(each) <= config.depth(Memory.UOP) and _encodes(config, each)]
    legal = [each for each in folds if width(each) >= 3 or (taps * line.count == 1)]
    if legal:
        return min(legal, key=lambda each: width(each) * (1 if each.by_line else line.count)), True
    return min((each for each in folds if not each.by_line), key=width), False


def _split(places: Places) -> list[Fold]:
    """Return folds in which some rows or columns join the output blocks, so that three places differ."""
    blocks, rows, columns = places
    folds = []
    for down, right in ((2, 1), (1, 2), (3, 1), (1, 3), (2, 2), (5, 1), (1, 5), (7, 1), (1, 7)):
        if rows.count % down or columns.count % right or blocks.count * down * right < 3:
            continue
        inner = (replace(rows, count=down), replace(columns, count=right), blocks)
        folds.append(Fold(_every(rows, down), _every(columns, right), inner))
    return folds


def _every(dimension: Dimension, step: int) -> Dimension:
    return Dimension(dimension.count // step, dimension.dst * step, dimension.src * step, dimension.wgt * step)


def _encodes(config: VtaConfig, fold: Fold) -> bool:
    """Whether the fields of an instruction hold the factors."""
    acc, inp, wgt = (config.depth(memory) for memory in (Memory.ACC, Memory.INP, Memory.WGT))
    loops = [loop for loop in (fold.outer, fold.inner) if loop.count > 1]
    return all(loop.dst < acc and loop.src < inp and loop.wgt < wgt for loop in loops)


def multiply(builder: LaunchBuilder, start: int, places: Places, taps: Taps, line: Dimension = ONCE) -> None:
    """Emit acc[start + ...] += inp * wgt for all places and all taps, each of which is the first of a line of taps."""
    folded, at_once = fold(builder.config, places, len(taps), line)
    if not folded.by_line:
        taps = [(src + turn * line.src, wgt + turn * line.wgt) for src, wgt in taps for turn in range(line.count)]
    room = builder.config.depth(Memory.UOP) // len(folded.offsets) if at_once else 1
    for first, count in spans(len(taps), room):
        uops = [
            (start + dst, src + more_src, wgt + more_wgt)
            for src, wgt in taps[first : first + count]
            for dst, more_src, more_wgt in folded.offsets
        ]
        builder.gemm(uops, folded.loops)
