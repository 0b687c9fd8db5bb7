"""Look at a kernel before scheduling it: its blocks, which of them reduces, what lies before and after.

A kernel here is one PrimFunc as FuseOps leaves it: perhaps a padding block, at most one block that does the work (a
reduction), then element-wise blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import DataType, s_tir, tirx

DILATION = "dilation"  # key of what a block of Winograd's outputs has, where it is not 1
IMPORTED_LLVM = "pragma_import_llvm"  # TVM's key for text in LLVM's language that a kernel brings with it


class NotCoveredError(ValueError):
    """A schedule template does not take this kernel."""


@dataclass(frozen=True)
class Kernel:
    """The blocks of a kernel by name; `anchor` is its only reduction, None when it has none or several."""

    before: tuple[str, ...]
    anchor: str | None
    after: tuple[str, ...]
    reductions: tuple[str, ...]


def block_ref(schedule: Any, name: str) -> Any:
    return schedule.get_sblock(name, "main")


def is_reduction(schedule: Any, block: Any) -> bool:
    return any(int(variable.iter_type) == 2 for variable in schedule.get(block).iter_vars)


def dilation_of(schedule: Any, name: str) -> int:
    """Return the dilation of a block of Winograd's outputs."""
    return int(schedule.get(block_ref(schedule, name)).annotations.get(DILATION, 1))


def look_at(schedule: Any) -> Kernel:
    """Return the blocks of a schedule's `main`, in program order."""
    root = schedule.get_sblock("root", "main")
    names = [schedule.get(block).name_hint for block in schedule.get_child_blocks(root)]
    reductions = tuple(name for name in names if is_reduction(schedule, block_ref(schedule, name)))
    if len(reductions) != 1:
        return Kernel((), None, tuple(names), reductions)
    position = names.index(reductions[0])
    return Kernel(tuple(names[:position]), reductions[0], tuple(names[position + 1 :]), reductions)


def extents(schedule: Any, loops: list[Any]) -> list[int]:
    """Return loop extents. Raises NotCoveredError where one is not a constant."""
    sizes = []
    for loop in loops:
        extent = schedule.get(loop).extent
        if not hasattr(extent, "value"):
            raise NotCoveredError("a loop without a constant extent")
        sizes.append(int(extent.value))
    return sizes


def axes(schedule: Any, name: str) -> tuple[list[Any], int] | None:
    """Return the loops of a block and how many of them are spatial, these first; None where its loops are not its
    axes.
    """
    block = block_ref(schedule, name)
    kinds = [int(variable.iter_type) for variable in schedule.get(block).iter_vars]
    loops = list(schedule.get_loops(block))
    return (loops, kinds.count(0)) if len(kinds) == len(loops) and kinds == sorted(kinds) else None


def over_threads(schedule: Any, loops: list[Any]) -> None:
    """Give nested loops to threads, as one."""
    if loops:
        schedule.parallel(schedule.fuse(*loops) if len(loops) > 1 else loops[0])


def buffer_bytes(buffer: Any) -> int:
    """Return the size of a buffer of known shape."""
    return math.prod(int(extent) for extent in buffer.shape) * int(DataType(str(buffer.dtype)).bits) // 8


def region_buffer(region: Any) -> Any:
    """Return the buffer of a block's read or write, under the name that this TVM has for it."""
    return region.buffer if hasattr(region, "buffer") else region.source


class _Schedule(s_tir.Schedule):  # type: ignore[misc]
    """TVM's schedule without the checks of each argument's type in Python: they take four fifths of the time, and the
    primitives in C++ check again.
    """


for _name, _method in list(vars(s_tir.Schedule).items()):
    if hasattr(_method, "__wrapped__"):
        setattr(_Schedule, _name, _method.__wrapped__)


def new_schedule(function: Any) -> Any:
    """Return a schedule of a module whose `main` is the function; assertions of the primitives stay on."""

    return _Schedule(tvm.IRModule({"main": function}), debug_mask="none", error_render_level="fast")


def kernels_changed(mod: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Return a module with those of its kernels changed that are wanted."""
    functions = {
        variable: change(function) if isinstance(function, tirx.PrimFunc) and wanted(function) else function
        for variable, function in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
