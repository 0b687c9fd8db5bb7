"""Compile the kernels of a network in parallel pieces: TVM releases the GIL while it compiles one.

The pieces are the same on every machine, so that the same module gives the same bytes. The code of a kernel does not
depend on its piece.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tvm
from tvm import relax, tirx

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

PIECES = 8  # several for each processor, since compile times of kernels differ
LLVM_KINDS = ("llvm",)  # kinds of TVM's modules that LLVM compiles
T = TypeVar("T")
R = TypeVar("R")


def compile_in_pieces(mod: IRModule, target: Any, tir_pipeline: str) -> Any:
    """Return TVM's executable of a network with scheduled kernels; its imports are the pieces.

    Raises whatever TVM raises.
    """
    with target:
        lowered = relax.get_pipeline("default")(mod)
    kernels = {name: function for name, function in lowered.functions.items() if isinstance(function, tirx.PrimFunc)}
    # The module that TVM compiles itself must not be empty: keep the kernel with the shortest name, a simple one.
    own, *others = sorted(kernels, key=lambda name: (len(name.name_hint), str(name.name_hint))) or [None]
    parts = [{name: kernels[name] for name in others[at::PIECES]} for at in range(min(PIECES, len(others)))]

    def build(part: dict[Any, Any]) -> Any:
        with target:
            return tirx.build(tvm.IRModule(part, attrs=lowered.attrs), target=target, pipeline=tir_pipeline)

    built = run_in_threads(build, parts)
    rest = {name: function for name, function in lowered.functions.items() if name == own or name not in kernels}
    functions = tvm.IRModule(rest, attrs=lowered.attrs)
    if built:
        functions = functions.with_attr("external_mods", [*(lowered.attrs or {}).get("external_mods", ()), *built])
    with target:
        return relax.build(functions, target, relax_pipeline=None, tir_pipeline=tir_pipeline)


def compile_machine_code(executable: Any) -> None:
    """Compile all pieces to machine code in parallel; a virtual machine would compile them one after the other."""
    run_in_threads(_compile_piece, [part for part in executable.mod.imports if part.kind in LLVM_KINDS])


def _compile_piece(part: Any) -> None:
    """Request one function of a piece: LLVM compiles all of them together."""
    for symbol in _symbols(part)[:1]:
        part.get_function(symbol.removeprefix("__tvm_ffi_"))


def replace_by_objects(executable: Any, folder: Path) -> None:
    """Replace the pieces of an executable by object files, which are written and linked as they are.

    Such pieces do not run.
    """
    parts = list(executable.mod.imports)
    if len(parts) < 2 or any(part.kind not in LLVM_KINDS for part in parts):
        return

    def write_piece(item: tuple[int, Any]) -> Any:
        at, part = item
        path = str(folder / f"piece{at}.o")
        part.write_to_file(path, "o")
        return tvm.runtime.load_static_library(path, _symbols(part))

    objects = run_in_threads(write_piece, enumerate(parts[1:]))
    executable.mod.clear_imports()
    for part in [parts[0], *objects]:  # the first stays: TVM reads the processor from it
        executable.mod.import_module(part)


def _symbols(part: Any) -> list[str]:
    return [str(symbol) for symbol in part.get_function("get_func_names")()]


def run_in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of a function for all items, in order, with a thread for each processor."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))
