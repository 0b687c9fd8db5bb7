"""Analyze the blocks of a kernel before scheduling: its reduction, and the blocks before and after.

A kernel is a PrimFunc as FuseOps leaves it: perhaps a padding block, at most one anchor block (a reduction), then
elementwise blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import DataType, s_tir, tirx

from tvmflow.ir.tvm_compat import IRModule, PrimFunc, Schedule

DILATION = "dilation"  # annotation of a block of Winograd outputs, if it is not 1
IMPORTED_LLVM = "pragma_import_llvm"  # TVM's annotation for LLVM IR of a kernel


class NotCoveredError(ValueError):
    """A schedule template does not take this kernel."""


@dataclass(frozen=True)
class Kernel:
    """The blocks of a kernel by name; `anchor` is its only reduction, None if it has none or several."""

    before: tuple[str, ...]
    anchor: str | None
    after: tuple[str, ...]
    reductions: tuple[str, ...]


NO_BLOCKS = Kernel((), None, (), ())


def block_ref(schedule: Schedule, name: str) -> Any:
    return schedule.get_sblock(name, "main")


def is_reduction(schedule: Schedule, block: Any) -> bool:
    return any(int(variable.iter_type) == 2 for variable in schedule.get(block).iter_vars)


def dilation_of(schedule: Schedule, name: str) -> int:
    """Return the dilation of a block of Winograd outputs."""
    return int(schedule.get(block_ref(schedule, name)).annotations.get(DILATION, 1))


def classify_blocks(schedule: Schedule) -> Kernel:
    """Return the blocks of a schedule's `main`, in program order.

    There are none in a kernel that is a single block of statements, as TVM's scatter and sort are.
    """
    if schedule.mod["main"].body.block.name_hint != "root":
        return NO_BLOCKS
    root = schedule.get_sblock("root", "main")
    names = [schedule.get(block).name_hint for block in schedule.get_child_blocks(root)]
    reductions = tuple(name for name in names if is_reduction(schedule, block_ref(schedule, name)))
    if len(reductions) != 1:
        return Kernel((), None, tuple(names), reductions)
    position = names.index(reductions[0])
    return Kernel(tuple(names[:position]), reductions[0], tuple(names[position + 1 :]), reductions)


def extents(schedule: Schedule, loops: list[Any]) -> list[int]:
    """Return loop extents. Raises NotCoveredError where one is not a constant."""
    sizes = []
    for loop in loops:
        extent = schedule.get(loop).extent
        if not hasattr(extent, "value"):
            raise NotCoveredError("a loop without a constant extent")
        sizes.append(int(extent.value))
    return sizes


def axes(schedule: Schedule, name: str) -> tuple[list[Any], int] | None:
    """Return the loops of a block and how many of them are spatial (the first ones); None if its loops are not its
    axes.
    """
    block = block_ref(schedule, name)
    kinds = [int(variable.iter_type) for variable in schedule.get(block).iter_vars]
    loops = list(schedule.get_loops(block))
    return (loops, kinds.count(0)) if len(kinds) == len(loops) and kinds == sorted(kinds) else None


def parallelize_loops(schedule: Schedule, loops: list[Any]) -> None:
    """Fuse nested loops and run them in parallel."""
    if loops:
        schedule.parallel(schedule.fuse(*loops) if len(loops) > 1 else loops[0])


def buffer_bytes(buffer: Any) -> int:
    """Return the size of a buffer of known shape."""
    return math.prod(int(extent) for extent in buffer.shape) * int(DataType(str(buffer.dtype)).bits) // 8


def region_buffer(region: Any) -> Any:
    """Return the buffer of a block's read or write region, in any version of TVM."""
    return region.buffer if hasattr(region, "buffer") else region.source


class _Schedule(s_tir.Schedule):  # type: ignore[misc]
    """TVM's schedule without the type checks of arguments in Python, which take four fifths of the time.

    The primitives in C++ check again.
    """


for _name, _method in list(vars(s_tir.Schedule).items()):
    if hasattr(_method, "__wrapped__"):
        setattr(_Schedule, _name, _method.__wrapped__)


def new_schedule(function: PrimFunc) -> Any:
    """Return a schedule of a module whose `main` is the function, with the primitives' assertions."""

    return _Schedule(tvm.IRModule({"main": function}), debug_mask="none", error_render_level="fast")


def transform_kernels(mod: IRModule, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Return a module in which the kernels that `wanted` selects are changed."""
    functions = {
        variable: change(function) if isinstance(function, tirx.PrimFunc) and wanted(function) else function
        for variable, function in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
