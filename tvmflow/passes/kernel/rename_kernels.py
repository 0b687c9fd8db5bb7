"""Prefix the names of all kernels, so that kernels of several modules can be linked together."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmflow.ir.tvm_compat import IRModule, type_of, typed


@mutator
class _Renamer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, names: dict[Any, Any]) -> None:
        super().__init__()
        self.names = names

    def visit_global_var_(self, variable: Any) -> Any:
        return self.names.get(variable, variable)


@tvm.transform.module_pass(opt_level=0, name="RenameKernels")
class RenameKernels:
    """IRModule of kernels and their calls -> the same with new names."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        names, functions = {}, {}
        for variable, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc):
                names[variable] = new = typed(tvm.ir.GlobalVar(self.prefix + variable.name_hint), type_of(variable))
                has_symbol = function.attrs is not None and "global_symbol" in function.attrs
                functions[new] = function.with_attr("global_symbol", new.name_hint) if has_symbol else function
        renamer = _Renamer(names)
        for variable, function in mod.functions.items():
            if variable not in names:
                functions[variable] = renamer.visit_expr(function)
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
