"""Relax the alignment of a network's inputs in the kernels that read them.

Callers then need not align inputs, and nothing is copied. TVM compiles loads of a parameter for its alignment of 64
bytes. The alignment of an input becomes that of its elements; unaligned vector loads are as fast unless they cross a
cache line.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tvm
from tvm import relax, tirx

from tvmflow.ir.relax.serialization import bytes_of
from tvmflow.ir.tir.stmt_rewriter import rewrite_kernels
from tvmflow.ir.tir.workloads import called
from tvmflow.ir.tvm_compat import IRModule, buffer_of

_INPUTS = (
    "tvmflow.inputs"  # attribute of a kernel: names of its buffers that may be network inputs -> bytes of an element
)
_ALIGNMENT = "storage_alignment"  # TVM's key of a parameter's alignment, in bytes


def mark_network_inputs(mod: IRModule) -> Any:
    """Return a module in which an attribute of each kernel names its parameters that are inputs of the network."""
    if not any(isinstance(function, relax.Function) for function in mod.functions.values()):
        return mod
    main = relax.transform.RewriteDataflowReshape()(mod)["main"]  # the pass that makes views when memory is allocated
    inputs, input_positions = set(main.params), defaultdict[str, set[int]](set)
    for block in main.body.blocks:
        for binding in block.bindings:
            call = called(binding.value)
            if call is not None:
                positions = [at for at, argument in enumerate(call[1]) if argument in inputs]
                input_positions[call[0]].update(positions)
            elif any(variable in inputs for variable in relax.analysis.free_vars(binding.value)):
                inputs.add(binding.var)  # aliases an input in another shape
    functions = dict(mod.functions.items())
    for variable, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and input_positions[variable.name_hint]:
            buffers = (buffer_of(function, function.params[at]) for at in sorted(input_positions[variable.name_hint]))
            sizes = {str(b.name): bytes_of((1,), str(b.dtype)) for b in buffers if b is not None}
            functions[variable] = function.with_attr(_INPUTS, sizes)
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


@tvm.transform.module_pass(opt_level=0, name="UnalignedInputs")
class UnalignedInputs:
    """IRModule -> IRModule, of kernels lowered to runtime calls."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        return rewrite_kernels(mod, _alignment_rewriter)


def _alignment_rewriter(kernel: Any) -> Any:
    sizes = {str(name): int(size) for name, size in (kernel.attrs.get(_INPUTS) or {}).items()}

    def rewrite(statement: Any) -> Any:
        if not (isinstance(statement, tirx.AttrStmt) and str(statement.attr_key) == _ALIGNMENT):
            return statement
        size = sizes.get(str(statement.node.name))
        return (
            statement
            if size is None
            else tirx.AttrStmt(statement.node, _ALIGNMENT, tirx.IntImm("int32", size), statement.body)
        )

    return rewrite
