"""Equalize the ranges of channels between two convolutions without changing their results.

For  conv A -> activation -> conv B  channel i of A is divided by s_i and the weights of B that read it are multiplied.
With s_i = sqrt(range_A_i / range_B_i) both reach the same range, and one scale per tensor then fits all channels. The
limit of a clip (ReLU6) becomes limit / s_i per channel. Source: M. Nagel et al., "Data-Free Quantization Through Weight
Equalization and Bias Correction", ICCV 2019, section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tvmflow.ir.relax.graph import Array
from tvmflow.ir.relax.layers import CONV, DENSE, Layer, Network

_ROUNDS = 20
_MAX_FACTOR = 1e4


def equalize(network: Network, channel_ranges: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Equalize all pairs in place. Return the divisors of the channels of each value between a pair.

    channel_ranges: largest magnitude per channel of each value, if weights have a scale per channel. Then the weights
    of the first convolution fit any scale, and the activation between is equalized: fully if the second is depthwise,
    otherwise as a compromise with its weights (as SmoothQuant does: G. Xiao et al., ICML 2023). None: weights have one
    scale per layer; pairs are equalized repeatedly until nothing changes.
    """
    pairs = [(network.layer(a), network.layer(b)) for a, b in _find_pairs(network)]
    divided: dict[str, Array] = {}
    if channel_ranges is not None:
        for first, second in pairs:
            divided[first.name] = _smoothing_factors(channel_ranges[first.name], second)
            _apply(first, second, divided[first.name])
        return divided
    for _ in range(_ROUNDS):
        moved = 0.0
        for first, second in pairs:
            factors = _even_factors(first, second)
            _apply(first, second, factors)
            divided[first.name] = divided.get(first.name, 1.0) * factors
            moved = max(moved, float(np.abs(np.log(factors)).max(initial=0.0)))
        if moved < 1e-3:
            break
    return divided


def _smoothing_factors(activation: Array, second: Layer) -> Array:
    """Return the factors of the channels between a pair, with geometric mean 1 to preserve the magnitude."""
    weights = _input_ranges(second)
    usable = (activation > 0) & (weights > 0)
    factors = np.ones(len(activation))
    if second.is_depthwise:
        factors[usable] = activation[usable]
    else:
        factors[usable] = np.sqrt(activation[usable] / weights[usable])
    if usable.any():
        factors[usable] /= np.exp(np.log(factors[usable]).mean())
    return np.asarray(np.clip(factors, 1 / _MAX_FACTOR, _MAX_FACTOR))


def _apply(first: Layer, second: Layer, factors: Array) -> None:
    _scale_outputs(first, factors)
    _scale_inputs(second, factors)


def _find_pairs(network: Network) -> list[tuple[str, str]]:
    users = network.users()
    pairs = []
    for layer in network.layers:
        if layer.kind != CONV or layer.name in network.outputs or len(users[layer.name]) != 1:
            continue
        follower = users[layer.name][0]
        if (
            isinstance(follower, Layer)
            and follower.kind in (CONV, DENSE)
            and _can_scale(layer)
            and _reads_all_channels(follower)
        ):
            pairs.append((layer.name, follower.name))
    return pairs


def _can_scale(layer: Layer) -> bool:
    """Whether the activation commutes with positive scaling: none, ReLU, or a clip from zero."""
    return bool(np.all((np.asarray(layer.low) == 0) | np.isneginf(np.asarray(layer.low))))


def _reads_all_channels(layer: Layer) -> bool:
    return layer.kind == DENSE or layer.groups == 1 or layer.is_depthwise


def _even_factors(first: Layer, second: Layer) -> Array:
    assert first.weight is not None
    ranges_a = np.abs(first.weight).reshape(len(first.weight), -1).max(axis=1)
    ranges_b = _input_ranges(second)
    usable = (ranges_a > 0) & (ranges_b > 0)
    factors = np.ones_like(ranges_a)
    factors[usable] = np.sqrt(ranges_a[usable] / ranges_b[usable])
    return np.asarray(np.clip(factors, 1 / _MAX_FACTOR, _MAX_FACTOR))


def _input_ranges(layer: Layer) -> Array:
    assert layer.weight is not None
    if layer.kind == DENSE:
        return np.asarray(np.abs(layer.weight).max(axis=1))
    if layer.is_depthwise:
        return np.asarray(np.abs(layer.weight).reshape(len(layer.weight), -1).max(axis=1))
    return np.asarray(np.abs(layer.weight).max(axis=(0, 2, 3)))


def _scale_outputs(layer: Layer, factors: Array) -> None:
    assert layer.weight is not None
    layer.weight = (layer.weight / factors.reshape(-1, 1, 1, 1)).astype(np.float32)
    if layer.bias is not None:
        layer.bias = (layer.bias / factors).astype(np.float32)
    if np.any(np.isfinite(layer.high)):
        layer.high = np.asarray(layer.high, np.float32) / factors


def _scale_inputs(layer: Layer, factors: Array) -> None:
    assert layer.weight is not None
    column: Array
    if layer.kind == DENSE:
        column = factors.reshape(-1, 1)
    elif layer.is_depthwise:
        column = factors.reshape(-1, 1, 1, 1)
    else:
        column = factors.reshape(1, -1, 1, 1)
    layer.weight = (layer.weight * column).astype(np.float32)
