"""Write the fused layers of attention that PyTorch takes without gradients in terms of others.

`torch.jit.trace` records them where it runs without gradients, as does a script of a frozen module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

_KEYS, _MASKED = 1, -1e38  # the type of a mask of keys (N, L); below all scores


def _expanded_mask(mask: Any, mask_type: int | None) -> Any:
    """Return where scores (N, heads, L, S) are masked."""
    masked = mask.to(torch.bool)
    if mask_type == _KEYS:
        return masked[:, None, None, :]
    return masked[None, None] if masked.ndim == 2 else masked


def _attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (num_head, -1)).transpose(1, 2) for x, w, b in parts)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        scores = torch.where(_expanded_mask(mask, mask_type), _MASKED, scores)
    weights = scores.softmax(-1)
    found = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    return found, weights.mean(1) if average_attn_weights else weights


def _encoder_layer(
    x: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    def first_norm(y: Any) -> Any:
        return F.layer_norm(y, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(y: Any) -> Any:
        return F.layer_norm(y, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attended(y: Any) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(y, y, y, embed_dim, num_heads, *weights, mask, mask_type=mask_type)[0]

    def fed(y: Any) -> Any:
        activation = F.gelu if use_gelu else F.relu
        return F.linear(activation(F.linear(y, ffn_weight_1, ffn_bias_1)), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = x + attended(first_norm(x))
        return x + fed(second_norm(x))
    x = first_norm(x + attended(x))
    return second_norm(x + fed(x))


FUSED_LAYERS: dict[str, Callable[..., Any]] = {
    "_native_multi_head_attention": _attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
