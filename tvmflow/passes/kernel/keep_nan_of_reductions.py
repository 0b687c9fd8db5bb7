"""Let reductions to a maximum or minimum, and max pools, return NaN where a value is NaN, as numpy and PyTorch do.

TVM keeps the larger of the result so far and the next value, which forgets a NaN at one of the next values. The place
of a maximum or minimum is that of the first NaN. The maxima of a softmax stay so: a NaN also goes through the
exponential of its value, and so into the whole row.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal, structural_map

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tvm_compat import IRModule, block_class, dtype_of, load_class, loaded
from tvmflow.passes.kernel.places_of_limits import change_places
from tvmflow.passes.legalize.clip import has_limits_of_nan, limit_with_nan
from tvmflow.targets.cpu_features import is_cpu

_OF_SOFTMAX = ("T_softmax", "attention")  # beginnings of the names of their blocks


def keep_nan_of_reductions(mod: IRModule, target: Any) -> Any:
    """Return a module of scheduled kernels whose maxima and minima of floats keep NaN; on GPUs their places only."""
    changes = ((block_class(), lambda block: _change_block(block, target)),)
    return transform_kernels(mod, lambda _: True, lambda kernel: kernel.with_body(structural_map(kernel.body, changes)))


def _change_block(block: Any, target: Any) -> Any:
    if isinstance(block.body, tirx.SeqStmt) and len(block.writes) == 2:
        return change_places(block, lambda is_max, so_far, after: _limit(is_max, so_far, after, target))
    if (
        not is_cpu(target)
        or str(block.name_hint).startswith(_OF_SOFTMAX)
        or not isinstance(block.body, tirx.BufferStore)
    ):
        return block
    store = block.body
    found = _with_nan(store, store.value, target)
    if found is None:
        return block
    body = tirx.BufferStore(store.buffer, found, store.indices)
    same, buffers = (block.iter_vars, block.reads, block.writes, block.name_hint), block.alloc_buffers
    return type(block)(*same, body, block.init, buffers, block.match_buffers, block.annotations)


def _with_nan(store: Any, value: Any, target: Any) -> Any:
    """Return the value to store that keeps NaN; None where the statement does not accumulate a limit."""
    if not isinstance(value, tirx.Max | tirx.Min) or "float" not in dtype_of(value):
        return None
    so_far, after = (value.a, value.b) if _is_result(store, value.a) else (value.b, value.a)
    if not _is_result(store, so_far):
        return None
    return _limit(isinstance(value, tirx.Max), so_far, after, target)


def _limit(is_max: bool, so_far: Any, after: Any, target: Any) -> Any:
    """Return the maximum or minimum so far and of the next value, NaN if one of them is."""
    if not is_cpu(target):
        limit = (tirx.Max if is_max else tirx.Min)(so_far, after)
        return tirx.Select(tirx.isnan(so_far), so_far, tirx.Select(tirx.isnan(after), after, limit))
    if has_limits_of_nan(dtype_of(after), target):
        return limit_with_nan(is_max, so_far, after)
    # x86 returns its second operand where one of them is NaN: a NaN that was found stays.
    limit = (tirx.Max if is_max else tirx.Min)(after, so_far)
    return tirx.Select(tirx.isnan(after), tirx.const(float("nan"), dtype_of(after)), limit)


def _is_result(store: Any, value: Any) -> bool:
    """Whether a value is what the statement overwrites."""
    if not isinstance(value, load_class()) or not loaded(value).same_as(store.buffer):
        return False
    return all(structural_equal(a, b) for a, b in zip(value.indices, store.indices, strict=True))
