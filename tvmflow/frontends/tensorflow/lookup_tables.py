"""Compute the tables by which LiteRT evaluates functions of 16-bit integers.

The runtime interpolates between 513 values, which is coarser than 16 bits where a function is steep. A table of all
65,536 results gives exactly its outputs. Source: lut_population in tensorflow/lite/kernels/internal/common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.operation import Convert, Operation
from tvmflow.frontends.tensorflow.tflite_graph import Array, Quantization

Function = Callable[[Array], Array]
_STEPS, _LOW, _HIGH = 512, -(1 << 15), (1 << 15) - 1


def _erf(x: Array) -> Array:
    import math

    return np.asarray([math.erf(value) for value in x.reshape(-1)]).reshape(x.shape)


FUNCTIONS: dict[str, Function] = {
    "EXP": np.exp,
    "LOG": np.log,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "GELU": lambda x: np.asarray(0.5 * x * (1 + _erf(x / np.sqrt(2)))),
    "GELU-tanh": lambda x: np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
}


def _away(x: Array) -> Array:
    """Round halves away from zero."""
    return np.asarray(np.copysign(np.floor(np.abs(x) + 0.5), x))


def results_of(function: Function, given: Quantization, made: Quantization) -> Array:
    """Return the result for each 16-bit integer, from the smallest."""
    low, high = (float(given.scale[0]) * (bound - int(given.zero[0])) for bound in (_LOW, _HIGH))
    per_unit = (1 << 16) / (float(made.scale[0]) * (_HIGH - _LOW))
    step = (high - low) / _STEPS
    points = low + step * np.arange(_STEPS + 1)
    with np.errstate(all="ignore"):
        ends = function(points) * per_unit
        middle = _away(function(points[:-1] + step / 2) * per_unit)
    interpolated = _away((ends[1:] + _away(ends[:-1])) / 2)
    base = np.append(_away(ends[:-1]) - _away((interpolated - middle) / 2), _away(ends[-1:]))
    base = np.clip(np.nan_to_num(base, nan=0.0), _LOW, _HIGH).astype(np.int64)
    values = np.arange(_LOW, _HIGH + 1)
    index, offset = (_STEPS // 2) + (values >> 7), values & 0x7F
    return np.asarray(base[index] + (((base[index + 1] - base[index]) * offset + 64) >> 7), np.int16)


def by_table(convert: Convert) -> Convert:
    """Return a converter that looks a function of quantized 16-bit integers up, and converts others."""

    def converted(o: Operation) -> Any:
        tensor = o.tensor(0)
        if tensor.dtype != "int16" or not tensor.is_quantized or o.is_known(0) or o.output.quantization is None:
            return convert(o)
        assert tensor.quantization is not None
        name = "GELU-tanh" if o.node.name == "GELU" and o.options is not None and o.options.approximate else o.node.name
        table = results_of(FUNCTIONS[name], tensor.quantization, o.output.quantization)
        place = relax.op.add(relax.op.astype(o.stored(0), "int32"), o.constant(-_LOW, "int32"))
        return relax.op.take(o.constant(table), o.emit(place), axis=0)

    return converted
