"""Compile the kernels of a network in pieces, side by side: TVM leaves Python's lock while it works on one.

The pieces are the same on every machine, so that the same module gives the same bytes. The code of a kernel does not
depend on its piece.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

PIECES = 8  # for each processor some, since kernels are not alike
LLVM_KINDS = ("llvm",)  # of TVM's modules: those that LLVM makes machine code of
T = TypeVar("T")
R = TypeVar("R")


def compile_in_pieces(mod: Any, target: Any, tir_pipeline: str) -> Any:
    """Return TVM's executable of a network whose kernels are scheduled; its imports are the pieces. Raises whatever TVM
    raises.
    """
    import tvm
    from tvm import relax, tirx

    with target:
        lowered = relax.get_pipeline("default")(mod)
    kernels = {name: function for name, function in lowered.functions.items() if isinstance(function, tirx.PrimFunc)}
    # What TVM compiles itself must not be empty: one kernel, by its short name a simple one.
    own, *others = sorted(kernels, key=lambda name: (len(name.name_hint), str(name.name_hint))) or [None]
    parts = [{name: kernels[name] for name in others[at::PIECES]} for at in range(min(PIECES, len(others)))]

    def build(part: dict[Any, Any]) -> Any:
        with target:
            return tirx.build(tvm.IRModule(part, attrs=lowered.attrs), target=target, pipeline=tir_pipeline)

    built = side_by_side(build, parts)
    rest = {name: function for name, function in lowered.functions.items() if name == own or name not in kernels}
    functions = tvm.IRModule(rest, attrs=lowered.attrs)
    if built:
        functions = functions.with_attr("external_mods", [*(lowered.attrs or {}).get("external_mods", ()), *built])
    with target:
        return relax.build(functions, target, relax_pipeline=None, tir_pipeline=tir_pipeline)


def make_code(executable: Any) -> None:
    """Let LLVM make the machine code of all pieces side by side; a virtual machine would ask for one after the
    other.
    """
    side_by_side(_code_of, [part for part in executable.mod.imports if part.kind in LLVM_KINDS])


def _code_of(part: Any) -> None:
    """Ask for one function of a piece: LLVM makes all of them together."""
    for symbol in _symbols(part)[:1]:
        part.get_function(symbol.removeprefix("__tvm_ffi_"))


def to_objects(executable: Any, folder: Path) -> None:
    """Put object files in place of the pieces of an executable: whoever writes or links it takes these bytes. Such
    pieces do not run.
    """
    import tvm

    parts = list(executable.mod.imports)
    if len(parts) < 2 or any(part.kind not in LLVM_KINDS for part in parts):
        return

    def written(item: tuple[int, Any]) -> Any:
        at, part = item
        path = str(folder / f"piece{at}.o")
        part.write_to_file(path, "o")
        return tvm.runtime.load_static_library(path, _symbols(part))

    objects = side_by_side(written, enumerate(parts[1:]))
    executable.mod.clear_imports()
    for part in [parts[0], *objects]:  # the first stays: it tells TVM for which processor all are
        executable.mod.import_module(part)


def _symbols(part: Any) -> list[str]:
    return [str(symbol) for symbol in part.get_function("get_func_names")()]


def side_by_side(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what the function makes of each item, in order, on as many threads as there are processors."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))
