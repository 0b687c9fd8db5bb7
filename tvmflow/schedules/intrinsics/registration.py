"""Register the intrinsics that a trace names, and list the machine code that it may contain."""

from __future__ import annotations

import re

from tvmflow.schedules.intrinsics.amx import Tile
from tvmflow.schedules.intrinsics.arm_depthwise import DepthwiseRow
from tvmflow.schedules.intrinsics.arm_depthwise_dot import DepthwiseTile
from tvmflow.schedules.intrinsics.arm_first_layer import ColumnRow
from tvmflow.schedules.intrinsics.arm_lane_mla import LANES
from tvmflow.schedules.intrinsics.arm_mmla import PairTile
from tvmflow.schedules.intrinsics.arm_tile import LaneTile
from tvmflow.schedules.intrinsics.dot_product import DOTS
from tvmflow.schedules.intrinsics.intrinsic import Intrinsic


def _intrinsics_in(trace: str) -> list[Intrinsic]:
    """Return the intrinsics that a trace names, without impossible ones."""
    names = set(re.findall(r"tvmflow\.\w+", trace))
    fixed = [row.intrinsic for row in (*DOTS, *LANES) if row.intrinsic.name in names]
    kinds = (ColumnRow, DepthwiseRow, DepthwiseTile, LaneTile, PairTile, Tile)
    return fixed + [one.intrinsic for sizes in kinds for one in sizes.named_in(trace)]


def register_all_in(trace: str) -> None:
    """Register the intrinsics that a trace names with TVM, which must know them to read the trace."""
    for intrinsic in _intrinsics_in(trace):
        intrinsic.register()


def native_code_of(trace: str) -> set[str]:
    """Return LLVM code of the intrinsics that a trace names."""
    return {intrinsic.imports for intrinsic in _intrinsics_in(trace) if intrinsic.imports}
