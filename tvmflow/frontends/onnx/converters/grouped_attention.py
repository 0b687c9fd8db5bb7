"""GroupQueryAttention of com.microsoft: attention of decoders, whose keys and values are kept in caches of fixed size.

A cache (B, kv heads, L, D) has the values of `past` tokens in front. A run writes those of its own S tokens behind
them; where a sample ends, `seqlens_k` says. The caches that come out may go into the next run, so that they are states.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.converters.attention import heads_of, joined_heads, parts_of, rotate, swapped
from tvmflow.frontends.onnx.converters.elementwise import like
from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of

_REFUSED_INPUTS = {12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"}


def _grouped_attention(node: Node) -> Any:
    """GroupQueryAttention(q, k, v, past keys, past values, lengths - 1, longest, cos, sin, positions, bias, sink)."""
    _refuse_variants(node)
    r, given = node.emitter, node.attributes
    heads, kv_heads = given["num_heads"], given["kv_num_heads"]
    q, k, v = node.inputs[:3]
    if k is None:
        size = dims(q)[2] // (heads + 2 * kv_heads)
        q, k, v = parts_of(node, q, [heads * size, kv_heads * size, kv_heads * size])
    q, k, v = heads_of(node, q, heads), heads_of(node, k, kv_heads), heads_of(node, v, kv_heads)
    batch, _, tokens, _ = dims(q)
    longest = _longest(node)
    past_keys, past_values = node.input(3), node.input(4)
    size = max(longest, dims(past_keys)[2] if past_keys is not None else 0)
    if tokens == longest:  # the first tokens, whatever the caches hold
        past: Value = np.zeros((batch, 1), np.int64)
    else:
        past = r.add(r.reshape_to(r.cast(node.inputs[5], "int64"), [batch, 1]), np.asarray(1 - tokens, np.int64))
    if given.get("do_rotary", 0):
        places = node.input(9)
        places = r.add(past, np.arange(tokens, dtype=np.int64)[None]) if places is None else places
        places = r.reshape_to(places, [batch, tokens])
        cosine, sine = node.inputs[7], node.inputs[8]
        rotated, is_interleaved = 2 * dims(cosine)[1], bool(given.get("rotary_interleaved", 0))
        q, k = (rotate(node, x, places, cosine, sine, rotated, is_interleaved) for x in (q, k))
    k, v = (_written(node, old, new, past, size) for old, new in ((past_keys, k), (past_values, v)))
    return (joined_heads(node, _attend(node, q, k, v, past)), k, v)[: node.outputs]


def _refuse_variants(node: Node) -> None:
    given = node.attributes
    for place, name in _REFUSED_INPUTS.items():
        if node.input(place) is not None:
            raise RefusedNodeError(name)
    if node.outputs > 3 or given.get("qk_output", 0):
        raise RefusedNodeError("the scores as an output")
    if given.get("sliding_window_cache", 0):
        raise RefusedNodeError("sliding_window_cache; export the model with caches of the whole sequence")


def _longest(node: Node) -> int:
    """Return total_sequence_length, which sets the shape of the caches."""
    value = node.inputs[6]
    if not isinstance(value, np.ndarray):
        raise RefusedNodeError(
            "total_sequence_length depends on the data, and sets the shape of the caches; give it a fixed value "
            "(`inputs: {NAME: {value: N}}`), or compute it from the shape of the mask"
        )
    return int(value.reshape(-1)[0])


def _written(node: Node, cache: Value | None, new: Value, past: Value, size: int) -> Value:
    """Return a cache (B, heads, size, D) with new values (B, heads, S, D) behind the first `past` (B, 1) of each
    sample, and zeros behind them.
    """
    r, (batch, heads, tokens, width) = node.emitter, dims(new)
    zero, lines = like(new, 0), np.arange(size, dtype=np.int64).reshape(1, 1, size, 1)
    if isinstance(past, np.ndarray) and not past.any():
        return _longer(node, new, size)
    begin = r.reshape_to(past, [batch, 1, 1, 1])
    place = r.subtract(lines, begin)  # of a line among the new ones
    if tokens == 1:
        moved = new
    else:
        kept = r.minimum(r.maximum(place, np.asarray(0, np.int64)), np.asarray(tokens - 1, np.int64))
        moved = r.gather_elements(new, r.broadcast_to(kept, (batch, heads, size, width)), 2)
    found = r.where(r.less(place, np.asarray(tokens, np.int64)), moved, zero)
    before = zero if cache is None else _longer(node, cache, size)
    return r.where(r.less(place, np.asarray(0, np.int64)), before, found)


def _longer(node: Node, cache: Value, size: int) -> Value:
    missing = size - dims(cache)[2]
    return cache if not missing else node.emitter.nn__pad(cache, [0, 0, 0, 0, 0, missing, 0, 0], "constant", 0.0)


def _attend(node: Node, q: Value, k: Value, v: Value, past: Value) -> Value:
    """Return attention of q (B, heads, S, D) to caches: the heads of a group share their keys and values."""
    r, given = node.emitter, node.attributes
    (batch, heads, tokens, width), (_, kv_heads, size, _) = dims(q), dims(k)
    rows = [batch, kv_heads, heads // kv_heads * tokens]
    scale = given.get("scale", 0.0) or 1 / math.sqrt(width)
    scores = r.matmul(r.reshape_to(r.multiply(q, like(q, scale)), [*rows, width]), swapped(node, k))
    scores = r.reshape_to(scores, [batch, heads, tokens, size])
    if softcap := given.get("softcap", 0.0):
        scores = r.multiply(r.tanh(r.multiply(scores, like(q, 1 / softcap))), like(q, softcap))
    bias = node.input(10)
    if bias is not None:
        missing = size - dims(bias)[3]
        scores = r.add(scores, r.nn__pad(bias, [0] * 7 + [missing], "constant", 0.0) if missing else bias)
    lowest = -1e30 if dtype_of(q) in ("float32", "bfloat16") else -65504.0
    scores = r.where(_seen(node, past, tokens, size), scores, like(q, lowest))
    weights = r.reshape_to(_softmax(node, scores), [*rows, size])
    return r.reshape_to(r.matmul(weights, v), [batch, heads, tokens, width])


def _seen(node: Node, past: Value, tokens: int, size: int) -> Value:
    """Return which lines of the caches each token reads, (B, 1, S, size)."""
    r, given = node.emitter, node.attributes
    lines = np.arange(size, dtype=np.int64).reshape(1, 1, 1, size)
    own = np.arange(tokens, dtype=np.int64).reshape(1, 1, tokens, 1)
    begin = r.reshape_to(past, [dims(past)[0], 1, 1, 1])
    if not given.get("causal", 1):
        return r.less(lines, r.add(begin, np.asarray(tokens, np.int64)))
    last = r.add(begin, own)
    seen, window = r.less_equal(lines, last), given.get("local_window_size", -1)
    if window > 0:
        seen = r.logical_and(seen, r.greater(lines, r.subtract(last, np.asarray(window, np.int64))))
    return seen


def _softmax(node: Node, scores: Value) -> Value:
    """Return the softmax, with a sink of each head in its sum where the node has one."""
    r, sink = node.emitter, node.input(11)
    batch, heads, tokens, size = dims(scores)
    if sink is None and not node.attributes.get("smooth_softmax", 0):
        return r.nn__softmax(scores, -1)
    column = like(scores, 0) if sink is None else r.reshape_to(sink, [1, heads, 1, 1])
    joined = r.concat([scores, r.broadcast_to(column, (batch, heads, tokens, 1))], 3)
    return r.slice_axis(r.nn__softmax(joined, -1), 3, 0, size)


GROUPED_ATTENTION = {"GroupQueryAttention": _grouped_attention}
