"""Compile for WebAssembly: the CPU's kernels as a module of wasm32 with vectors of 128 bits, for browsers and node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmflow.backends.cpu import CpuBackend
from tvmflow.support.errors import StageError, UsageError
from tvmflow.targets.resolve import ResolvedTarget
from tvmflow.toolchain.triples import WASM

if TYPE_CHECKING:
    from tvmflow.config.params import TargetEntry

TRIPLE = f"{WASM}-wasi"
_MOST_WEIGHTS = 9 * 64 * 64  # transformed weights are four times as large, and are downloaded
_VECTORS = "+simd128"  # in every engine since 2021


class WasmBackend(CpuBackend):
    """The backend of WebAssembly. Its libraries run in an engine, not in TVM's virtual machine, on one thread."""

    has_machine = False
    precisions = ("float32", "bfloat16", "int8")  # LLVM 22 does not end on vectors of float16

    @classmethod
    def resolve(cls, entry: TargetEntry) -> ResolvedTarget:
        if entry.threads != 1:
            raise UsageError(
                f"threads: {entry.threads} of a target of kind wasm",
                "1: pages that share memory between threads need headers that few servers send",
                "set threads: 1",
            )
        attributes = entry.mattr if any(one[1:] == _VECTORS[1:] for one in entry.mattr) else (_VECTORS, *entry.mattr)
        mcpu = "generic" if entry.mcpu == "host" else entry.mcpu
        given = entry.model_copy(update={"mcpu": mcpu, "mtriple": entry.mtriple or TRIPLE, "mattr": attributes})
        found = super().resolve(given)
        if found.mtriple != TRIPLE:
            raise UsageError(f"mtriple: {found.mtriple} of a target of kind wasm", TRIPLE, "leave mtriple: out")
        return found

    def winograd_weights(self, dtype: str) -> float:
        return _MOST_WEIGHTS if dtype == "float32" else 0

    def export(self, executable: Any, path: Path) -> None:
        raise StageError("a library for TVM's virtual machine in WebAssembly", "network.so, a module without TVM")
