"""Operators of com.microsoft that exporters and ONNX Runtime's optimizers write, other than the quantized ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.frontends.onnx.converters.attention import ATTENTION, swapped
from tvmflow.frontends.onnx.converters.elementwise import like
from tvmflow.frontends.onnx.converters.norms import layer_norm
from tvmflow.frontends.onnx.converters.spatial import convolve
from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of


def _fast_gelu(node: Node) -> Value:
    x, bias = node.inputs[0], node.input(1)
    return node.emitter.nn__gelu_tanh(x if bias is None else node.emitter.add(x, bias))


def _quick_gelu(node: Node) -> Value:
    x, r = node.inputs[0], node.emitter
    return r.multiply(x, r.sigmoid(r.multiply(x, like(x, node.attributes.get("alpha", 1.702)))))


def _fused_matmul(node: Node) -> Value:
    a, b = node.inputs[:2]
    r, given = node.emitter, node.attributes
    if given.get("transBatchA", 0) or given.get("transBatchB", 0):
        raise RefusedNodeError("transBatchA and transBatchB")
    a = swapped(node, a) if given.get("transA", 0) else a
    b = swapped(node, b) if given.get("transB", 0) else b
    found, alpha = r.matmul(a, b), given.get("alpha", 1.0)
    return found if alpha == 1.0 else r.multiply(found, like(found, alpha))


def _fused_gemm(node: Node) -> Value:
    a, b, c = node.inputs[0], node.inputs[1], node.input(2)
    r, given = node.emitter, node.attributes
    a = swapped(node, a) if given.get("transA", 0) else a
    b = swapped(node, b) if given.get("transB", 0) else b
    found = r.matmul(a, b)
    found = found if given.get("alpha", 1.0) == 1.0 else r.multiply(found, like(found, given["alpha"]))
    if c is not None:
        beta = given.get("beta", 1.0)
        found = r.add(found, c if beta == 1.0 else r.multiply(c, like(found, beta)))
    return activated(node, found, node.text("activation", ""), given.get("activation_alpha", 0.01))


def activated(node: Node, x: Value, name: str, alpha: float) -> Value:
    """Return the activation of a fused operator."""
    r = node.emitter
    if name == "LeakyRelu":
        return r.nn__leakyrelu(x, alpha)
    operators = {"Relu": "nn__relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}
    if name and name not in operators:
        raise RefusedNodeError(f"activation {name}")
    return getattr(r, operators[name])(x) if name else x


def _fused_conv(node: Node) -> Value:
    found = convolve(node, node.inputs[0], node.inputs[1], node.input(2))
    if node.input(3) is not None:
        found = node.emitter.add(found, node.inputs[3])
    alpha = (node.attributes.get("activation_params") or [0.01])[0]
    if node.text("activation") in ("Clip", "HardSigmoid"):
        low, high = node.attributes["activation_params"]
        if node.text("activation") == "Clip":
            return node.emitter.clip(found, low, high)
        r = node.emitter
        return r.clip(r.add(r.multiply(found, like(found, low)), like(found, high)), 0.0, 1.0)
    return activated(node, found, node.text("activation", ""), alpha)


def _matmul_nbits(node: Node) -> Value:
    """Weights of 4 or 8 bits in blocks along K; they become float constants."""
    x, r, given = node.inputs[0], node.emitter, node.attributes
    k, n, bits, block = (given[name] for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise RefusedNodeError(f"weights of {bits} bits")
    packed, scales = node.constant(1, "its weight"), node.constant(2, "its scale")
    if node.input(4) is not None:
        raise RefusedNodeError("g_idx")
    blocks = -(-k // block)
    weights = _unpacked(packed.reshape(n, blocks, -1), bits)[..., :block].astype(np.float32)
    zeros = node.input(3)
    if zeros is None:
        zero: Any = np.float32(2 ** (bits - 1))
    elif dtype_of(zeros) == "uint8":
        rows = node.constant(3, "its zero point").reshape(n, -1)
        zero = _unpacked(rows, bits)[:, :blocks].astype(np.float32)[..., None]
    else:
        zero = node.constant(3, "its zero point").reshape(n, blocks, 1).astype(np.float32)
    values = (weights - zero) * scales.reshape(n, blocks, 1).astype(np.float32)
    matrix = np.ascontiguousarray(values.reshape(n, blocks * block)[:, :k].T).astype(dtype_of(x))
    found = r.matmul(x, matrix)
    return found if node.input(5) is None else r.add(found, node.inputs[5])


def _unpacked(packed: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Return the numbers in the last axis of packed bytes, the lowest bits first."""
    if bits == 8:
        return packed
    per_byte = 8 // bits
    parts = [(packed >> (bits * place)) & (2**bits - 1) for place in range(per_byte)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def _embed_layer_norm(node: Node) -> Any:
    """EmbedLayerNormalization(ids, segments, words, positions, segment table, gamma, beta, mask, position ids)."""
    ids, segments, words, places, table, gamma, beta = node.inputs[:7]
    mask, position_ids, r = node.input(7), node.input(8), node.emitter
    length = dims(ids)[1]
    total = r.take(words, r.cast(ids, "int64"), 0)
    spots = np.arange(length, dtype=np.int64)[None] if position_ids is None else r.cast(position_ids, "int64")
    total = r.add(total, np.take(places, spots, 0) if isinstance(spots, np.ndarray) else r.take(places, spots, 0))
    if segments is not None:
        total = r.add(total, r.take(table, r.cast(segments, "int64"), 0))
    value = layer_norm(node, total, gamma, beta, 2, node.attributes.get("epsilon", 1e-12))
    if node.outputs == 1:
        return value
    count = np.zeros(dims(ids)[0], np.int32) if mask is None else r.cast(r.sum(r.cast(mask, "int32"), 1), "int32")
    return (value, count, total)[: node.outputs]


CONTRIB = {
    "Gelu": lambda node: node.emitter.nn__gelu(node.inputs[0]),
    "BiasGelu": lambda node: node.emitter.nn__gelu(node.emitter.add(*node.inputs[:2])),
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "MatMulNBits": _matmul_nbits,
    **ATTENTION,
    "EmbedLayerNormalization": _embed_layer_norm,
}
