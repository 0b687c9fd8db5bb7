"""Convert MXNet's operators to Relax. Attributes are text in MXNet's files; they are parsed, never evaluated.

Source: the parameter descriptions of MXNet 1.9's operators, checked against MXNet itself by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.mxnet.arithmetic import ARITHMETIC, activation, leaky_relu, normalized, same
from tvmflow.frontends.mxnet.moves import MOVES
from tvmflow.frontends.mxnet.operands import Operands, constant


def _pair(numbers: tuple[int, ...], rest: int) -> tuple[int, ...]:
    """Return height and width; signals are images of one row."""
    return (rest, *numbers) if len(numbers) == 1 else numbers


def _as_image(o: Operands, value: Any) -> Any:
    return value if len(o.shape_of(value)) == 4 else o.emit(relax.op.expand_dims(value, 2))


def _as_given(o: Operands, value: Any) -> Any:
    return value if len(o.shape) == 4 else relax.op.squeeze(o.emit(value), [2])


def _window(o: Operands) -> dict[str, Any]:
    """Return the attributes that both kinds of convolutions have."""
    pad = _pair(o.integers("pad", (0,)), 0) if len(o.shape) == 3 else o.integers("pad", (0, 0))
    one = (1,) * (len(o.shape) - 2)
    return {
        "strides": list(_pair(o.integers("stride", one), 1)),
        "padding": [*pad, *pad],
        "dilation": list(_pair(o.integers("dilate", one), 1)),
        "groups": o.integer("num_group", 1),
    }


def _check_window(o: Operands) -> None:
    kernel, layout = o.integers("kernel", ()), o.attrs.get("layout", "None")
    if len(kernel) not in (1, 2) or layout not in ("NCHW", "NCW", "None"):
        raise o.unsupported(f"layout {layout} and kernel {o.attrs.get('kernel')}")


def _convolution(o: Operands) -> Any:
    _check_window(o)
    value = relax.op.nn.conv2d(*(_as_image(o, one) for one in o.values[:2]), **_window(o))
    return _as_given(o, value if o.flag("no_bias") else _with_bias(o, value))


def _with_bias(o: Operands, value: Any) -> Any:
    return relax.op.add(value, constant(o.array(2).reshape(1, -1, 1, 1)))


def _deconvolution(o: Operands) -> Any:
    _check_window(o)
    if any(o.integers("target_shape", ())):
        raise o.unsupported("target_shape")
    adjust = list(_pair(o.integers("adj", (0,) * (len(o.shape) - 2)), 0))
    operands = (_as_image(o, one) for one in o.values[:2])
    value = relax.op.nn.conv2d_transpose(*operands, output_padding=adjust, **_window(o))
    return _as_given(o, value if o.flag("no_bias", True) else _with_bias(o, value))


def _fully_connected(o: Operands) -> Any:
    value = o.values[0]
    shape = o.shape_of(value)
    if o.flag("flatten", True) and len(shape) > 2:
        value = relax.op.reshape(value, (shape[0], math.prod(shape[1:])))
    value = relax.op.matmul(value, constant(o.array(1).T))
    return value if o.flag("no_bias") else relax.op.add(value, constant(o.array(2)))


def _batch_norm(o: Operands) -> Any:
    gamma, beta, mean, variance = (o.array(index) for index in (1, 2, 3, 4))
    gamma = np.ones_like(gamma) if o.flag("fix_gamma", True) else gamma
    normalized = relax.op.nn.batch_norm(
        o.values[0],
        constant(gamma),
        constant(beta),
        constant(mean),
        constant(variance),
        axis=o.integer("axis", 1),
        epsilon=o.number("eps", 1e-3),
        training=False,
    )

    return relax.TupleGetItem(normalized, 0)


def _pooling(o: Operands) -> Any:
    kind = o.attrs.get("pool_type", "max")
    if kind not in ("max", "avg") or o.attrs.get("layout", "None") not in ("NCHW", "NCW", "None"):
        raise o.unsupported(f"pool_type={kind}")
    value = o.values[0]
    if o.flag("global_pool"):
        spatial = list(range(2, len(o.shape)))
        return (relax.op.max if kind == "max" else relax.op.mean)(value, axis=spatial, keepdims=True)
    _check_window(o)
    return _as_given(o, _windows(o, kind, _as_image(o, value)))


def _windows(o: Operands, kind: str, value: Any) -> Any:
    window, kernel = _window(o), _pair(o.integers("kernel", ()), 1)
    convention = o.attrs.get("pooling_convention", "valid")
    if convention not in ("valid", "full"):
        raise o.unsupported(f"pooling_convention={convention}")
    options: dict[str, Any] = {
        "pool_size": list(kernel),
        "strides": window["strides"],
        "padding": window["padding"],
        "ceil_mode": convention == "full",
    }
    if kind == "max":
        return relax.op.nn.max_pool2d(value, **options)
    sizes, pad = o.shape_of(value)[2:], window["padding"][:2]
    steps = zip(sizes, pad, kernel, window["strides"], strict=True)
    uneven = any((size + 2 * p - k) % s for size, p, k, s in steps)
    if convention == "full" and uneven:
        raise o.unsupported("an average over windows that reach over the edge")
    return relax.op.nn.avg_pool2d(value, **options, count_include_pad=o.flag("count_include_pad", True))


def _flatten(o: Operands) -> Any:
    shape = o.shape_of(o.values[0])
    return relax.op.reshape(o.values[0], (shape[0], math.prod(shape[1:])))


def _softmax(o: Operands, function: Callable[..., Any]) -> Any:
    if o.flag("use_length"):
        raise o.unsupported("use_length=True")
    value, temperature = o.values[0], o.number("temperature", 1.0)
    if temperature != 1.0:
        value = o.emit(relax.op.divide(value, constant(temperature)))
    return function(value, axis=o.axis("axis", -1))


def _softmax_activation(o: Operands) -> Any:
    return relax.op.nn.softmax(o.values[0], axis=1 if o.attrs.get("mode") == "channel" else -1)


def _softmax_output(o: Operands) -> Any:
    """Convert the head used in training; its label input is ignored."""
    return relax.op.nn.softmax(o.values[0], axis=1 if o.flag("multi_output") else -1)


def _group_norm(o: Operands) -> Any:
    groups, shape = o.integer("num_groups", 1), o.shape
    parts = o.emit(relax.op.reshape(o.values[0], (shape[0], groups, math.prod(shape[1:]) // groups)))
    normal = o.emit(relax.op.reshape(o.emit(normalized(o, parts, [2], o.number("eps", 1e-5))), shape))
    gamma, beta = (
        np.repeat(one, shape[1] // len(one)).reshape(1, -1, *(1 for _ in shape[2:])) for one in (o.array(1), o.array(2))
    )
    return relax.op.add(relax.op.multiply(normal, constant(gamma)), constant(beta))


def _lrn(o: Operands) -> Any:
    """Local response normalization: x / (knorm + alpha / nsize * sum of squares over nsize channels)^beta."""
    size, x = o.integer("nsize", 5), o.values[0]
    shape = o.shape_of(x)
    half = size // 2
    squares = relax.op.nn.pad(relax.op.multiply(x, x), [0, 0, half, half, 0, 0, 0, 0])
    total: Any = None
    for start in range(size):
        part = relax.op.strided_slice(squares, axes=[1], begin=[start], end=[start + shape[1]])
        total = part if total is None else relax.op.add(total, part)
    scale = relax.op.add(
        constant(o.number("knorm", 2.0)), relax.op.multiply(constant(o.number("alpha", 1e-4) / size), total)
    )
    return relax.op.divide(x, relax.op.power(scale, constant(o.number("beta", 0.75))))


OPERATORS: dict[str, Callable[[Operands], Any]] = {
    **ARITHMETIC,
    **MOVES,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    "BatchNorm": _batch_norm,
    "BatchNorm_v1": _batch_norm,
    "Activation": activation,
    "LeakyReLU": leaky_relu,
    "Pooling": _pooling,
    "Flatten": _flatten,
    "flatten": _flatten,
    "softmax": lambda o: _softmax(o, relax.op.nn.softmax),
    "log_softmax": lambda o: _softmax(o, relax.op.nn.log_softmax),
    "softmin": lambda o: _softmax(o, lambda x, axis: relax.op.nn.softmax(relax.op.negative(x), axis)),
    "SoftmaxActivation": _softmax_activation,
    "SoftmaxOutput": _softmax_output,
    "Softmax": _softmax_output,
    "LRN": _lrn,
    "GroupNorm": _group_norm,
    **dict.fromkeys(("Dropout", "identity", "_copy", "BlockGrad", "MakeLoss", "make_loss"), same),
}
