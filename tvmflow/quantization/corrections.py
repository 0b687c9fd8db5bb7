"""Correct what rounding does to the means of a layer, by its biases."""

from __future__ import annotations

import numpy as np

from tvmflow.ir.definition import run_all
from tvmflow.ir.emit import Arithmetic
from tvmflow.ir.graph import Array, Step
from tvmflow.ir.layers import PRODUCTS, Layer, Network
from tvmflow.ir.scales import Scale
from tvmflow.quantization.calibration import CHUNK_BYTES, Calibration, pieces
from tvmflow.quantization.choice import Quantized
from tvmflow.quantization.int8 import SCALED

_NEWTON_STEPS = 3
_MIN_ACTIVE = 0.1  # of a channel's numbers; below, a mean says too little about them


def correct_biases(
    network: Network, run: Calibration, arithmetic: Arithmetic, scales: dict[str, Scale], kept: frozenset[str]
) -> int:
    """Shift biases so that each quantized layer has the float layer's mean per channel, first layer first.

    Source: Nagel et al. 2019, section 4.2, with means measured on the calibration set. One run does all layers: a value
    is corrected on its way, so the layers after it see what they will see.
    """
    trial = Quantized(network, arithmetic, scales, kept)
    layers = {layer.name + SCALED: layer for layer in network.layers if layer.kind in PRODUCTS}
    corrections: dict[str, Array] = {}

    def watch(step: Step, value: Array) -> Array | None:
        layer = layers.get(step.name)
        if layer is None:
            return None
        scale = trial.integers[layer.name].scale
        column = (1, -1) + (1,) * (value.ndim - 2)
        factor = scale.factor.reshape(-1)
        numbers = (value - scale.zero_point) * factor.reshape(column if factor.size > 1 else 1)
        correction = _mean_correction(numbers, layer, run.seen[layer.name].channel_mean, column)
        corrections[layer.name] = correction
        return np.asarray(value + np.rint(correction / factor).astype(value.dtype).reshape(column))

    largest = max((int(np.prod(step.shape)) * 8 for step in trial.graph.steps), default=1)
    most = max(1, int(2 * CHUNK_BYTES / largest)) * trial.graph.batch
    first = tuple(x[:most] for x in run.samples)
    run_all(trial.graph, pieces(first, trial.graph.batch, most)[0], watch)
    for name, correction in corrections.items():
        layer = network.layer(name)
        bias = np.zeros(layer.shape[1]) if layer.bias is None else layer.bias
        layer.bias = (bias + correction).astype(np.float32)
    return len(corrections)


def _mean_correction(numbers: Array, layer: Layer, expected: Array, column: tuple[int, ...]) -> Array:
    """Return what to add per channel so that the mean after the activation is `wanted`.

    Compared after the activation, because an error in numbers that it cuts off is none. Where the activation lets only a
    part through, the mean moves by that part of what is added: a few Newton steps.
    """
    axes = tuple(axis for axis in range(numbers.ndim) if axis != 1)
    low, high = (
        np.broadcast_to(np.asarray(limit, np.float64), expected.shape).reshape(column)
        for limit in (layer.low, layer.high)
    )
    correction = np.zeros(expected.shape)
    for _ in range(_NEWTON_STEPS):
        moved = numbers + correction.reshape(column)
        active = ((moved > low) & (moved < high)).mean(axis=axes)
        error = expected - np.clip(moved, low, high).mean(axis=axes)
        correction += np.where(active > _MIN_ACTIVE, error / np.maximum(active, _MIN_ACTIVE), 0.0)
    return correction
