"""Attention and rotary embeddings of com.microsoft, with caches that are joined with the new keys and values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.converters.elementwise import like
from tvmflow.frontends.onnx.converters.quantized import scaled_product
from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of


def swapped(node: Node, value: Value) -> Value:
    """Return a value with its last two axes exchanged."""
    rank = len(dims(value))
    return node.emitter.transpose(value, [*range(rank - 2), rank - 1, rank - 2])


def attend(node: Node, q: Value, k: Value, v: Value, scale: float, bias: Value | None) -> Value:
    """Return attention of (B, heads, S, D); bias: added to the scores."""
    r = node.emitter
    scores = r.multiply(r.matmul(q, swapped(node, k)), like(q, scale))
    if bias is not None:
        scores = r.add(scores, bias)
    return r.matmul(r.nn__softmax(scores, -1), v)


def heads_of(node: Node, x: Value, heads: int) -> Value:
    batch, length, size = dims(x)
    split = node.emitter.reshape_to(x, [batch, length, heads, size // heads])
    return node.emitter.transpose(split, [0, 2, 1, 3])


def joined_heads(node: Node, x: Value) -> Value:
    batch, heads, length, size = dims(x)
    return node.emitter.reshape_to(node.emitter.transpose(x, [0, 2, 1, 3]), [batch, length, heads * size])


def _attention(node: Node) -> Any:
    """Attention(x, weights, bias, mask, past, attention_bias, length of the past) of com.microsoft."""
    x, weights, bias = node.inputs[0], node.inputs[1], node.input(2)
    made = node.emitter.matmul(x, weights)
    made = made if bias is None else node.emitter.add(made, bias)
    return _attend_packed(node, made, node.input(3), node.input(5), node.input(4), node.input(6))


def _quantized_attention(node: Node) -> Any:
    """QAttention(x, weights, bias, x scale, weights' scale, mask, x zero point, weights' zero point, past)."""
    x, weights, bias, x_scale, scale, mask, x_zero, zero = (node.input(place) for place in range(8))
    made = scaled_product(node, x, weights, x_scale, scale, x_zero, zero, bias)
    return _attend_packed(node, made, mask, None, node.input(8), None)


def _attend_packed(
    node: Node, made: Value, mask: Value | None, bias: Value | None, past: Value | None, length: Value | None
) -> Any:
    """Return attention of queries, keys and values (B, S, sizes of the three); past: (2, B, heads, P, D)."""
    if node.attributes.get("do_rotary", 0):
        raise RefusedNodeError("do_rotary")
    heads, r = node.attributes["num_heads"], node.emitter
    sizes = list(node.attributes.get("qkv_hidden_sizes") or [dims(made)[2] // 3] * 3)
    q, k, v = (heads_of(node, part, heads) for part in parts_of(node, made, sizes))
    if past is not None:
        parts = [r.reshape_to(r.slice_axis(past, 0, at, at + 1), dims(past)[1:]) for at in (0, 1)]
        k, v = (_behind(node, old, new, length) for old, new in zip(parts, (k, v), strict=True))
    found = _attend_masked(node, q, k, v, mask, bias)
    return found if node.outputs == 1 else (found, r.stack([k, v], 0))


def _behind(node: Node, past: Value | None, new: Value, length: Value | None) -> Value:
    """Return keys or values (B, heads, S, D) behind those of earlier runs."""
    if past is None:
        return new
    if length is not None or node.attributes.get("past_present_share_buffer", 0):
        raise RefusedNodeError("past and present in one buffer; export the model without past_present_share_buffer")
    return node.emitter.concat([past, new], 2)


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
    return joined_heads(node, attend(node, q, k, v, scale, added))


def parts_of(node: Node, value: Value, sizes: list[int]) -> list[Value]:
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
    """MultiHeadAttention(q, k, v, bias, key mask, attention_bias, past keys, past values, length of the past)."""
    q, k, v, bias = (node.input(place) for place in range(4))
    r, heads = node.emitter, node.attributes["num_heads"]
    if k is None or v is None or len(dims(q)) != 3 or len(dims(k)) not in (3, 4) or len(dims(k)) != len(dims(v)):
        raise RefusedNodeError("packed queries, keys and values")
    if node.input(9) is not None or node.outputs > 3:
        raise RefusedNodeError("cache_indirection, and the scores as an output")
    if bias is not None:
        if len(dims(k)) == 4:
            raise RefusedNodeError("a bias for keys and values by heads")
        sizes = [dims(value)[2] for value in (q, k, v)]
        q, k, v = (r.add(value, part) for value, part in zip((q, k, v), parts_of(node, bias, sizes), strict=True))
    q, k, v = (value if len(dims(value)) == 4 else heads_of(node, value, heads) for value in (q, k, v))
    k, v = (_behind(node, node.input(place), new, node.input(8)) for place, new in ((6, k), (7, v)))
    return (_attend_masked(node, q, k, v, node.input(4), node.input(5)), k, v)[: node.outputs]


def _rotary(node: Node) -> Value:
    """RotaryEmbedding(x, position_ids, cos_cache, sin_cache) of com.microsoft."""
    x, positions, cosine, sine = node.inputs
    r, given = node.emitter, node.attributes
    heads = given.get("num_heads", 0)
    flat = len(dims(x)) == 3
    if flat:
        x = heads_of(node, x, heads or dims(x)[2] // (2 * dims(cosine)[1]))
    if math.prod(dims(positions)) == 1:
        positions = r.add(r.reshape_to(positions, [1, 1]), np.arange(dims(x)[2], dtype=np.int64)[None])
    rotated = given.get("rotary_embedding_dim", 0) or dims(x)[3]
    made = rotate(node, x, positions, cosine, sine, rotated, bool(given.get("interleaved", 0)))
    return joined_heads(node, made) if flat else made


def rotate(
    node: Node, x: Value, positions: Value, cosine: Value, sine: Value, rotated: int, is_interleaved: bool
) -> Value:
    """Return (B, heads, S, D) whose first `rotated` values are turned by the angles of positions (B or 1, S)."""
    r = node.emitter
    batch, heads, length, size = dims(x)
    cos, sin = (
        r.expand_dims(r.reshape_to(r.take(cache, positions, 0), [dims(positions)[0], length, dims(cache)[1]]), 1)
        for cache in (cosine, sine)
    )
    head, rest = r.slice_axis(x, 3, 0, rotated), None if rotated == size else r.slice_axis(x, 3, rotated, size)
    if is_interleaved:
        pairs = r.reshape_to(head, [batch, heads, length, rotated // 2, 2])
        a, b = (r.reshape_to(r.slice_axis(pairs, 4, at, at + 1), [batch, heads, length, rotated // 2]) for at in (0, 1))
    else:
        a, b = r.slice_axis(head, 3, 0, rotated // 2), r.slice_axis(head, 3, rotated // 2, rotated)
    real = r.subtract(r.multiply(a, cos), r.multiply(b, sin))
    other = r.add(r.multiply(a, sin), r.multiply(b, cos))
    if is_interleaved:
        made = r.reshape_to(r.stack([real, other], -1), [batch, heads, length, rotated])
    else:
        made = r.concat([real, other], 3)
    return made if rest is None else r.concat([made, rest], 3)


ATTENTION = {
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head_attention,
    "RotaryEmbedding": _rotary,
}
