"""Operators of com.microsoft that exporters and ONNX Runtime's optimizers write, other than the quantized ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.converters.elementwise import like
from tvmflow.frontends.onnx.converters.norms import layer_norm
from tvmflow.frontends.onnx.converters.quantized import scaled_product
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
    a = _swapped(node, a) if given.get("transA", 0) else a
    b = _swapped(node, b) if given.get("transB", 0) else b
    found, alpha = r.matmul(a, b), given.get("alpha", 1.0)
    return found if alpha == 1.0 else r.multiply(found, like(found, alpha))


def _swapped(node: Node, value: Value) -> Value:
    rank = len(dims(value))
    return node.emitter.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


def _fused_gemm(node: Node) -> Value:
    a, b, c = node.inputs[0], node.inputs[1], node.input(2)
    r, given = node.emitter, node.attributes
    a = _swapped(node, a) if given.get("transA", 0) else a
    b = _swapped(node, b) if given.get("transB", 0) else b
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


def attend(node: Node, q: Value, k: Value, v: Value, scale: float, bias: Value | None) -> Value:
    """Return attention of (B, heads, S, D); bias: added to the scores."""
    r = node.emitter
    scores = r.multiply(r.matmul(q, _swapped(node, k)), like(q, scale))
    if bias is not None:
        scores = r.add(scores, bias)
    return r.matmul(r.nn__softmax(scores, -1), v)


def _heads(node: Node, x: Value, heads: int) -> Value:
    batch, length, size = dims(x)
    split = node.emitter.reshape_to(x, [batch, length, heads, size // heads])
    return node.emitter.transpose(split, [0, 2, 1, 3])


def _joined(node: Node, x: Value) -> Value:
    batch, heads, length, size = dims(x)
    return node.emitter.reshape_to(node.emitter.transpose(x, [0, 2, 1, 3]), [batch, length, heads * size])


def _attention(node: Node) -> Any:
    """Attention(x, weights, bias, mask, past, attention_bias) of com.microsoft."""
    x, weights, bias = node.inputs[0], node.inputs[1], node.input(2)
    _refuse_past(node, 4)
    made = node.emitter.matmul(x, weights)
    made = made if bias is None else node.emitter.add(made, bias)
    return _attend_packed(node, made, node.input(3), node.input(5))


def _quantized_attention(node: Node) -> Any:
    """QAttention(x, weights, bias, x scale, weights' scale, mask, x zero point, weights' zero point, past)."""
    x, weights, bias, x_scale, scale, mask, x_zero, zero = (node.input(place) for place in range(8))
    _refuse_past(node, 8)
    return _attend_packed(node, scaled_product(node, x, weights, x_scale, scale, x_zero, zero, bias), mask, None)


def _refuse_past(node: Node, place: int) -> None:
    if node.input(place) is not None or node.outputs > 1:
        raise RefusedNodeError("past and present")
    if node.attributes.get("do_rotary", 0):
        raise RefusedNodeError("do_rotary")


def _attend_packed(node: Node, made: Value, mask: Value | None, bias: Value | None) -> Value:
    """Return attention of queries, keys and values (B, S, sizes of the three)."""
    heads = node.attributes["num_heads"]
    sizes = list(node.attributes.get("qkv_hidden_sizes") or [dims(made)[2] // 3] * 3)
    q, k, v = (_heads(node, part, heads) for part in _parts(node, made, sizes))
    return _attend_masked(node, q, k, v, mask, bias)


def _attend_masked(node: Node, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None) -> Value:
    """Return attention of (B, heads, S, D) as (B, S, heads * D), by the attributes of a node."""
    given, r = node.attributes, node.emitter
    added = _mask_bias(node, mask, dims(q), dims(k)[2], given.get("mask_filter_value", -10000.0))
    if bias is not None:
        added = bias if added is None else r.add(added, bias)
    if given.get("unidirectional", 0):
        rows, columns = dims(q)[2], dims(k)[2]
        lowest = np.finfo(np.float32).min if dtype_of(q) == "float32" else -65504.0  # below what a mask adds
        causal = np.where(np.tril(np.ones((rows, columns), bool), columns - rows), 0.0, lowest).astype(dtype_of(q))
        added = causal if added is None else r.add(added, causal)
    scale = given.get("scale") or 1 / math.sqrt(dims(q)[3])
    return _joined(node, attend(node, q, k, v, scale, added))


def _parts(node: Node, value: Value, sizes: list[int]) -> list[Value]:
    ends = np.cumsum(sizes)
    axis = len(dims(value)) - 1
    return [node.emitter.slice_axis(value, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _mask_bias(node: Node, mask: Value | None, q: tuple[int, ...], keys: int, low: float) -> Value | None:
    """Return what is added to the scores for a mask (B), (B, keys), (B, rows, keys) or (B, 1, rows, keys)."""
    if mask is None:
        return None
    r, shape = node.emitter, dims(mask)
    if len(shape) == 1:
        if shape[0] != q[0]:
            raise RefusedNodeError(f"a mask of shape {list(shape)}")
        kept = r.less(np.arange(keys, dtype=np.int64)[None], r.expand_dims(r.cast(mask, "int64"), 1))
        mask, shape = r.cast(kept, "int32"), (q[0], keys)
    if len(shape) == 2:
        mask = r.reshape_to(mask, [shape[0], 1, 1, shape[1]])
    elif len(shape) == 3:
        mask = r.reshape_to(mask, [shape[0], 1, *shape[1:]])
    one = np.float32(1)
    return r.multiply(r.subtract(one, r.cast(mask, "float32")), np.float32(low))


def _multi_head_attention(node: Node) -> Any:
    """MultiHeadAttention(q, k, v, bias, key_padding_mask, attention_bias)."""
    q, k, v, bias = (node.input(place) for place in range(4))
    r, heads = node.emitter, node.attributes["num_heads"]
    if k is None or v is None or len(dims(q)) != 3 or len(dims(k)) not in (3, 4) or len(dims(k)) != len(dims(v)):
        raise RefusedNodeError("packed queries, keys and values")
    if node.input(6) is not None or node.outputs > 1:
        raise RefusedNodeError("past and present")
    if bias is not None:
        if len(dims(k)) == 4:
            raise RefusedNodeError("a bias for keys and values by heads")
        sizes = [dims(value)[2] for value in (q, k, v)]
        q, k, v = (r.add(value, part) for value, part in zip((q, k, v), _parts(node, bias, sizes), strict=True))
    q, k, v = (value if len(dims(value)) == 4 else _heads(node, value, heads) for value in (q, k, v))
    return _attend_masked(node, q, k, v, node.input(4), node.input(5))


def _rotary(node: Node) -> Value:
    """RotaryEmbedding(x, position_ids, cos_cache, sin_cache) of com.microsoft."""
    x, positions, cosine, sine = node.inputs
    r, given = node.emitter, node.attributes
    heads = given.get("num_heads", 0)
    flat = len(dims(x)) == 3
    half = dims(cosine)[1]
    if flat:
        batch, length, size = dims(x)
        heads = heads or size // (2 * half)
        x = _heads(node, x, heads)
    batch, _, length, size = dims(x)
    rotated = given.get("rotary_embedding_dim", 0) or size
    if math.prod(dims(positions)) == 1:
        positions = r.add(r.reshape_to(positions, [1, 1]), np.arange(length, dtype=np.int64)[None])
    cos, sin = (
        r.expand_dims(r.reshape_to(r.take(_const(cache), positions, 0), [dims(positions)[0], length, half]), 1)
        for cache in (cosine, sine)
    )
    head, rest = r.slice_axis(x, 3, 0, rotated), None if rotated == size else r.slice_axis(x, 3, rotated, size)
    if given.get("interleaved", 0):
        pairs = r.reshape_to(head, [batch, heads, length, rotated // 2, 2])
        a, b = (r.reshape_to(r.slice_axis(pairs, 4, at, at + 1), [batch, heads, length, rotated // 2]) for at in (0, 1))
    else:
        a, b = r.slice_axis(head, 3, 0, rotated // 2), r.slice_axis(head, 3, rotated // 2, rotated)
    real = r.subtract(r.multiply(a, cos), r.multiply(b, sin))
    other = r.add(r.multiply(a, sin), r.multiply(b, cos))
    if given.get("interleaved", 0):
        made = r.reshape_to(r.stack([real, other], -1), [batch, heads, length, rotated])
    else:
        made = r.concat([real, other], 3)
    made = made if rest is None else r.concat([made, rest], 3)
    return _joined(node, made) if flat else made


def _const(value: Value) -> Value:
    return value


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
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head_attention,
    "RotaryEmbedding": _rotary,
    "EmbedLayerNormalization": _embed_layer_norm,
}
