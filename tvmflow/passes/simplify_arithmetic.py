"""SimplifyArithmetic: one clip for two, and products in place of divisions by a number, as hard-swish and hard-sigmoid are imported.

A product with the reciprocal differs from a division by a unit in the last place. What is rounded next, as quantized models do with what they divide by
a scale, stays a division.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

from tvmflow.ir.tvm_names import constant_value, operator_of, type_of

_LEAST, _MOST = 1e-30, 1e30  # of divisors: reciprocals are normal numbers of float32


def _bounds(call: Any) -> tuple[float, float]:
    low, high = (float(argument.value) for argument in call.args[1:])
    return low, high


def _merge_clips(function: Any) -> Any:
    data, inner_low, inner_high, low, high = (wildcard() for _ in range(5))
    inner = is_op("relax.clip")(data, inner_low, inner_high)

    def merged(call: Any, matches: Any) -> Any:
        (first_low, first_high), (least, most) = _bounds(matches[inner]), _bounds(call)
        if not (first_low <= first_high and least <= most):
            return call
        bounds = (min(max(bound, least), most) for bound in (first_low, first_high))
        integral = np.issubdtype(np.dtype(str(type_of(call).dtype)), np.integer)
        return relax.op.clip(matches[data], *(int(bound) if integral else bound for bound in bounds))

    return rewrite_call(is_op("relax.clip")(inner, low, high), merged, function)


def _multiply(function: Any) -> Any:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    rounded = {binding.value.args[0] for binding in bindings if operator_of(binding.value) == "relax.round"}
    kept = {binding.value for binding in bindings if binding.var in rounded}
    data, number = wildcard(), is_const()

    def multiplied(call: Any, matches: Any) -> Any:
        divisor: Any = constant_value(matches[number])
        values = divisor.numpy()
        if values.dtype != np.float32 or values.size != 1 or call in kept:
            return call
        by = float(values.reshape(()))
        if not _LEAST < abs(by) < _MOST:  # nor NaN
            return call
        return relax.op.multiply(matches[data], relax.const((1.0 / values.astype(np.float64)).astype(np.float32)))

    return rewrite_call(is_op("relax.divide")(data, number), multiplied, function)


@tvm.transform.module_pass(opt_level=0, name="SimplifyArithmetic")
class SimplifyArithmetic:
    """IRModule -> IRModule."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        mod.update_func(mod.get_global_var("main"), _multiply(_merge_clips(mod["main"])))
        return relax.transform.DeadCodeElimination(["main"])(mod)
