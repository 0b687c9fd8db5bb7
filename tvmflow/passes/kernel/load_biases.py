"""Load the biases from which the sums of an arm64 tile start two registers at once, for each pixel.

LLVM loads them once and moves them to the sums of all pixels: two moves where one load takes their place. The load is
in assembly, which LLVM does not merge.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmflow.ir.tir.stmt_rewriter import realize_in, rewrite_marked, with_variable
from tvmflow.ir.tvm_compat import IRModule, dtype_of, load_class
from tvmflow.schedules.intrinsics.assembly import LOADED_BIAS
from tvmflow.schedules.template import FROM_BIAS


def load_biases(mod: IRModule) -> Any:
    """Return a module of scheduled kernels whose loops with the annotation FROM_BIAS are one load, or vectorized."""
    return rewrite_marked(mod, FROM_BIAS, _load)


def _load(loop: Any) -> Any:
    """Return an annotated loop over the eight channels of a pixel that initializes their sums."""
    lanes = int(loop.extent)
    first = realize_in(with_variable(loop.body, loop.loop_var, tirx.const(0, dtype_of(loop.extent))))
    block = first.block
    store, value = block.body, getattr(block.body, "value", None)
    if not isinstance(value, load_class()) or dtype_of(value) != "int32" or lanes != LOADED_BIAS.lanes:
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.VECTORIZED, loop.body)
    loaded = tirx.call_extern(f"int32x{lanes}", LOADED_BIAS.name, tirx.address_of(value))
    *outer, lane = store.indices
    stored = tirx.BufferStore(store.buffer, loaded, [*outer, tirx.Ramp(lane, tirx.const(1, dtype_of(lane)), lanes)])
    same = (block.iter_vars, block.reads, block.writes, block.name_hint)
    changed = type(block)(*same, stored, block.init, block.alloc_buffers, block.match_buffers, block.annotations)
    return type(first)(first.iter_values, first.predicate, changed)
