"""Simplify arithmetic: merge clips, replace divisions and small powers by multiplications.

Hard-swish and hard-sigmoid are imported with divisions by a number; LLVM calls the C library for powers. A
multiplication by the reciprocal differs from the division by a unit in the last place. A division whose result is
rounded, as quantized models divide by a scale, stays a division. Batches of equal weight matrices become one matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, operator_of, shape_of, type_of

_LEAST, _MOST = 1e-30, 1e30  # of divisors: reciprocals are normal numbers of float32
_POWERS = (1.0, 2.0, 3.0, 4.0)


def _bounds(call: Call) -> tuple[float, float]:
    low, high = (float(argument.value) for argument in call.args[1:])
    return low, high


def _merge_clips(function: Any) -> Any:
    data, inner_low, inner_high, low, high = (wildcard() for _ in range(5))
    inner = is_op("relax.clip")(data, inner_low, inner_high)

    def merge(call: Call, matches: Any) -> Any:
        (first_low, first_high), (least, most) = _bounds(matches[inner]), _bounds(call)
        if not (first_low <= first_high and least <= most):
            return call
        bounds = (min(max(bound, least), most) for bound in (first_low, first_high))
        integral = np.issubdtype(np.dtype(str(type_of(call).dtype)), np.integer)
        return relax.op.clip(matches[data], *(int(bound) if integral else bound for bound in bounds))

    return rewrite_call(is_op("relax.clip")(inner, low, high), merge, function)


def _divisions_to_multiplications(function: Any) -> Any:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    rounded = {binding.value.args[0] for binding in bindings if operator_of(binding.value) == "relax.round"}
    feeds_round = {binding.value for binding in bindings if binding.var in rounded}
    data, number = wildcard(), is_const()

    def rewrite(call: Call, matches: Any) -> Any:
        divisor: Any = constant_value(matches[number])
        values = divisor.numpy()
        if values.dtype != np.float32 or values.size != 1 or call in feeds_round:
            return call
        by = float(values.reshape(()))
        if not _LEAST < abs(by) < _MOST:  # nor NaN
            return call
        return relax.op.multiply(matches[data], relax.const((1.0 / values.astype(np.float64)).astype(np.float32)))

    return rewrite_call(is_op("relax.divide")(data, number), rewrite, function)


def _expand_power(x: Any, exponent: float) -> Any:
    """Return a power as multiplications, a quotient or a root, as PyTorch computes it; None for other exponents."""
    if exponent < 0:
        made = _expand_power(x, -exponent)
        one = relax.const(np.ones((), str(type_of(x).dtype)))
        return None if made is None else relax.op.divide(one, made)
    if exponent == 0.5:
        return relax.op.sqrt(x)
    if exponent not in _POWERS:
        return None
    made = x
    for _ in range(int(exponent) - 1):
        made = relax.op.multiply(made, x)
    return made


def _expand_powers(function: Any) -> Any:
    data, number = wildcard(), is_const()

    def rewrite(call: Call, matches: Any) -> Any:
        exponent: Any = constant_value(matches[number])
        values = exponent.numpy()
        kind = type_of(matches[data])
        if values.size != 1 or values.ndim > kind.ndim or not np.issubdtype(values.dtype, np.floating):
            return call
        made = _expand_power(matches[data], float(values.reshape(())))
        return call if made is None else made

    return rewrite_call(is_op("relax.power")(data, number), rewrite, function)


def _share_weights(function: Any) -> Any:
    """Multiply by one matrix where all matrices of a constant batch are equal.

    PyTorch expands the weights of a dense layer to such a batch.
    """
    data, number = wildcard(), is_const()

    def share(call: Call, matches: Any) -> Any:
        weights: Any = constant_value(matches[number])
        values = weights.numpy()
        if values.ndim < 3 or values.ndim > type_of(matches[data]).ndim:
            return call
        matrices = values.reshape(-1, *values.shape[-2:])
        if not (matrices == matrices[:1]).all():
            return call
        return relax.op.matmul(matches[data], relax.const(matrices[0].copy()), call.attrs.out_dtype)

    return rewrite_call(is_op("relax.matmul")(data, number), share, function)


def _drop_broadcasts(function: Any) -> Any:
    """Remove broadcasts to the shape that a value already has."""
    data, shape = wildcard(), wildcard()

    def drop(call: Call, matches: Any) -> Any:
        value = matches[data]
        return value if shape_of(value) == shape_of(call) else call

    return rewrite_call(is_op("relax.broadcast_to")(data, shape), drop, function)


@tvm.transform.module_pass(opt_level=0, name="SimplifyArithmetic")
class SimplifyArithmetic:
    """IRModule -> IRModule."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        main = mod["main"]
        for step in (_merge_clips, _expand_powers, _divisions_to_multiplications, _share_weights, _drop_broadcasts):
            main = step(main)
        mod.update_func(mod.get_global_var("main"), main)
        return relax.transform.DeadCodeElimination(["main"])(mod)
