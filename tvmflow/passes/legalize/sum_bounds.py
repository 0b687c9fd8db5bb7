"""Bound the scaled sums of integer convolutions by their weights, so that they need not be saturated."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmflow.ir.tvm_compat import constant_value, operator_of, type_of

_LARGEST = {"int8": 128, "uint8": 255}
Array = np.ndarray[Any, Any]


def largest_scaled_sum(value: Any, resolve: Callable[[Any], Any]) -> float:
    """Return a bound of |float32(convolution + offset) * factor| with constants, infinite for anything else.

    resolve: gives the expression that a variable is bound to.
    """
    if operator_of(value) != "relax.multiply" or operator_of(wide := resolve(value.args[0])) != "relax.astype":
        return math.inf
    total, offset = resolve(wide.args[0]), np.zeros(1)
    if operator_of(total) == "relax.add":
        constant = constant_value(total.args[1])
        if constant is None:
            return math.inf
        total, offset = resolve(total.args[0]), constant.numpy()
    factor, sums = constant_value(value.args[1]), _largest_sums(total)
    if factor is None or sums is None:
        return math.inf
    try:
        bounds = (sums + np.abs(offset.astype(np.float64))) * np.abs(factor.numpy().astype(np.float64))
    except ValueError:  # not of the channels of the sums
        return math.inf
    return float(bounds.max())


def _largest_sums(call: Any) -> Array | None:
    """Return a bound of the sums of each channel of a packed convolution, (1, O, 1, 1, o), None for anything else."""
    if operator_of(call) != "relax.nn.conv2d":
        return None
    weight, dtype = constant_value(call.args[1]), str(type_of(call.args[0]).dtype)
    axes = re.findall(r"[A-Z]|\d+[a-z]", str(call.attrs.kernel_layout))
    if weight is None or dtype not in _LARGEST or str(call.attrs.out_layout or "")[-1:] != "c":
        return None
    numbers = np.abs(weight.numpy().astype(np.int64))
    of_outputs = [at for at, axis in enumerate(axes) if axis.upper().endswith("O")]
    if numbers.ndim != len(axes) or len(of_outputs) != 2:
        return None
    sums = numbers.sum(tuple(at for at in range(numbers.ndim) if at not in of_outputs))
    return np.asarray(_LARGEST[dtype] * sums.reshape(1, sums.shape[0], 1, 1, sums.shape[1]), np.float64)
