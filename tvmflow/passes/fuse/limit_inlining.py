"""LimitInlining: keep FuseOps from putting more into one expression than TVM comes to an end with.

Elementwise operators that are fused become one expression for each output. An operator that reads a value twice (x *
sigmoid(x)) doubles what was inlined before it. Worse, TVM's simplifier and its LLVM backend take for a value that has a
name (what exp is of, in the arithmetic that computes it) the value itself, wherever the name is read, and simplify
conditions within conditions: exp of exp of exp takes seconds, a fourth one minutes.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_walk

from tvmflow.ir.tir.blocks import region_buffer
from tvmflow.ir.tvm_compat import block_class, buffer_of, load_class, operator_of, type_of

_MOST_READS = 2000  # as TVM counts
_TIMES = {"tirx.exp": 30, "tirx.sigmoid": 30, "tirx.tanh": 18, "tirx.erf": 15, "tirx.if_then_else": 3}
"""How often TVM's simplifier looks at the operand of an operator, measured by the time of compiling chains of each."""
_TIMES_OF_SELECT = 3
_PATTERN = "op_pattern"
_INJECTIVE, _REDUCTION, _OPAQUE = 2, 3, 8  # of FuseOps: what is inlined, what inlines others, what stays alone


@mutator
class _Alone(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: Any, calls: list[Any]) -> None:
        super().__init__(mod)
        self.mod, self.calls = mod, calls

    def visit_call_(self, call: Any) -> Any:
        if not any(call.same_as(one) for one in self.calls):
            return call
        variable = call.args[0]
        kernel = self.builder_.add_func(self.mod[variable].with_attr(_PATTERN, _OPAQUE), variable.name_hint)
        return relax.call_tir(kernel, call.args[1], type_of(call))


@tvm.transform.module_pass(opt_level=0, name="LimitInlining")
class LimitInlining:
    """IRModule of kernels whose patterns are known -> the same, where FuseOps leaves those alone that would make an
    expression too large.
    """

    def transform_module(self, mod: Any, _context: Any) -> Any:
        reads: dict[Any, int] = {}  # a variable -> of the expression that stands for it
        alone = []
        for binding in (one for block in mod["main"].body.blocks for one in block.bindings):
            value = binding.value
            if isinstance(value, relax.TupleGetItem):
                reads[binding.var] = reads.get(value.tuple_value, 1)
            if operator_of(value) != "relax.call_tir":
                continue
            kernel = mod[value.args[0]]
            pattern = int(kernel.attrs.get(_PATTERN, _OPAQUE))
            if pattern > _REDUCTION:
                continue
            found = _reads_of(kernel, [reads.get(one, 1) for one in value.args[1]])
            if found > _MOST_READS and any(reads.get(one, 1) > 1 for one in value.args[1]):
                alone.append(value)
            elif pattern <= _INJECTIVE:
                reads[binding.var] = found
        if not alone:
            return mod
        changed = _Alone(mod, alone)
        main = changed.visit_expr(mod["main"])
        mod = changed.builder_.get()
        mod.update_func(mod.get_global_var("main"), main)
        return mod


def _reads_of(kernel: Any, inputs: list[int]) -> int:
    """Return how often a kernel's expression reads memory as TVM sees it, its own blocks inlined. inputs: how often
    that of each input does.
    """
    parameters = [buffer_of(kernel, parameter) for parameter in kernel.params]
    reads = dict(zip(parameters, inputs, strict=False))
    most = 0

    def look(block: Any) -> None:
        nonlocal most
        if block.name_hint == "root":  # holds the others
            return
        loads: list[Any] = []
        structural_walk(block.body, ((load_class(), loads.append),))
        found = _factor(block.body) * sum(reads.get(region_buffer(load), 1) for load in loads)
        for region in block.writes:
            reads[region_buffer(region)] = found
        most = max(most, found)

    structural_walk(kernel.body, (block_class(), look))
    return most


def _factor(body: Any) -> int:
    """Return how often TVM looks at what a block reads."""
    found = [1]
    looks = [
        (tvm.ir.Call, lambda call: found.append(_TIMES.get(operator_of(call), 1))),
        (tirx.Select, lambda _: found.append(_TIMES_OF_SELECT)),
    ]
    structural_walk(body, looks)
    return math.prod(found)
