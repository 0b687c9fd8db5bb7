"""Fuse decomposed layer norms and RMS norms, and decompose group and instance norms and variances.

ONNX files before opset 17 and many PyTorch models compute a norm step by step: a mean, the differences from it, the
mean of their squares and a root. CanonicalNorms replaces these steps by one operator. TVM's kernels of group and
instance norms subtract the square of the mean from the mean of the squares, which cancels where the mean is large. The
decomposed form squares the differences instead, and its means over an image are computed on packed channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Argument, Array, Graph, Ref, Step, read_graph
from tvmflow.ir.tvm_compat import IRModule, shape_of

_VARIANCES = ("relax.variance", "relax.std")
_DECOMPOSED = ("relax.nn.group_norm", "relax.nn.instance_norm", *_VARIANCES)


@dataclass(frozen=True)
class _Norm:
    """A norm over one axis.

    value: name of the normalized tensor; centered: whether its mean is subtracted; weight, bias: one number for each
    index of the axis, or None.
    """

    value: str
    axis: int
    epsilon: float
    centered: bool
    weight: Array | None = None
    bias: Array | None = None


@tvm.transform.module_pass(opt_level=0, name="CanonicalNorms")
class CanonicalNorms:
    """IRModule -> IRModule; unchanged if the module contains no such norm."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        graph = read_graph(mod)
        norms = _NormMatcher(graph).found
        if not norms and not any(step.op in _DECOMPOSED for step in graph.steps):
            return mod
        builder = relax.BlockBuilder()
        values: dict[str, Any] = {}

        def body(parameters: dict[str, Any]) -> list[Any]:
            values.update(parameters)
            for step in graph.steps:
                values[step.name] = builder.emit(_rewrite_step(builder, step, graph, norms, values), step.name)
            return [values[name] for name in graph.outputs]

        return build_main(builder, graph, body)


def _rewrite_step(builder: Any, step: Step, graph: Graph, norms: dict[str, _Norm], values: dict[str, Any]) -> Any:
    """Return the expression that replaces a step."""
    if step.name in norms:
        return _emit_norm(norms[step.name], graph, values)
    if step.op in _VARIANCES and step.dtype == "float32":
        return _emit_variance(builder, step, values[step.refs[0]])
    if step.op in _DECOMPOSED and step.op not in _VARIANCES and _normalizes_channels(step):
        return _GroupNorm(builder, step).emit_norm(values[step.refs[0]])
    return constant(step.args[0], step.dtype) if step.op == "constant" else rebuild_call(step, values.__getitem__)


def _emit_norm(norm: _Norm, graph: Graph, values: dict[str, Any]) -> Any:
    """Return the norm operator applied to the value of a norm."""
    extent = graph.kind(norm.value).shape[norm.axis]
    weight = constant(np.ones(extent) if norm.weight is None else norm.weight, "float32")
    value = values[norm.value]
    if not norm.centered:
        return relax.op.nn.rms_norm(value, weight, [norm.axis], norm.epsilon)
    bias = constant(np.zeros(extent) if norm.bias is None else norm.bias, "float32")
    return relax.op.nn.layer_norm(value, weight, bias, [norm.axis], norm.epsilon)


def _emit_variance(builder: Any, step: Step, value: Any) -> Any:
    """Return the variance (mean of squared differences) or its root, over the axes of a step."""
    attrs = step.call.attrs
    apart = builder.emit(relax.op.subtract(value, builder.emit(relax.op.mean(value, attrs.axis, keepdims=True))))
    squares = builder.emit(relax.op.multiply(apart, apart))
    variance = relax.op.mean(squares, attrs.axis, keepdims=bool(attrs.keepdims))
    return variance if step.op == _VARIANCES[0] else relax.op.sqrt(builder.emit(variance))


class _NormMatcher:
    """The decomposed norms along one axis of a graph, by the names of their last steps.

    found: all matches, including those that are parts of others.
    """

    def __init__(self, graph: Graph) -> None:
        self.steps = {step.name: step for step in graph.steps}
        self.shapes = {name: kind.shape for name, kind in graph.kinds().items()}
        self.found: dict[str, _Norm] = {}
        for step in graph.steps:
            norm = self._match_norm(step)
            if norm is not None and step.dtype == "float32":
                self.found[step.name] = norm

    def _producer(self, argument: Argument, op: str) -> Step | None:
        """Return the step that computes an argument if it is this operator, else None."""
        step = self.steps.get(argument.name) if isinstance(argument, Ref) else None
        return step if step is not None and step.op == op else None

    def _match_norm(self, step: Step) -> _Norm | None:
        if step.op == "relax.divide":
            return self._match_quotient(*step.args)
        if step.op == "relax.multiply":
            one, other = step.args
            return self._match_product(one, other) or self._match_product(other, one)
        if step.op == "relax.add":
            one, other = step.args
            return self._match_bias(one, other) or self._match_bias(other, one)
        return None

    def _match_product(self, value: Argument, by: Argument) -> _Norm | None:
        """Match value * rsqrt(...), value * (1 / sqrt(...)), or a norm times its weights."""
        if isinstance(by, np.ndarray):
            norm = self.found.get(value.name) if isinstance(value, Ref) else None
            weight = (
                None
                if norm is None or norm.weight is not None or norm.bias is not None
                else self._expand_to_axis(norm, by)
            )
            return None if norm is None or weight is None else replace(norm, weight=weight)
        inverse = self._producer(by, "relax.rsqrt")
        if inverse is not None:
            return self._match_root(value, inverse.args[0])
        inverse = self._producer(by, "relax.divide")
        if inverse is not None and isinstance(inverse.args[0], np.ndarray) and np.all(inverse.args[0] == 1):
            return self._match_quotient(value, inverse.args[1])
        return None

    def _match_quotient(self, value: Argument, by: Argument) -> _Norm | None:
        root = self._producer(by, "relax.sqrt")
        return None if root is None else self._match_root(value, root.args[0])

    def _match_bias(self, value: Argument, by: Argument) -> _Norm | None:
        norm = self.found.get(value.name) if isinstance(value, Ref) and isinstance(by, np.ndarray) else None
        if norm is None or not norm.centered or norm.bias is not None or not isinstance(by, np.ndarray):
            return None
        bias = self._expand_to_axis(norm, by)
        return None if bias is None else replace(norm, bias=bias)

    def _expand_to_axis(self, norm: _Norm, values: Array) -> Array | None:
        """Return a constant as one number for each index of the norm's axis; None if it varies along other axes."""
        shape = self.shapes[norm.value]
        if values.ndim > len(shape):
            return None
        full = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
        if full.size != full.shape[norm.axis]:
            return None
        return np.broadcast_to(full.reshape(-1), shape[norm.axis : norm.axis + 1])

    def _match_root(self, value: Argument, under: Argument) -> _Norm | None:
        """Match value / sqrt(under), where under is the mean of the squares of the same value plus epsilon.

        The value may already be multiplied by the weights.
        """
        total = self._producer(under, "relax.add")
        if total is None or not isinstance(value, Ref):
            return None
        product = self._producer(value, "relax.multiply")
        for inner, weight in () if product is None else (product.args, product.args[::-1]):
            if isinstance(weight, np.ndarray):
                norm = self._match_root(inner, under)
                along = None if norm is None or norm.weight is not None else self._expand_to_axis(norm, weight)
                return None if norm is None or along is None else replace(norm, weight=along)
        for mean, small in (total.args, total.args[::-1]):
            if isinstance(small, np.ndarray) and small.size == 1:
                return self._match_mean(value.name, mean, float(small.reshape(())))
        return None

    def _match_mean(self, value: str, mean: Argument, epsilon: float) -> _Norm | None:
        """Match the norm of a value whose denominator is the root of a variance or of a mean of squares."""
        variance = self._mean(mean, "relax.variance")
        if variance is not None:
            same = self._match_centered(value) == (variance[0].name, variance[1])
            return _Norm(variance[0].name, variance[1], epsilon, centered=True) if same else None
        squares = self._mean(mean)
        squared = None if squares is None else self._match_square(squares[0])
        return None if squares is None or squared is None else self._match_squares(value, squared, squares[1], epsilon)

    def _match_squares(self, value: str, squared: str | tuple[str, int], axis: int, epsilon: float) -> _Norm | None:
        if self._identity(value) != squared:
            return None
        if isinstance(squared, tuple) and squared[1] == axis:
            return _Norm(squared[0], axis, epsilon, centered=True)
        return _Norm(value, axis, epsilon, centered=False)

    def _identity(self, name: str) -> str | tuple[str, int]:
        """Return a key that is equal for equal values: exporters repeat the difference from the mean for each use."""
        return self._match_centered(name) or name

    def _match_square(self, argument: Argument) -> str | tuple[str, int] | None:
        """Return the identity of the value whose square an argument is, None if it is no square."""
        square, product = self._producer(argument, "relax.square"), self._producer(argument, "relax.multiply")
        factors = square.args[:1] if square is not None else product.args if product is not None else ()
        found = {self._identity(factor.name) if isinstance(factor, Ref) else None for factor in factors}
        return found.pop() if len(found) == 1 else None

    def _match_centered(self, name: str) -> tuple[str, int] | None:
        """Match x - mean(x); return the name of x and the axis of the mean."""
        difference = self._producer(Ref(name), "relax.subtract")
        if difference is None:
            return None
        whole, mean = difference.args[0], self._mean(difference.args[1])
        return (mean[0].name, mean[1]) if mean is not None and mean[0] == whole else None

    def _mean(self, argument: Argument, op: str = "relax.mean") -> tuple[Ref, int] | None:
        """Match a mean (or `op`) over one axis that keeps its dimensions; return its input and the axis."""
        step = self._producer(argument, op)
        if step is None or step.call.attrs.axis is None or not bool(step.call.attrs.keepdims):
            return None
        axes, source = [int(axis) for axis in step.call.attrs.axis], step.args[0]
        if len(axes) != 1 or not isinstance(source, Ref):
            return None
        return source, axes[0] % len(self.shapes[source.name])


def _normalizes_channels(step: Step) -> bool:
    """Whether a group or instance norm with constant weights normalizes (N, C, ...) over all axes behind C.

    The batch may be one of the axes, too.
    """
    attrs, rank = step.call.attrs, len(step.shape)
    axes = {int(axis) % rank for axis in attrs.axes}
    constants = all(isinstance(weight, np.ndarray) for weight in step.args[1:3])
    whole = axes - {0} == set(range(2, rank)) and (0 not in axes or step.op == "relax.nn.instance_norm")
    return int(attrs.channel_axis) % rank == 1 and whole and constants and step.dtype == "float32"


class _GroupNorm:
    """Emit a group or instance norm as elementwise operators and means."""

    def __init__(self, builder: Any, step: Step) -> None:
        self.builder, self.step = builder, step
        self.channels, rank = step.shape[1], len(step.shape)
        self.axes = sorted(int(axis) % rank for axis in step.call.attrs.axes)
        self.groups = int(getattr(step.call.attrs, "num_groups", self.channels))

    def _mean(self, value: Any) -> Any:
        """Return the mean over the spatial axes and over the channels of a group, for each channel."""
        emit = self.builder.emit
        if self.axes:
            value = emit(relax.op.mean(value, axis=self.axes, keepdims=True))
        if self.groups == self.channels:
            return value
        shape = shape_of(value)
        apart = (shape[0], self.groups, self.channels // self.groups)
        of_group = emit(relax.op.mean(emit(relax.op.reshape(value, apart)), axis=[2], keepdims=True))
        return emit(relax.op.reshape(emit(relax.op.broadcast_to(of_group, apart)), shape))

    def _per_channel(self, place: int) -> Any:
        array: Any = self.step.args[place]
        return constant(array.reshape(1, -1, *(1 for _ in self.step.shape[2:])), "float32")

    def emit_norm(self, value: Any) -> Any:
        """Return the norm of a value.

        The difference from the mean is computed twice, for its square and for the output, so that it is never stored.
        """
        emit, mean = self.builder.emit, self._mean(value)
        apart = emit(relax.op.subtract(value, mean))
        variance = self._mean(emit(relax.op.multiply(apart, apart)))
        epsilon = constant(float(self.step.call.attrs.epsilon), "float32")
        factor = emit(relax.op.divide(self._per_channel(1), emit(relax.op.sqrt(emit(relax.op.add(variance, epsilon))))))
        scaled = emit(relax.op.multiply(emit(relax.op.subtract(value, mean)), factor))
        return relax.op.add(scaled, self._per_channel(2))
