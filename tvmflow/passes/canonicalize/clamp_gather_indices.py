"""Clamp the indices of gathers (relax.take) to the table.

TVM's importers emit lookups that read any address, also outside of the table: a token that is not in the vocabulary
would crash the process. A clamped index reads the last row, and the comparison with the source framework shows whether
that differs.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.tvm_compat import Call, IRModule


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
        return mod
