"""The machine code that templates put into schedules: registered before a trace is read, and refused where a trace
brings other code.
"""

from __future__ import annotations

from tvmflow.schedules.intrinsics.amx import register_tiles_in, tiles_in
from tvmflow.schedules.intrinsics.arm_first_layer import columns_in, register_columns_in
from tvmflow.schedules.intrinsics.arm_lane_mla import lanes_in, register_lanes_in
from tvmflow.schedules.intrinsics.arm_mmla import pairs_in, register_pairs_in
from tvmflow.schedules.intrinsics.dot_product import dots_in, register_dots_in


def register_all_in(trace: str) -> None:
    """Register the instructions that a trace names with TVM, which has to know them when it reads the trace."""
    for register in (register_dots_in, register_lanes_in, register_columns_in, register_tiles_in, register_pairs_in):
        register(trace)


def native_code_of(trace: str) -> set[str]:
    """Return LLVM's texts for the instructions that a trace names."""
    dots = {dot.imports for dot in dots_in(trace) if dot.imports}
    found = dots | {row.imports for row in lanes_in(trace)} | {tile.imports for tile in tiles_in(trace)}
    return found | {row.of.imports for row in columns_in(trace)} | {tile.row.imports for tile in pairs_in(trace)}
