"""Normalizations, with the statistics that some have as further outputs, and those that exporters' optimizers write."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.frontends.onnx.converters.elementwise import in_float32, like
from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of


def _layer_norm(node: Node) -> Any:
    x, scale, bias = node.inputs[0], node.input(1), node.input(2)
    axis = node.attributes.get("axis", -1) % len(dims(x))
    epsilon = node.attributes.get("epsilon", 1e-5)
    value = layer_norm(node, x, scale, bias, axis, epsilon)
    return (value, *_statistics(node, x, axis, epsilon)) if node.outputs > 1 else value


def layer_norm(node: Node, x: Value, scale: Value | None, bias: Value | None, axis: int, epsilon: float) -> Value:
    r, axes = node.emitter, list(range(axis, len(dims(x))))
    shape, dtype = dims(x)[axis:], dtype_of(x)
    scale = np.ones(shape).astype(dtype) if scale is None else scale
    bias = np.zeros(shape).astype(dtype) if bias is None else bias
    if dims(scale) == shape and dims(bias) == shape:
        return r.nn__layer_norm(x, scale, bias, axes, epsilon)
    # Scale and bias of another shape are broadcast.
    plain = r.nn__layer_norm(x, np.ones(shape).astype(dtype), np.zeros(shape).astype(dtype), axes, epsilon)
    return r.add(r.multiply(plain, scale), bias)


def _statistics(node: Node, x: Value, axis: int, epsilon: float) -> tuple[Value, Value]:
    """Return mean and 1 / deviation, in float32."""
    r, axes = node.emitter, list(range(axis, len(dims(x))))
    wide = in_float32(node, x)
    mean = r.mean(wide, axes, keepdims=True)
    difference = r.subtract(wide, mean)
    variance = r.mean(r.multiply(difference, difference), axes, keepdims=True)
    return mean, r.divide(like(wide, 1), r.sqrt(r.add(variance, like(wide, epsilon))))


def _skip_layer_norm(node: Node) -> Any:
    """SkipLayerNormalization(x, skip, gamma, beta, bias) -> y, mean, 1 / deviation, sum."""
    x, skip, gamma = node.inputs[:3]
    beta, bias, r = node.input(3), node.input(4), node.emitter
    return _after_sum(
        node,
        _sum(r, x, skip, bias),
        lambda total: layer_norm(node, total, gamma, beta, len(dims(total)) - 1, node.attributes.get("epsilon", 1e-12)),
    )


def _skip_rms_norm(node: Node) -> Any:
    """SkipSimplifiedLayerNormalization(x, skip, gamma, bias)."""
    x, skip, gamma = node.inputs[:3]
    total = _sum(node.emitter, x, skip, node.input(3))
    epsilon = node.attributes.get("epsilon", 1e-12)
    return _after_sum(
        node, total, lambda value: node.emitter.nn__rms_norm(value, gamma, [len(dims(value)) - 1], epsilon)
    )


def _sum(r: Any, x: Value, skip: Value, bias: Value | None) -> Value:
    total = r.add(x, skip)
    return total if bias is None else r.add(total, bias)


def _after_sum(node: Node, total: Value, norm: Any) -> Any:
    value = norm(total)
    if node.outputs <= 1:
        return value
    mean, deviation = _statistics(node, total, len(dims(total)) - 1, node.attributes.get("epsilon", 1e-12))
    return value, mean, deviation, total


def _simplified_layer_norm(node: Node) -> Value:
    x, scale = node.inputs[:2]
    axis = node.attributes.get("axis", -1) % len(dims(x))
    if node.outputs > 1:
        raise RefusedNodeError("its second output")
    axes = list(range(axis, len(dims(x))))
    return node.emitter.nn__rms_norm(x, scale, axes, node.attributes.get("epsilon", 1e-5))


def _lp_norm(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    axis, power = node.attributes.get("axis", -1) % len(dims(x)), node.attributes.get("p", 2)
    if power == 1:
        norm = r.sum(r.abs(x), axis, keepdims=True)
    else:
        norm = r.sqrt(r.sum(r.multiply(x, x), axis, keepdims=True))
    # A vector of zeros stays one.
    return r.divide(x, r.where(r.equal(norm, like(x, 0)), like(x, 1), norm))


NORMS = {
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "SimplifiedLayerNormalization": _simplified_layer_norm,  # of ONNX Runtime, in the domain of ONNX
}
NORMS_CONTRIB = {
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
