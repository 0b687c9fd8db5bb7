"""Register the intrinsics that a trace names, and list the machine code that it may contain."""

from __future__ import annotations

from tvmflow.schedules.intrinsics.amx import register_tiles_in, tiles_in
from tvmflow.schedules.intrinsics.arm_first_layer import column_rows_in, register_column_rows_in
from tvmflow.schedules.intrinsics.arm_lane_mla import lanes_in, register_lanes_in
from tvmflow.schedules.intrinsics.arm_mmla import mmla_tiles_in, register_mmla_tiles_in
from tvmflow.schedules.intrinsics.dot_product import dots_in, register_dots_in


def register_all_in(trace: str) -> None:
    """Register the intrinsics that a trace names with TVM, which must know them to read the trace."""
    for register in (
        register_dots_in,
        register_lanes_in,
        register_column_rows_in,
        register_tiles_in,
        register_mmla_tiles_in,
    ):
        register(trace)


def native_code_of(trace: str) -> set[str]:
    """Return LLVM code of the intrinsics that a trace names."""
    dots = {dot.imports for dot in dots_in(trace) if dot.imports}
    found = dots | {row.imports for row in lanes_in(trace)} | {tile.imports for tile in tiles_in(trace)}
    return (
        found | {row.of.imports for row in column_rows_in(trace)} | {tile.row.imports for tile in mmla_tiles_in(trace)}
    )
