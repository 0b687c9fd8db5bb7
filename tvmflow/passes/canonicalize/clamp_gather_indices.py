"""ClampGatherIndices: let every lookup in a table stay inside of the table.

TVM's importers write lookups that read whatever lies at a place, also outside of the table: a number that is no word of
the vocabulary ends the process. Clipped, it is the last word, and the check against the source framework tells who is
right.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


@mutator
class _Clipper(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.take" or str(call.attrs.mode) != "fast":
            return call
        axis = call.attrs.axis
        return relax.op.take(call.args[0], call.args[1], None if axis is None else int(axis), mode="clip")


@tvm.transform.module_pass(opt_level=0, name="ClampGatherIndices")
class ClampGatherIndices:
    """IRModule -> IRModule whose `take` clips its places."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        mod.update_func(mod.get_global_var("main"), _Clipper(mod).visit_expr(mod["main"]))
        return mod
