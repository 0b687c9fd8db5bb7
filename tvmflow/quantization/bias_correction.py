"""Correct the mean error of quantized layers by their biases."""

from __future__ import annotations

import numpy as np

from tvmflow.ir.relax.graph import Array, Step
from tvmflow.ir.relax.layers import GEMM_KINDS, Layer, Network
from tvmflow.quantization.calibration import Calibration, split_batches
from tvmflow.quantization.int8 import SCALED
from tvmflow.quantization.integer_matmul import active_means, fuse_for_library
from tvmflow.quantization.layer_choice import Quantized
from tvmflow.quantization.parallel import Each, on_processors, run_together

_NEWTON_STEPS = 3
_HELD_BYTES = 512 << 20  # bytes of the largest value of all samples
_MIN_VALUES = 256  # of a channel; the mean error of fewer is chance, such as of the squeezed images of four samples
_MIN_ACTIVE = 0.1  # share of a channel's active numbers below which its mean is unreliable


def correct_biases(network: Network, run: Calibration, trial: Quantized) -> int:
    """Shift biases so that each quantized layer has the float layer's mean per channel, first layer first.

    trial: the quantized network. Source: Nagel et al. 2019, section 4.2, with means measured on the calibration set.
    One run corrects all layers: each value is corrected before the next layers read it.
    """
    layers = {layer.name + SCALED: layer for layer in network.layers if layer.kind in GEMM_KINDS}
    corrections: dict[str, Array] = {}
    largest = max((int(np.prod(step.shape)) * 8 for step in trial.graph.steps), default=1)
    most = max(1, int(_HELD_BYTES / largest)) * trial.graph.batch
    held = tuple(x[:most] for x in run.samples)
    with on_processors() as each:

        def watch(step: Step, values: list[Array]) -> list[Array] | None:
            layer = layers.get(step.name)
            if layer is None or sum(value.size for value in values) < _MIN_VALUES * layer.shape[1]:
                return None
            scale = trial.integers[layer.name].scale
            column = (1, -1) + (1,) * (values[0].ndim - 2)
            factor = scale.factor.reshape(-1)
            expected = run.seen[layer.name].channel_mean
            correction = _mean_correction(values, scale.zero_point, factor, layer, expected, each)
            corrections[layer.name] = correction
            rounded = np.rint(correction / factor).astype(values[0].dtype).reshape(column)
            return each(lambda value: np.asarray(value + rounded), values)

        run_together(fuse_for_library(trial.graph, layers), split_batches(held, trial.graph.batch, 1), each, watch)
    for name, correction in corrections.items():
        layer = network.layer(name)
        bias = np.zeros(layer.shape[1]) if layer.bias is None else layer.bias
        layer.bias = (bias + correction).astype(np.float32)
    return len(corrections)


def _mean_correction(
    values: list[Array], zero: float, factor: Array, layer: Layer, expected: Array, each: Each
) -> Array:
    """Return the number per channel to add to (value - zero) * factor so that the mean after the activation is
    `expected`.

    Means are compared after the activation, since errors in clipped numbers do not matter. If only a part of the
    numbers is active, the mean moves by that share of the addition: a few Newton steps.
    """
    limits = tuple(np.broadcast_to(np.asarray(limit, np.float32), expected.shape) for limit in (layer.low, layer.high))
    correction = np.zeros(expected.shape)
    for _ in range(_NEWTON_STEPS):
        shares = each(lambda value, correction=correction: _means(value, zero, factor, correction, limits), values)  # type: ignore[misc]
        active, mean = np.asarray(shares, np.float64).mean(axis=0)
        correction = correction + np.where(
            active > _MIN_ACTIVE, (expected - mean) / np.maximum(active, _MIN_ACTIVE), 0.0
        )
    return correction


def _means(value: Array, zero: float, factor: Array, correction: Array, limits: tuple[Array, ...]) -> Array:
    """Return the share of active numbers and the mean, (2, channels)."""
    low, high = limits
    found = active_means(value, zero, factor, correction, (low, high))
    if found is not None:
        return found
    axes, column = tuple(axis for axis in range(value.ndim) if axis != 1), (1, -1) + (1,) * (value.ndim - 2)
    wide = factor.astype(np.float32).reshape(column if factor.size > 1 else 1)
    moved = (value - np.float32(zero)) * wide + correction.astype(np.float32).reshape(column)
    low, high = low.reshape(column), high.reshape(column)
    active = (moved > low) & (moved < high)
    return np.stack([part.mean(axis=axes, dtype=np.float64) for part in (active, np.clip(moved, low, high))])
