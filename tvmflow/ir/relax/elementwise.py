"""List elementwise operators, which passes that change layouts may compute in any layout."""

from __future__ import annotations

import numpy as np

from tvmflow.ir.relax.graph import Step, operators_named

UNARY = operators_named(
    """
    abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor isfinite isinf isnan
    log logical_not negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.selu nn.silu nn.softplus round rsqrt
    sigmoid sign sin sinh sqrt square tan tanh trunc
    """
)
"""Operators of one tensor; their other arguments are numbers and types."""

BROADCASTING = operators_named(
    """
    add atan2 bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal
    left_shift less less_equal log_add_exp logical_and logical_or logical_xor maximum minimum mod multiply
    not_equal power right_shift subtract where
    """
)
"""Operators of several tensors that are broadcast to one shape."""

DIVISIONS = frozenset({"relax.divide", "relax.floor_divide", "relax.floor_mod", "relax.mod"})
_UNDEFINED_AT_ZERO = {"relax.log", "relax.rsqrt", "relax.acosh"}


def finite_at_zero(step: Step) -> bool:
    """Whether an elementwise step is finite for zero inputs, with its constants (1 for padded divisors)."""
    if step.op in _UNDEFINED_AT_ZERO:
        return False
    if step.op == "relax.power":
        exponent = step.args[1]
        return isinstance(exponent, np.ndarray) and bool((exponent >= 0).all())
    return step.op not in DIVISIONS or isinstance(step.args[1], np.ndarray)
