"""Convert MXNet's operators to Relax. Attributes are text in MXNet's files; they are parsed, never evaluated.

Source: the parameter descriptions of MXNet 1.9's operators, checked against MXNet itself by the tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.support.errors import ModelFileError, UnsupportedOperatorError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operands:
    """The operands of an operator: values (Relax expressions), arrays of those that are parameters, attributes."""

    name: str
    op: str
    values: tuple[Any, ...]
    arrays: tuple[Array | None, ...]
    attrs: dict[str, str]
    shape_of: Callable[[Any], tuple[int, ...]]

    def integers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        text = self.attrs.get(key)
        if text is None or text in ("None", "()", "[]"):
            return default
        if not re.fullmatch(r"[\[(]?[-\d, L]*[\])]?", text):
            raise self.wrong(key)
        return tuple(int(number) for number in re.findall(r"-?\d+", text))

    def integer(self, key: str, default: int) -> int:
        return self.integers(key, (default,))[0]

    def number(self, key: str, default: float) -> float:
        try:
            value = float(self.attrs.get(key, default))
        except ValueError:
            raise self.wrong(key) from None
        if math.isnan(value):
            raise self.wrong(key)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return self.attrs.get(key, str(default)) in ("True", "true", "1")

    def array(self, index: int) -> Array:
        array = self.arrays[index] if index < len(self.arrays) else None
        if array is None:
            raise ModelFileError(f"{self.op} {self.name!r} computes its parameter {index}", "a parameter from the file")
        return array

    def wrong(self, key: str) -> ModelFileError:
        return ModelFileError(f"{self.op} {self.name!r} has {key}={self.attrs.get(key)!r}", "a legal attribute")

    def unsupported(self, what: str) -> UnsupportedOperatorError:
        return UnsupportedOperatorError(
            f"MXNet operator {self.op} ({self.name!r}) with {what}",
            "one that tvmflow's importer supports",
            "replace it in the model, or export the model to ONNX",
        )


def _const(value: Any) -> Any:
    return relax.const(np.ascontiguousarray(value, np.float32), "float32")


def _window(o: Operands) -> dict[str, Any]:
    """Return the attributes that both kinds of convolutions have."""
    pad = o.integers("pad", (0, 0))
    return {
        "strides": list(o.integers("stride", (1, 1))),
        "padding": [*pad, *pad],
        "dilation": list(o.integers("dilate", (1, 1))),
        "groups": o.integer("num_group", 1),
    }


def _convolution(o: Operands) -> Any:
    if o.attrs.get("layout", "NCHW") not in ("NCHW", "None") or len(o.integers("kernel", ())) != 2:
        raise o.unsupported(f"layout {o.attrs.get('layout')} and kernel {o.attrs.get('kernel')}")
    value = relax.op.nn.conv2d(*o.values[:2], **_window(o))
    return value if o.flag("no_bias") else relax.op.add(value, _const(o.array(2).reshape(1, -1, 1, 1)))


def _deconvolution(o: Operands) -> Any:
    if o.integers("target_shape", ()) or len(o.integers("kernel", ())) != 2:
        raise o.unsupported("target_shape or other than two dimensions")
    adjust = list(o.integers("adj", (0, 0)))
    value = relax.op.nn.conv2d_transpose(*o.values[:2], output_padding=adjust, **_window(o))
    return value if o.flag("no_bias", True) else relax.op.add(value, _const(o.array(2).reshape(1, -1, 1, 1)))


def _fully_connected(o: Operands) -> Any:
    value = o.values[0]
    shape = o.shape_of(value)
    if o.flag("flatten", True) and len(shape) > 2:
        value = relax.op.reshape(value, (shape[0], math.prod(shape[1:])))
    value = relax.op.matmul(value, _const(o.array(1).T))
    return value if o.flag("no_bias") else relax.op.add(value, _const(o.array(2)))


def _batch_norm(o: Operands) -> Any:
    gamma, beta, mean, variance = (o.array(index) for index in (1, 2, 3, 4))
    gamma = np.ones_like(gamma) if o.flag("fix_gamma", True) else gamma
    normalized = relax.op.nn.batch_norm(
        o.values[0],
        _const(gamma),
        _const(beta),
        _const(mean),
        _const(variance),
        axis=o.integer("axis", 1),
        epsilon=o.number("eps", 1e-3),
        training=False,
    )

    return relax.TupleGetItem(normalized, 0)


def _activation(o: Operands) -> Any:
    table = {
        "relu": relax.op.nn.relu,
        "sigmoid": relax.op.sigmoid,
        "tanh": relax.op.tanh,
        "softrelu": lambda x: relax.op.log(relax.op.add(_const(1.0), relax.op.exp(x))),
        "softsign": lambda x: relax.op.divide(x, relax.op.add(_const(1.0), relax.op.abs(x))),
    }
    kind = o.attrs.get("act_type", "")
    if kind not in table:
        raise o.unsupported(f"act_type={kind}")
    return table[kind](o.values[0])


def _leaky_relu(o: Operands) -> Any:
    kind, slope = o.attrs.get("act_type", "leaky"), o.number("slope", 0.25)
    if kind == "leaky":
        return relax.op.nn.leakyrelu(o.values[0], slope)
    if kind == "prelu":
        return relax.op.nn.prelu(o.values[0], o.values[1], axis=1)
    if kind == "elu":
        x = o.values[0]
        negative = relax.op.multiply(
            _const(slope), relax.op.subtract(relax.op.exp(relax.op.minimum(x, _const(0.0))), _const(1.0))
        )
        return relax.op.add(relax.op.nn.relu(x), negative)
    raise o.unsupported(f"act_type={kind}")


def _pooling(o: Operands) -> Any:
    kind = o.attrs.get("pool_type", "max")
    if kind not in ("max", "avg") or o.attrs.get("layout", "NCHW") not in ("NCHW", "None"):
        raise o.unsupported(f"pool_type={kind}")
    value = o.values[0]
    if o.flag("global_pool"):
        return (relax.op.max if kind == "max" else relax.op.mean)(value, axis=[2, 3], keepdims=True)
    kernel, stride, pad = o.integers("kernel", ()), o.integers("stride", (1, 1)), o.integers("pad", (0, 0))
    if len(kernel) != 2:
        raise o.unsupported(f"kernel={o.attrs.get('kernel')}")
    convention = o.attrs.get("pooling_convention", "valid")
    if convention not in ("valid", "full"):
        raise o.unsupported(f"pooling_convention={convention}")
    options: dict[str, Any] = {
        "pool_size": list(kernel),
        "strides": list(stride),
        "padding": [*pad, *pad],
        "ceil_mode": convention == "full",
    }
    if kind == "max":
        return relax.op.nn.max_pool2d(value, **options)
    sizes = o.shape_of(value)[2:]
    uneven = any((size + 2 * p - k) % s for size, p, k, s in zip(sizes, pad, kernel, stride, strict=True))
    if convention == "full" and uneven:
        raise o.unsupported("an average over windows that reach over the edge")
    return relax.op.nn.avg_pool2d(value, **options, count_include_pad=o.flag("count_include_pad", True))


def _flatten(o: Operands) -> Any:
    shape = o.shape_of(o.values[0])
    return relax.op.reshape(o.values[0], (shape[0], math.prod(shape[1:])))


def _reshape(o: Operands) -> Any:
    requested, shape = o.integers("shape", ()), o.shape_of(o.values[0])
    if not requested or o.flag("reverse") or any(size < -1 for size in requested):
        raise o.unsupported(f"shape={o.attrs.get('shape')}")
    sizes = [shape[index] if size == 0 and index < len(shape) else size for index, size in enumerate(requested)]
    if sizes.count(-1) == 1:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // max(known, 1)
    return relax.op.reshape(o.values[0], tuple(sizes))


def _concat(o: Operands) -> Any:
    return relax.op.concat(list(o.values), axis=o.integer("dim", 1))


def _softmax_head(o: Operands) -> Any:
    """Convert SoftmaxOutput, the head used in training; its label input is ignored."""
    return relax.op.nn.softmax(o.values[0], axis=1)


def _mean(o: Operands) -> Any:
    axes = o.integers("axis", ())
    if o.flag("exclude"):
        raise o.unsupported("exclude=True")
    return relax.op.mean(o.values[0], axis=list(axes) or None, keepdims=o.flag("keepdims"))


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
        _const(o.number("knorm", 2.0)), relax.op.multiply(_const(o.number("alpha", 1e-4) / size), total)
    )
    return relax.op.divide(x, relax.op.power(scale, _const(o.number("beta", 0.75))))


def _binary(name: str) -> Callable[[Operands], Any]:
    return lambda o: getattr(relax.op, name)(o.values[0], o.values[1])


def _with_scalar(name: str, reverse: bool = False) -> Callable[[Operands], Any]:
    def build(o: Operands) -> Any:
        scalar = _const(o.number("scalar", 0.0))
        operands = (scalar, o.values[0]) if reverse else (o.values[0], scalar)
        return getattr(relax.op, name)(*operands)

    return build


def _unary(name: str) -> Callable[[Operands], Any]:
    return lambda o: getattr(relax.op, name)(o.values[0])


def _same(o: Operands) -> Any:
    return o.values[0]


OPERATORS: dict[str, Callable[[Operands], Any]] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _fully_connected,
    "BatchNorm": _batch_norm,
    "BatchNorm_v1": _batch_norm,
    "Activation": _activation,
    "LeakyReLU": _leaky_relu,
    "Pooling": _pooling,
    "Flatten": _flatten,
    "flatten": _flatten,
    "Reshape": _reshape,
    "reshape": _reshape,
    "Concat": _concat,
    "concat": _concat,
    "clip": lambda o: relax.op.clip(o.values[0], o.number("a_min", -math.inf), o.number("a_max", math.inf)),
    "softmax": lambda o: relax.op.nn.softmax(o.values[0], axis=o.integer("axis", -1)),
    "log_softmax": lambda o: relax.op.nn.log_softmax(o.values[0], axis=o.integer("axis", -1)),
    "SoftmaxActivation": _softmax_head,
    "SoftmaxOutput": _softmax_head,
    "mean": _mean,
    "LRN": _lrn,
    "Dropout": _same,
    "identity": _same,
    "_copy": _same,
    "BlockGrad": _same,
    "MakeLoss": _same,
    "relu": lambda o: relax.op.nn.relu(o.values[0]),
    "sigmoid": _unary("sigmoid"),
    "tanh": _unary("tanh"),
    "exp": _unary("exp"),
    "sqrt": _unary("sqrt"),
    "transpose": lambda o: relax.op.permute_dims(o.values[0], list(o.integers("axes", ())) or None),
    "expand_dims": lambda o: relax.op.expand_dims(o.values[0], o.integer("axis", 0)),
    "squeeze": lambda o: relax.op.squeeze(o.values[0], list(o.integers("axis", ())) or None),
    "slice_axis": lambda o: relax.op.strided_slice(
        o.values[0],
        axes=[o.integer("axis", 0)],
        begin=[o.integer("begin", 0)],
        end=[o.integers("end", (o.shape_of(o.values[0])[o.integer("axis", 0)],))[0]],
    ),
    "elemwise_add": _binary("add"),
    "elemwise_sub": _binary("subtract"),
    "elemwise_mul": _binary("multiply"),
    "elemwise_div": _binary("divide"),
    "_Plus": _binary("add"),
    "_plus": _binary("add"),
    "_add": _binary("add"),
    "broadcast_add": _binary("add"),
    "broadcast_sub": _binary("subtract"),
    "broadcast_mul": _binary("multiply"),
    "broadcast_div": _binary("divide"),
    "_plus_scalar": _with_scalar("add"),
    "_minus_scalar": _with_scalar("subtract"),
    "_rminus_scalar": _with_scalar("subtract", reverse=True),
    "_mul_scalar": _with_scalar("multiply"),
    "_div_scalar": _with_scalar("divide"),
}
