"""Replace the tensors of a Relax module's constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.tvm_compat import IRModule, constant_value, type_of


@mutator
class _TensorReplacer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, replace: Callable[[Any], Any]) -> None:
        super().__init__()
        self.replace = replace

    def visit_generic_const_(self, constant: Any) -> Any:
        tensor = constant_value(constant)
        return type(constant)(self.replace(tensor), type_of(constant)) if hasattr(tensor, "numpy") else constant

    visit_constant_ = visit_generic_const_  # in TVM 0.26


def replace_tensors(mod: IRModule, replace: Callable[[Any], Any]) -> Any:
    """Return a module with replace(tensor) for each constant's tensor. The types of the constants are unchanged."""
    replacer = _TensorReplacer(replace)
    functions = {
        name: replacer.visit_expr(function) if isinstance(function, relax.Function) else function
        for name, function in mod.functions.items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
