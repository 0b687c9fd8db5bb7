"""Kernels that read a network's inputs take them wherever they begin: callers need not align them, and nothing is
copied.

TVM compiles loads of a parameter for addresses that its alignment divides, 64 bytes. Those of an input are aligned to
its elements alone; processors load vectors from such addresses as fast, unless they lie in two lines of the cache.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax, tirx

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.stmt_rewriter import rewritten_kernels
from tvmflow.ir.tir.workloads import called
from tvmflow.ir.tvm_compat import buffer_of

_INPUTS = (
    "tvmflow.inputs"  # attribute of a kernel: the names of its buffers that may be inputs, and bytes of an element
)
_ALIGNMENT = "storage_alignment"  # TVM's key of a parameter's alignment, in bytes


def mark_network_inputs(mod: Any) -> Any:
    """Return a module in which each kernel says as which of its parameters it is given inputs of the network."""
    main = next((function for function in mod.functions.values() if isinstance(function, relax.Function)), None)
    if main is None:
        return mod
    inputs, given = set(main.params), defaultdict[str, set[int]](set)
    for block in main.body.blocks:
        for binding in block.bindings:
            call = called(binding.value)
            if call is not None:
                given[call[0]].update(at for at, argument in enumerate(call[1]) if argument in inputs)
            elif any(variable in inputs for variable in relax.analysis.free_vars(binding.value)):
                inputs.add(binding.var)  # shows an input in another shape
    functions = dict(mod.functions.items())
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and given[variable.name_hint]:
            buffers = (buffer_of(function, function.params[at]) for at in sorted(given[variable.name_hint]))
            sizes = {str(buffer.name): bytes_of((1,), str(buffer.dtype)) for buffer in buffers if buffer is not None}
            functions[variable] = function.with_attr(_INPUTS, sizes)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@tvm.transform.module_pass(opt_level=0, name="UnalignedInputs")
class UnalignedInputs:
    """IRModule -> IRModule, of kernels that are lowered as far as calls of the runtime."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return rewritten_kernels(mod, _loosening)


def _loosening(kernel: Any) -> Any:
    sizes = {str(name): int(size) for name, size in (kernel.attrs.get(_INPUTS) or {}).items()}

    def loosened(statement: Any) -> Any:
        if not (isinstance(statement, tirx.AttrStmt) and str(statement.attr_key) == _ALIGNMENT):
            return statement
        size = sizes.get(str(statement.node.name))
        return (
            statement
            if size is None
            else tirx.AttrStmt(statement.node, _ALIGNMENT, tirx.IntImm("int32", size), statement.body)
        )

    return loosened
