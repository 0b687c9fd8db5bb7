"""Interpret a Relax graph in numpy, one step at a time.

The interpreter defines the results of integer graphs: compiled libraries are bit-exact to it. Sums of 8-bit products
are matmuls of floats, so few at a time that they are exact. Float steps are computed in the graph's dtype, in another
order of additions than the library's. TVM compiles operators that are not in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Argument, Array, Graph, Ref, Step, scalar_of
from tvmflow.ir.relax.layers import is_plain_transposed
from tvmflow.ir.relax.numpy_convolution import (
    convolve,
    convolve_transposed,
    exact_matmul,
    is_integer,
    pad_image,
    sliding_windows,
)
from tvmflow.ir.relax.numpy_operators import run_compiled
from tvmflow.ir.relax.recurrent import RECURRENT, recurrence_of, run_recurrent
from tvmflow.support.samples import WHOLE

Operator = Callable[[list[Any], Step], Any]
Compute = Callable[[Step, list[Any]], Any]
Watch = Callable[[Step, Array], Array | None]


def run_graph(graph: Graph, x: Array, watch: Watch | None = None) -> Array:
    """Return the output of a graph with one input and one output; see `run_all`."""
    (output,) = run_all(graph, (x,), watch)
    return np.asarray(output)


def run_all(
    graph: Graph, inputs: Sequence[Any], watch: Watch | None = None, compute: Compute | None = None
) -> tuple[Any, ...]:
    """Return the outputs for inputs of the graph's shapes, or of a multiple of its batch if `scales_with_batch`.

    `watch(step, value)` is called with each value, and may return a replacement. compute: replaces `run_step`, for
    values that are not arrays.
    """
    compute = compute or run_step
    users = graph.users()
    left = {name: len(steps) for name, steps in users.items()}
    values: dict[str, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for step in graph.steps:
        arguments = [value_of(argument, values) for argument in step.args]
        value = compute(step, arguments)
        if isinstance(value, np.generic):  # numpy's result for tensors without axes
            value = np.asarray(value)
        if watch is not None and not isinstance(value, tuple):
            replaced = watch(step, value)
            value = value if replaced is None else replaced
        values[step.name] = value
        for name in step.refs:
            left[name] -= 1
            if left[name] == 0 and name not in graph.outputs:
                del values[name]
        if not users[step.name] and step.name not in graph.outputs:
            del values[step.name]
    return tuple(values[name] for name in graph.outputs)


def scales_with_batch(graph: Graph) -> bool:
    """Whether the batch is the first axis of every value, so that more samples may run at once."""
    batch = graph.batch
    return (
        batch != WHOLE
        and all(kind.shape[:1] == (batch,) for kind in graph.inputs.values())
        and all(
            (step.dtype == "tuple" and step.op != RECURRENT)
            or (len(step.shape) > 0 and step.shape[0] == batch and _keeps_batch(step, batch))
            for step in graph.steps
            if step.op != "constant"
        )
    )


def _keeps_batch(step: Step, batch: int) -> bool:
    if step.op == "relax.permute_dims":
        return step.call.attrs.axes is not None and int(step.call.attrs.axes[0]) == 0
    if step.op in ("relax.mean", "relax.sum", "relax.concat", "relax.split"):
        return step.op in _OPERATORS and 0 not in _axes(step, len(step.shape) or 4)
    if step.op == "relax.reshape":
        return math.prod(step.shape[1:]) * batch == math.prod(step.shape)
    if step.op == "relax.matmul":
        return isinstance(step.args[1], np.ndarray)
    return step.op in _OPERATORS or step.op.startswith("get_item")


def _axes(step: Step, ndim: int) -> list[int]:
    axis = step.call.attrs.axis
    if axis is None:
        return list(range(ndim))
    values = [axis] if isinstance(axis, int) or hasattr(axis, "value") else list(axis)
    return [int(a) % ndim if ndim else int(a) for a in values]


def value_of(argument: Argument, values: dict[str, Any]) -> Any:
    """Return an argument of a step with its references resolved."""
    if isinstance(argument, Ref):
        return values[argument.name]
    if isinstance(argument, tuple):
        return tuple(value_of(item, values) for item in argument)
    return argument


def run_step(step: Step, arguments: list[Any]) -> Any:
    """Compute one step."""
    if step.op.startswith("get_item."):
        return arguments[0][int(step.op.split(".")[1])]
    if step.op == "constant":
        return arguments[0]
    if step.op in _OPERATORS:
        return _OPERATORS[step.op](arguments, step)
    return run_compiled(step, arguments)


# -- convolutions and products ----------------------------------------------------------------------------------------


def _ints(values: Any) -> list[int]:
    return [int(v) for v in values]


def _conv2d_transpose(a: list[Any], step: Step) -> Array:
    attrs = step.call.attrs
    if not is_plain_transposed(attrs):
        return np.asarray(run_compiled(step, a))
    return convolve_transposed(a[0], a[1], _ints(attrs.strides), _ints(attrs.padding), _ints(attrs.output_padding))


def _conv2d(a: list[Any], step: Step) -> Array:
    attrs = step.call.attrs
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "OIHW":
        return np.asarray(run_compiled(step, a))
    return convolve(a[0], a[1], _ints(attrs.strides), _ints(attrs.padding), _ints(attrs.dilation), int(attrs.groups))


def _matmul(a: list[Any], _step: Step) -> Array:
    return exact_matmul(a[0], a[1])


# -- pooling ----------------------------------------------------------------------------------------------------------


def _pool_view(x: Array, step: Step, fill: float) -> Array:
    attrs = step.call.attrs
    kernel, strides, dilation = _ints(attrs.pool_size), _ints(attrs.strides), _ints(attrs.dilation)
    top, left, bottom, right = _ints(attrs.padding)
    height, width = step.shape[2:]
    need_h = (height - 1) * strides[0] + (kernel[0] - 1) * dilation[0] + 1
    need_w = (width - 1) * strides[1] + (kernel[1] - 1) * dilation[1] + 1
    bottom, right = max(bottom, need_h - x.shape[2] - top), max(right, need_w - x.shape[3] - left)
    view = sliding_windows(pad_image(x, [top, left, bottom, right], fill), (kernel[0], kernel[1]), strides, dilation)
    return view[:, :, :height, :width]


def _max_pool2d(a: list[Any], step: Step) -> Array:
    x = a[0]
    if str(step.call.attrs.layout) != "NCHW":
        return np.asarray(run_compiled(step, a))
    view = _pool_view(x, step, np.iinfo(x.dtype).min if is_integer(x) else -np.inf)
    largest = view[..., 0, 0].copy()
    for i, j in np.ndindex(*view.shape[4:]):
        np.maximum(largest, view[..., i, j], out=largest)
    return largest


def window_counts(shape: tuple[int, ...], step: Step) -> Array:
    """Return how many elements besides padding each window of a pooling step reads: (1, 1, OH, OW)."""
    ones = np.ones((1, 1, *shape[2:]), np.float64)
    return np.asarray(_pool_view(ones, step, 0.0).sum(axis=(4, 5)))


def _avg_pool2d(a: list[Any], step: Step) -> Array:
    x = a[0]
    attrs = step.call.attrs
    if str(attrs.layout) != "NCHW" or is_integer(x):
        return np.asarray(run_compiled(step, a))
    counts = window_counts(x.shape, step)
    if attrs.count_include_pad:
        counts = np.full_like(counts, math.prod(_ints(attrs.pool_size)))
    return np.asarray(_pool_view(x, step, 0.0).sum(axis=(4, 5), dtype=np.float64) / counts).astype(x.dtype)


def _mean(a: list[Any], step: Step) -> Array:
    axes = tuple(_axes(step, a[0].ndim))
    return np.asarray(a[0].mean(axis=axes, keepdims=bool(step.call.attrs.keepdims), dtype=np.float64)).astype(
        a[0].dtype
    )


def _sum(a: list[Any], step: Step) -> Array:
    axes = tuple(_axes(step, a[0].ndim))
    return np.asarray(a[0].sum(axis=axes, keepdims=bool(step.call.attrs.keepdims), dtype=a[0].dtype))


# -- element by element -----------------------------------------------------------------------------------------------


def _divide(a: list[Any], _step: Step) -> Array:
    if not is_integer(a[0]):
        return np.asarray(a[0] / a[1])
    quotient = np.abs(a[0]) // np.abs(a[1])  # rounded towards zero, as in C and TVM
    return np.asarray(np.where((a[0] < 0) ^ (a[1] < 0), -quotient, quotient)).astype(a[0].dtype)


def _clip(a: list[Any], _step: Step) -> Array:
    low, high = scalar_of(a[1]), scalar_of(a[2])
    if is_integer(a[0]):
        return np.asarray(np.clip(a[0], int(low), int(high))).astype(a[0].dtype)
    return np.asarray(np.clip(a[0], a[0].dtype.type(low), a[0].dtype.type(high)))


def _softmax(a: list[Any], step: Step) -> Array:
    axis = int(step.call.attrs.axis)
    shifted = np.exp(a[0] - a[0].max(axis=axis, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))


def _pad(a: list[Any], step: Step) -> Array:
    attrs = step.call.attrs
    widths = np.reshape(_ints(attrs.pad_width), (-1, 2))
    if str(attrs.pad_mode) != "constant":
        return np.asarray(run_compiled(step, a))
    return np.pad(a[0], widths, constant_values=float(attrs.pad_value))


def _reshape(a: list[Any], step: Step) -> Array:
    if a[0].size == math.prod(step.shape):
        return np.asarray(a[0].reshape(step.shape))
    return np.asarray(a[0].reshape(-1, *step.shape[1:]))  # a multiple of the graph's batch


def _split(a: list[Any], step: Step) -> tuple[Array, ...]:
    parts, axis = step.call.attrs.indices_or_sections, int(step.call.attrs.axis)
    sections = int(getattr(parts, "value", parts)) if not hasattr(parts, "__len__") else _ints(parts)
    return tuple(np.split(a[0], sections, axis=axis))


def _permute(a: list[Any], step: Step) -> Array:
    axes = step.call.attrs.axes
    return np.asarray(np.transpose(a[0], None if axes is None else _ints(axes)))


def _sigmoid(a: list[Any], _step: Step) -> Array:
    x = a[0]
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _squeeze(a: list[Any], step: Step) -> Array:
    axis = step.call.attrs.axis
    return np.asarray(np.squeeze(a[0], None if axis is None else tuple(_ints(axis))))


def _column(vector: Array, step: Step, ndim: int) -> Array:
    if vector.size == 1:
        return np.asarray(vector.reshape(-1)[0])
    column = [1] * ndim
    column[int(step.call.attrs.axis)] = -1
    return vector.reshape(column)


def _quantize(a: list[Any], step: Step) -> Array:
    scale, zero = (_column(np.asarray(v), step, a[0].ndim) for v in a[1:3])
    limits = np.iinfo(step.dtype)
    return np.asarray(np.clip(np.rint(a[0] / scale) + zero, limits.min, limits.max).astype(step.dtype))


def _dequantize(a: list[Any], step: Step) -> Array:
    scale, zero = (_column(np.asarray(v), step, a[0].ndim) for v in a[1:3])
    return np.asarray(((a[0].astype(np.int32) - zero) * scale).astype(np.float32))


_OPERATORS: dict[str, Operator] = {
    "relax.quantize": _quantize,
    "relax.dequantize": _dequantize,
    "relax.nn.conv2d": _conv2d,
    "relax.nn.conv2d_transpose": _conv2d_transpose,
    "relax.matmul": _matmul,
    "relax.nn.max_pool2d": _max_pool2d,
    "relax.nn.avg_pool2d": _avg_pool2d,
    "relax.mean": _mean,
    "relax.sum": _sum,
    "relax.add": lambda a, _: a[0] + a[1],
    "relax.subtract": lambda a, _: a[0] - a[1],
    "relax.multiply": lambda a, _: a[0] * a[1],
    "relax.divide": _divide,
    "relax.maximum": lambda a, _: np.maximum(a[0], a[1]),
    "relax.minimum": lambda a, _: np.minimum(a[0], a[1]),
    "relax.abs": lambda a, _: np.abs(a[0]),
    "relax.sign": lambda a, _: np.sign(a[0]),
    "relax.floor": lambda a, _: np.floor(a[0]),
    "relax.trunc": lambda a, _: np.trunc(a[0]),
    "relax.round": lambda a, _: np.rint(a[0]),
    "relax.sqrt": lambda a, _: np.sqrt(a[0]),
    "relax.exp": lambda a, _: np.exp(a[0]),
    "relax.sigmoid": _sigmoid,
    "relax.tanh": lambda a, _: np.tanh(a[0]),
    "relax.left_shift": lambda a, _: np.left_shift(a[0], a[1]),
    "relax.right_shift": lambda a, _: np.right_shift(a[0], a[1]),
    "relax.greater_equal": lambda a, _: a[0] >= a[1],
    "relax.nn.relu": lambda a, _: np.maximum(a[0], a[0].dtype.type(0)),
    "relax.nn.leakyrelu": lambda a, s: np.where(a[0] > 0, a[0], a[0] * a[0].dtype.type(s.call.attrs.alpha)),
    "relax.nn.dropout": lambda a, _: (a[0], a[0]),
    "relax.clip": _clip,
    "relax.astype": lambda a, s: a[0].astype(s.dtype),
    "relax.nn.softmax": _softmax,
    "relax.nn.pad": _pad,
    "relax.reshape": _reshape,
    "relax.flatten": lambda a, s: a[0].reshape(-1, *s.shape[1:]),
    "relax.squeeze": _squeeze,
    "relax.expand_dims": lambda a, s: np.expand_dims(a[0], tuple(_ints(s.call.attrs.axis))),
    "relax.permute_dims": _permute,
    "relax.concat": lambda a, s: np.concatenate(a[0], axis=int(s.call.attrs.axis)),
    "relax.split": _split,
    RECURRENT: lambda a, s: run_recurrent(recurrence_of(s.call), a),
}
