"""The machine code that templates put into schedules, so that a trace which brings other code can be refused."""

from __future__ import annotations

from tvmflow.templates.by_lane import lanes_in
from tvmflow.templates.dot import DOTS
from tvmflow.templates.tiles import tiles_in


def native_code_of(trace: str) -> set[str]:
    """Return LLVM's texts for the instructions that a trace names."""
    dots = {dot.imports for dot in DOTS if dot.imports and dot.intrinsic_name in trace}
    return dots | {row.imports for row in lanes_in(trace)} | {tile.imports for tile in tiles_in(trace)}
