"""Clamp the indices of gathers (relax.take) to the table, and those of kernels that are data to their buffers.

TVM's importers emit lookups that read any address, also outside of the table: a token that is not in the vocabulary
would crash the process. A clamped index reads the last row, and the comparison with the source framework shows whether
that differs.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_map, structural_walk

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tvm_compat import Call, IRModule, dtype_of, load_class, loaded


@mutator
class _Clamper(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.take" or str(call.attrs.mode) != "fast":
            return call
        axis = call.attrs.axis
        return relax.op.take(call.args[0], call.args[1], None if axis is None else int(axis), mode="clip")


@tvm.transform.module_pass(opt_level=0, name="ClampGatherIndices")
class ClampGatherIndices:
    """IRModule -> IRModule in which `take` clamps its indices."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        mod.update_func(mod.get_global_var("main"), _Clamper(mod).visit_expr(mod["main"]))
        return transform_kernels(
            mod,
            lambda _: True,
            lambda kernel: kernel.with_body(structural_map(kernel.body, ((load_class(), _clamp),), order="pre")),
        )


def _clamp(load: Any) -> Any:
    """Return a load of a kernel whose indices that are data, as those of a deformable convolution, are clamped."""
    buffer = loaded(load)
    indices = [
        tirx.Max(tirx.Min(index, tirx.const(int(extent) - 1, dtype_of(index))), tirx.const(0, dtype_of(index)))
        if _is_data(index) and not isinstance(index, tirx.Max | tirx.Min)
        else index
        for index, extent in zip(load.indices, buffer.shape, strict=True)
    ]
    if all(new.same_as(old) for new, old in zip(indices, load.indices, strict=True)):
        return load
    return tirx.BufferLoad(buffer, indices)


def _is_data(index: Any) -> bool:
    found: list[Any] = []
    structural_walk(index, (load_class(), lambda one: found.append(one)))
    return bool(found)
