"""Report the cost of quantization: noise per layer, alone and accumulated, and the calibration score."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array, Arrays, Step
from tvmflow.ir.relax.layers import ADD, GEMM_KINDS, Layer
from tvmflow.quantization.calibration import Calibration, concatenate_outputs, outputs_of
from tvmflow.quantization.int8 import SCALED
from tvmflow.quantization.integer_matmul import fuse_for_library, run_fast
from tvmflow.quantization.layer_choice import Quantized
from tvmflow.quantization.parallel import on_processors

_CANDIDATES = 6
_LAYER_SAMPLES = 8


@dataclass
class LayerReport:
    """The effect of quantization on one layer.

    sqnr_db: of the layer alone, with exact inputs; total_sqnr_db: including all previous layers. clipped: share of the
    float values outside the scale's limits.
    """

    name: str
    kind: str
    dtype: str
    scale: float | None = None
    zero_point: int | None = None
    clipped: float | None = None
    sqnr_db: float | None = None
    total_sqnr_db: float | None = None


@dataclass
class QuantizationReport:
    """The effect of quantization on a network.

    layers: in order; worst: the layer that adds most noise; scores: on the calibration set; best_global_scale: the
    choice of `auto`, if all activations share one scale.
    """

    layers: list[LayerReport] = field(default_factory=list)
    worst: str | None = None
    output_sqnr_db: float = 0.0
    moved_to_float: list[str] = field(default_factory=list)
    equalized_pairs: int = 0
    corrected_layers: int = 0
    samples: int = 0
    float_score: float | None = None
    quantized_score: float = 0.0
    goal_met: bool | None = None
    best_global_scale: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sqnr_db(reference: Array, output: Array) -> float:
    """Return the signal-to-quantization-noise ratio in dB; 200 without noise."""
    reference, output = reference.astype(np.float64), output.astype(np.float64)
    signal, noise = float((reference**2).sum()), float(((reference - output) ** 2).sum())
    if noise == 0:
        return 200.0
    return float(10 * np.log10(max(signal, 1e-30) / noise))


def worst_sqnr_db(references: Arrays, outputs: Arrays) -> float:
    """Return the lowest SQNR of the float outputs; 200 if there are none."""
    floats = [(a, b) for a, b in zip(references, outputs, strict=True) if a.dtype.kind == "f"]
    return min((sqnr_db(a, b) for a, b in floats), default=200.0)


def has_scores(outputs: Arrays) -> bool:
    """Whether the first output is class scores, (N, classes), for which top-1 is defined."""
    return outputs[0].ndim == 2 and outputs[0].shape[1] > 1


class _Noise:
    """Sums of signal and noise over chunks."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, reference: Array, output: Array) -> None:
        difference = reference - output
        self._add(name, float(np.vdot(reference, reference)), float(np.vdot(difference, difference)))

    def _add(self, name: str, signal: float, noise: float) -> None:
        signals, noises = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = (signals + signal, noises + noise)

    def merge(self, other: _Noise) -> None:
        for name, sums in other.sums.items():
            self._add(name, *sums)

    def db(self, name: str) -> float | None:
        if name not in self.sums:
            return None
        signal, noise = self.sums[name]
        return 200.0 if noise == 0 else float(10 * np.log10(max(signal, 1e-30) / noise))


def describe(run: Calibration, quantized: Quantized, labels: Array | None) -> QuantizationReport:
    """Compare float and integer networks, and measure every layer, alone and accumulated, on the first samples."""
    alone, placed, chunks, fused = _Noise(), _Noise(), run.chunks(), fuse_for_library(quantized.graph)
    few = -(-_LAYER_SAMPLES // len(chunks[0][0]))
    parts = []
    with on_processors() as each:
        for outputs, *noises in each(lambda chunk: _measure(run, quantized, chunk), chunks[:few]):
            parts.append(outputs)
            alone.merge(noises[0])
            placed.merge(noises[1])
        parts += each(lambda chunk: run_fast(fused, chunk), chunks[few:])
    outputs = concatenate_outputs(parts, run.count)
    report = QuantizationReport(samples=run.count, output_sqnr_db=worst_sqnr_db(run.outputs, outputs))
    report.float_score, report.quantized_score = _scores(run.outputs, outputs, labels)
    for layer in quantized.network.layers:
        report.layers.append(_layer_report(layer, run, quantized, alone, placed))
    noisy = [
        layer for layer in report.layers if layer.sqnr_db is not None and layer.kind in (*GEMM_KINDS, ADD, "affine")
    ]
    report.worst = min(noisy, key=lambda layer: layer.sqnr_db or 0.0).name if noisy else None
    return report


def _measure(run: Calibration, quantized: Quantized, chunk: Arrays) -> tuple[Arrays, _Noise, _Noise]:
    """Return the integer network's outputs for a chunk, and the noise of each layer, alone and accumulated."""
    alone, placed = _Noise(), _Noise()
    names = {
        name + (SCALED if integer.scale.per_channel else "_q"): name for name, integer in quantized.integers.items()
    }
    reference = dict(zip(run.graph.inputs, chunk, strict=True))
    run_fast(run.graph, chunk, lambda step, value: reference.update({step.name: value}))

    def exact(step: Step, value: Array) -> Array | None:
        name = names.get(step.name)
        if name is None or name not in reference:
            return None
        scale = quantized.integers[name].scale
        alone.add(name, reference[name], scale.dequantize(value))
        return scale.quantize(reference[name])

    def in_place(step: Step, value: Array) -> None:
        name = names.get(step.name)
        if name is not None and name in reference:
            placed.add(name, reference[name], quantized.integers[name].scale.dequantize(value))

    fused = fuse_for_library(quantized.graph, names)
    run_fast(fused, chunk, exact)
    return run_fast(fused, chunk, in_place), alone, placed


def _layer_report(layer: Layer, run: Calibration, quantized: Quantized, alone: _Noise, placed: _Noise) -> LayerReport:
    if layer.name not in quantized.integer_layers:
        return LayerReport(layer.name, layer.kind, "float32")
    scale = quantized.integers[layer.name].scale
    low, high = scale.limits
    return LayerReport(
        layer.name,
        layer.kind,
        scale.dtype,
        scale.scale,
        scale.zero_point,
        run.seen[layer.name].clipped(low, high) if layer.name in run.seen else None,
        alone.db(layer.name),
        placed.db(layer.name),
    )


def _scores(references: Arrays, outputs: Arrays, labels: Array | None) -> tuple[float | None, float]:
    """Return accuracy of float and quantized, or (None, top-1 agreement) without labels; (None, 1) without classes."""
    if not has_scores(references):
        return None, 1.0
    top_float, top = references[0].argmax(axis=1), outputs[0].argmax(axis=1)
    if labels is None or labels.shape != top.shape:
        return None, float((top_float == top).mean())
    return float((top_float == labels).mean()), float((top == labels).mean())


def find_worst_layer(
    run: Calibration, quantized: Quantized, report: QuantizationReport, labels: Array | None
) -> str | None:
    """Return the layer, among those that add most noise, whose return to float improves the output most."""
    noisy = sorted(
        (layer for layer in report.layers if layer.dtype != "float32" and layer.kind in GEMM_KINDS),
        key=lambda layer: layer.sqnr_db if layer.sqnr_db is not None else 0.0,
    )
    best: tuple[float, float] | None = None
    chosen = None
    for layer in noisy[:_CANDIDATES]:
        trial = Quantized(quantized.network, quantized.arithmetic, quantized.scales, quantized.kept | {layer.name})
        outputs = outputs_of(trial.graph, run.chunks(), run.count)
        score = (_scores(run.outputs, outputs, labels)[1], worst_sqnr_db(run.outputs, outputs))
        if best is None or score > best:
            best, chosen = score, layer.name
    return chosen
