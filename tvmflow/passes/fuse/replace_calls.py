"""Replace calls of a Relax function by calls of kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.tvm_compat import Call, IRModule, type_of


class Replacement(NamedTuple):
    """The kernel that replaces an expression, and the Relax values that it reads."""

    name: str
    function: Any
    values: tuple[Any, ...]


@mutator
class _Replacer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, kernels: dict[Any, Replacement]) -> None:
        super().__init__(mod)
        self.kernels = kernels

    def visit_call_(self, call: Call) -> Any:
        found = self.kernels.get(call)
        if found is None:
            return self.visit_expr_post_order(call)
        kernel = self.builder_.add_func(found.function, found.name)
        return relax.call_tir(kernel, [self.visit_expr(value) for value in found.values], type_of(call))


def replace_calls(mod: IRModule, kernels: dict[Any, Replacement]) -> Any:
    """Return the module whose main calls the kernels; remove the bindings that become unused."""
    if not kernels:
        return mod
    replacer = _Replacer(mod, kernels)
    replacer.builder_.update_func(mod.get_global_var("main"), replacer.visit_expr(mod["main"]))
    return relax.transform.DeadCodeElimination(["main"])(replacer.builder_.get())
