"""KeepOnStack: small local memory of a kernel lies on the stack, where LLVM makes registers of it.

TVM asks its runtime for the memory of scope `local`: a call for each tile of sums, which are stored before and after they are summed.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import compilation_pipeline

from tvmflow.passes.hoist_tiles import HoistTiles
from tvmflow.passes.statements import rewritten_kernels

_SCOPE = "local"  # of memory, TVM's name
_MOST_BYTES = 4096  # of one buffer
PIPELINE = "tvmflow"  # name of TVM's pipeline for kernels, with our passes in it


def _kept(statement: Any) -> Any:
    """Return an allocation that TVM leaves to LLVM, where it is small and local; any other statement as it is."""
    if not isinstance(statement, tirx.AllocBuffer):
        return statement
    buffer = statement.buffer
    if str(buffer.scope()) != _SCOPE or not all(hasattr(extent, "value") for extent in buffer.shape):
        return statement
    dtype = tvm.DataType(str(buffer.dtype))
    if math.prod(int(extent.value) for extent in buffer.shape) * dtype.bits * dtype.lanes > 8 * _MOST_BYTES:
        return statement
    return tirx.AllocBuffer(buffer, {**dict(statement.annotations), "disable_lower_builtin": tirx.const(1, "bool")})


@tvm.transform.module_pass(opt_level=0, name="KeepOnStack")
class KeepOnStack:
    """IRModule -> IRModule, of kernels that are lowered as far as calls of the runtime."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return rewritten_kernels(mod, _kept)


def pipeline() -> tuple[Any, Any, Any]:
    """Return TVM's default passes for kernels, those for the host and for devices behind them, with ours before the host's."""
    lower, of_host, of_device = compilation_pipeline.get_tir_pipeline("default")
    return lower, lambda: tvm.ir.transform.Sequential([KeepOnStack(), HoistTiles(), of_host()]), of_device


@functools.cache
def register() -> None:
    """Give TVM, in this process, the pipeline of that name."""
    compilation_pipeline.PIPELINE_MAP[PIPELINE] = pipeline
