"""Limit the size of fused elementwise expressions, so that TVM compiles them in reasonable time.

FuseOps inlines fused elementwise operators into one expression for each output. An operator that reads a value twice (x
* sigmoid(x)) doubles the expression inlined before it. In addition, TVM's simplifier and its LLVM backend substitute
let-bound values (such as the argument of exp in its polynomial) at each use and simplify conditions within conditions:
exp of exp of exp takes seconds, a fourth exp takes minutes.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_walk

from tvmflow.ir.tir.blocks import region_buffer
from tvmflow.ir.tvm_compat import Call, IRModule, block_class, buffer_of, load_class, operator_of, type_of

_MOST_READS = 2000  # in the count of _count_reads
_TIMES = {
    "tirx.exp": 30,
    "tirx.sigmoid": 30,
    "tirx.tanh": 18,
    "tirx.erf": 15,
    "tvmflow.gelu": 15,
    "tvmflow.gelu_in_pieces": 15,
    "tirx.if_then_else": 3,
}
"""How often TVM's simplifier visits the operand of an operator, estimated from compile times of chains of each."""
_TIMES_OF_SELECT = 3
_PATTERN = "op_pattern"
_INJECTIVE, _REDUCTION, _OPAQUE = 2, 3, 8  # OpPatternKind: inlined; inlines others; never fused


@mutator
class _Isolator(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, calls: list[Any]) -> None:
        super().__init__(mod)
        self.mod, self.calls = mod, calls

    def visit_call_(self, call: Call) -> Any:
        if not any(call.same_as(one) for one in self.calls):
            return call
        variable = call.args[0]
        kernel = self.builder_.add_func(self.mod[variable].with_attr(_PATTERN, _OPAQUE), variable.name_hint)
        return relax.call_tir(kernel, call.args[1], type_of(call))


@tvm.transform.module_pass(opt_level=0, name="LimitInlining")
class LimitInlining:
    """IRModule of kernels with known patterns -> the same, with kernels marked opaque that would make an expression too
    large.
    """

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        reads: dict[Any, int] = {}  # a variable -> reads of the expression inlined for it
        isolated = []
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
            found = _count_reads(kernel, [reads.get(one, 1) for one in value.args[1]])
            if found > _MOST_READS and any(reads.get(one, 1) > 1 for one in value.args[1]):
                isolated.append(value)
            elif pattern <= _INJECTIVE:
                reads[binding.var] = found
        if not isolated:
            return mod
        isolator = _Isolator(mod, isolated)
        main = isolator.visit_expr(mod["main"])
        mod = isolator.builder_.get()
        mod.update_func(mod.get_global_var("main"), main)
        return mod


def _count_reads(kernel: Any, inputs: list[int]) -> int:
    """Return how often a kernel's expression reads memory as TVM visits it, with its own blocks inlined.

    inputs: the same count for the expression of each input.
    """
    parameters = [buffer_of(kernel, parameter) for parameter in kernel.params]
    reads = dict(zip(parameters, inputs, strict=False))
    most = 0

    def visit(block: Any) -> None:
        nonlocal most
        if block.name_hint == "root":  # contains the others
            return
        loads: list[Any] = []
        structural_walk(block.body, ((load_class(), loads.append),))
        found = _visits_of_operands(block.body) * sum(reads.get(region_buffer(load), 1) for load in loads)
        for region in block.writes:
            reads[region_buffer(region)] = found
        most = max(most, found)

    structural_walk(kernel.body, (block_class(), visit))
    return most


def _visits_of_operands(body: Any) -> int:
    """Return how often TVM visits the operands of a block's expression."""
    found = [1]
    callbacks = [
        (tvm.ir.Call, lambda call: found.append(_TIMES.get(operator_of(call), 1))),
        (tirx.Select, lambda _: found.append(_TIMES_OF_SELECT)),
    ]
    structural_walk(body, callbacks)
    return math.prod(found)
