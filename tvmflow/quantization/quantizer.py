"""Post-training quantization of an imported network: calibrate, choose scales, correct, check, and say what it cost.

In:  a float32 module whose batch norms are folded, and calibration samples
Out: a module that computes in integers, and a report per layer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tvmflow.errors import UnknownNameError
from tvmflow.quantization.definition import run_graph, scales_with_batch
from tvmflow.quantization.emit import Arithmetic, Writer, float_module
from tvmflow.quantization.equalize import equalize
from tvmflow.quantization.graph import Array, Graph, Step, read_graph
from tvmflow.quantization.int8 import SCALED, Int8Arithmetic
from tvmflow.quantization.layers import ADD, CONCAT, CONV, DENSE, MOVE, Layer, Network, group_layers
from tvmflow.quantization.observers import OBSERVERS, Observed
from tvmflow.quantization.qdq import strip_qdq
from tvmflow.quantization.scales import Scale, asymmetric, power_of_two
from tvmflow.quantization.vta_int8 import VtaArithmetic

_CHUNK_BYTES = 256 << 20
_CORRECTED = (CONV, DENSE)
_NEWTON_STEPS = 3
_TRIAL_SAMPLES = 32
_WORTH_DB = 0.1  # what a correction has to win to be kept
_MIN_ACTIVE = 0.1  # of a channel's numbers; below, a mean says too little about them

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Int8Options:
    """observer: minmax, percentile, kl or mse. activations: uint8 or int8. keep_float: layer names, `first`, `last`.

    equalize, bias_correction: may be used; each is kept only where the answers come closer to float32 for it.
    max_drop: accuracy (or, without labels, top-1 agreement with float32) that may be lost on the calibration set; while
    more is lost, the worst layers go back to float, at most max_float_layers of them. None: no goal.
    """

    observer: str = "mse"
    percentile: float = 99.99
    activations: str = "uint8"
    per_channel: bool = True
    equalize: bool = True
    bias_correction: bool = True
    keep_float: tuple[str, ...] = ()
    max_drop: float | None = None
    max_float_layers: int = 8


@dataclass(frozen=True)
class VtaOptions:
    """scale: `global` (one scale for all activations, from global_scale) or `calibrated` (a power of two for each)."""

    scale: str = "global"
    global_scale: float = 8.0
    keep_float: tuple[str, ...] = ("first", "dense")


@dataclass
class LayerReport:
    """What quantization did to one layer.

    sqnr_db: of the layer alone, given exact inputs; total_sqnr_db: with all that came before. clipped: share of the float
    values outside the scale's limits.
    """

    name: str
    kind: str
    form: str
    scale: float | None = None
    zero_point: int | None = None
    clipped: float | None = None
    sqnr_db: float | None = None
    total_sqnr_db: float | None = None


@dataclass
class QuantizationReport:
    """layers in order; worst: the layer that adds most noise; accuracy and agreement on the calibration set."""

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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def quantize_int8(
    mod: Any, samples: Array, labels: Array | None, options: Int8Options, progress: Report = lambda *_: None
) -> tuple[Any, QuantizationReport]:
    """Quantize to int8; a model that came quantized keeps its own scales and weights. samples: (N, ...) float32, calibration; labels (N,) or None. Raises UnknownNameError."""
    graph, given = strip_qdq(read_graph(mod))
    best: tuple[float, _Prepared] | None = None
    for equalizing in _choices(options.equalize and not given):
        base = _prepare(graph, given, samples, options, equalizing, progress)
        for correcting in _choices(options.bias_correction and not given and base.run.can_batch):
            progress("choosing corrections", 0, 0)
            trial = _corrected(base) if correcting else base
            sqnr = trial.output_sqnr_db(samples[:_TRIAL_SAMPLES])
            if best is None or sqnr > best[0] + _WORTH_DB:
                best = (sqnr, trial)
    assert best is not None
    chosen = best[1]
    run, network, scales, arithmetic = chosen.run, chosen.network, chosen.scales, chosen.arithmetic
    quantized = _Quantized(network, arithmetic, scales, chosen.kept)
    report = _describe(run, quantized, labels)
    moved: list[str] = []
    while options.max_drop is not None and report.quantized_score < _base(report) - options.max_drop:
        if len(moved) >= options.max_float_layers:
            break
        progress("moving layers back to float", len(moved), options.max_float_layers)
        worst = _worst_to_move(run, quantized, report, labels)
        if worst is None:
            break
        moved.append(worst)
        quantized = _Quantized(network, arithmetic, scales, quantized.kept | {worst})
        report = _describe(run, quantized, labels)
    report.moved_to_float = moved
    report.equalized_pairs, report.corrected_layers = chosen.equalized_pairs, chosen.corrected_layers
    if options.max_drop is not None:
        report.goal_met = report.quantized_score >= _base(report) - options.max_drop
    return quantized.module, report


def quantize_vta(
    mod: Any, samples: Array, labels: Array | None, options: VtaOptions, progress: Report = lambda *_: None
) -> tuple[Any, QuantizationReport]:
    """Quantize to the power-of-two form that VTA computes."""
    network = group_layers(read_graph(mod))
    run = _Calibration(network, samples, progress)
    if options.scale == "global":
        one = Scale(options.global_scale / 128, 0, "int8", -127, 127)
        scales = dict.fromkeys(run.seen, one)
    else:
        scales = _tied(network, {
            name: power_of_two(max(abs(seen.low), abs(seen.high))) for name, seen in run.seen.items()
        })  # fmt: skip
    quantized = _Quantized(network, VtaArithmetic(), scales, _kept(network, options.keep_float))
    return quantized.module, _describe(run, quantized, labels)


def _choices(allowed: bool) -> tuple[bool, ...]:
    return (False, True) if allowed else (False,)


@dataclass(frozen=True)
class _Prepared:
    """A calibrated network with its scales, before the goal is looked at."""

    network: Network
    run: _Calibration
    arithmetic: Int8Arithmetic
    scales: dict[str, Scale]
    kept: frozenset[str]
    equalized_pairs: int = 0
    corrected_layers: int = 0

    def output_sqnr_db(self, samples: Array) -> float:
        graph = _Quantized(self.network, self.arithmetic, self.scales, self.kept).graph
        pieces = _pieces(samples, graph.input_shape[0], 1 if not self.run.can_batch else 4)
        answer = np.concatenate([run_graph(graph, piece) for piece in pieces])[: len(samples)]
        return sqnr_db(self.run.output[: len(samples)], answer)


def _prepare(
    graph: Graph, given: dict[str, Scale], samples: Array, options: Int8Options, equalizing: bool, progress: Report
) -> _Prepared:  # fmt: skip
    network = group_layers(graph)
    run = _Calibration(network, samples, progress)
    pairs = 0
    if equalizing:
        pairs = equalize(network, run.channel_ranges() if options.per_channel else None)
        run = _Calibration(network, samples, progress)
    kept = _kept(network, options.keep_float)
    scales = _int8_scales(network, run, options) | {network.names[name]: scale for name, scale in given.items()}
    return _Prepared(network, run, Int8Arithmetic(options.per_channel), scales, kept, pairs)


def _corrected(base: _Prepared) -> _Prepared:
    network = base.network.copy()
    count = _correct_biases(network, base.run, base.arithmetic, base.scales, base.kept)
    return replace(base, network=network, corrected_layers=count)


def _base(report: QuantizationReport) -> float:
    return 1.0 if report.float_score is None else report.float_score


def _kept(network: Network, wanted: tuple[str, ...]) -> frozenset[str]:
    """Resolve layer names, `first` (convolution or dense), `last`, `dense`. Raises UnknownNameError."""
    products = [layer.name for layer in network.layers if layer.kind in _CORRECTED]
    found: set[str] = set()
    for name in wanted:
        if name in ("first", "last"):
            found.update(products[:1] if name == "first" else products[-1:])
        elif name == DENSE:
            found.update(layer.name for layer in network.layers if layer.kind == DENSE)
        elif name in {layer.name for layer in network.layers}:
            found.add(name)
        else:
            raise UnknownNameError(
                f"no layer {name!r} to keep in float", legal=["first", "last", "dense", *(x.name for x in network.layers)],
                fix="correct keep_float: under quantize: in params.yaml",
            )  # fmt: skip
    return frozenset(found)


class _Calibration:
    """The float network, and what its values look like on the calibration samples."""

    def __init__(self, network: Network, samples: Array, progress: Report) -> None:
        self.samples = samples
        self.graph = read_graph(float_module(network))
        self.can_batch = scales_with_batch(self.graph)
        self.values = {network.graph.input_name, *(item.name for item in network.items)}
        self.before = {f"{layer.name}_before" for layer in network.layers}
        self.seen: dict[str, Observed] = {}
        self.output = self._observe("see_range", progress)
        self._observe("see_values", progress)

    def channel_ranges(self) -> dict[str, Array]:
        """Return the largest magnitude per channel of every value."""
        return {name: np.asarray(seen.channel_high) for name, seen in self.seen.items()}

    def chunks(self) -> list[Array]:
        """Cut the samples into pieces that the graph takes, each small enough to keep all its values."""
        batch = self.graph.input_shape[0]
        if not self.can_batch:
            return _pieces(self.samples, batch, 1)
        largest = sum(int(np.prod(step.shape)) * 4 for step in self.graph.steps) / batch
        return _pieces(self.samples, batch, max(1, int(_CHUNK_BYTES / max(largest, 1) / batch)))

    def _observe(self, method: str, progress: Report) -> Array:
        chunks, answers = self.chunks(), []

        def watch(step: Step, value: Array) -> None:
            if step.name in self.values or step.name in self.before:
                getattr(self.seen.setdefault(step.name, Observed()), method)(value)

        for at, chunk in enumerate(chunks):
            getattr(self.seen.setdefault(self.graph.input_name, Observed()), method)(chunk)
            answers.append(run_graph(self.graph, chunk, watch))
            progress("calibrating", at + 1, len(chunks))
        return np.concatenate(answers)[: len(self.samples)]


def _pieces(samples: Array, batch: int, batches: int) -> list[Array]:
    """Cut into pieces of whole batches; the last sample is repeated where they do not come out even."""
    missing = -len(samples) % batch
    full = np.concatenate([samples, np.repeat(samples[-1:], missing, axis=0)]) if missing else samples
    return [full[at : at + batch * batches] for at in range(0, len(full), batch * batches)]


class _Quantized:
    """One choice of what is integer, as a module and as the graph that the definition runs."""

    def __init__(
        self, network: Network, arithmetic: Arithmetic, scales: dict[str, Scale], kept: frozenset[str]
    ) -> None:
        self.network, self.arithmetic, self.scales, self.kept = network, arithmetic, scales, kept
        writer = Writer(network, arithmetic, scales, kept)
        self.module = writer.module()
        self.integers = dict(writer.integers)
        self.integer_layers = writer.integer_layers
        self.graph: Graph = read_graph(self.module)


def _int8_scales(network: Network, run: _Calibration, options: Int8Options) -> dict[str, Scale]:
    if options.observer not in OBSERVERS:
        raise UnknownNameError(f"no observer {options.observer!r}", legal=OBSERVERS)
    scales = {}
    for name, seen in run.seen.items():
        low, high = OBSERVERS[options.observer](seen, options.percentile, 255)
        scales[name] = asymmetric(low, high, options.activations)
    return _shared(network, scales)


def _shared(network: Network, scales: dict[str, Scale]) -> dict[str, Scale]:
    """Give a value that only a concatenation reads the scale of the concatenation: no second rounding."""
    users = network.users()
    for item in reversed(network.items):
        readers = users[item.name]
        if len(readers) == 1 and isinstance(readers[0], Layer) and readers[0].kind == CONCAT and item.name in scales:
            scales[item.name] = scales[readers[0].name]
    return scales


def _tied(network: Network, scales: dict[str, Scale]) -> dict[str, Scale]:
    """Give both operands of a residual addition one scale, the coarser: the ALU adds them as they are."""
    for _ in network.items:
        before = dict(scales)
        for layer in network.layers:
            if layer.kind in (ADD, MOVE, CONCAT):
                names = layer.inputs if layer.kind == ADD else (*layer.inputs, layer.name)
                coarsest = max((scales[name] for name in names if name in scales), key=lambda scale: scale.scale)
                scales.update({name: coarsest for name in names if name in scales})
        if scales == before:
            break
    return scales


def _correct_biases(
    network: Network, run: _Calibration, arithmetic: Arithmetic, scales: dict[str, Scale], kept: frozenset[str]
) -> int:
    """Shift biases so that each quantized layer has the float layer's mean per channel, first layer first.

    Source: Nagel et al. 2019, section 4.2, with means measured on the calibration set. One run does all layers: a value
    is corrected on its way, so the layers after it see what they will see.
    """
    trial = _Quantized(network, arithmetic, scales, kept)
    layers = {layer.name + SCALED: layer for layer in network.layers if layer.kind in _CORRECTED}
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
    most = max(1, int(2 * _CHUNK_BYTES / largest)) * trial.graph.input_shape[0]
    run_graph(trial.graph, _pieces(run.samples[:most], trial.graph.input_shape[0], most)[0], watch)
    for name, correction in corrections.items():
        layer = network.layer(name)
        bias = np.zeros(layer.shape[1]) if layer.bias is None else layer.bias
        layer.bias = (bias + correction).astype(np.float32)
    return len(corrections)


def _mean_correction(numbers: Array, layer: Layer, wanted: Array, column: tuple[int, ...]) -> Array:
    """Return what to add per channel so that the mean after the activation is `wanted`.

    Compared after the activation, because an error in numbers that it cuts off is none. Where the activation lets only a
    part through, the mean moves by that part of what is added: a few Newton steps.
    """
    axes = tuple(axis for axis in range(numbers.ndim) if axis != 1)
    low, high = (
        np.broadcast_to(np.asarray(limit, np.float64), wanted.shape).reshape(column)
        for limit in (layer.low, layer.high)
    )
    correction = np.zeros(wanted.shape)
    for _ in range(_NEWTON_STEPS):
        moved = numbers + correction.reshape(column)
        active = ((moved > low) & (moved < high)).mean(axis=axes)
        error = wanted - np.clip(moved, low, high).mean(axis=axes)
        correction += np.where(active > _MIN_ACTIVE, error / np.maximum(active, _MIN_ACTIVE), 0.0)
    return correction


def sqnr_db(reference: Array, answer: Array) -> float:
    """Return the signal-to-quantization-noise ratio in dB; 200 where there is no noise."""
    reference, answer = reference.astype(np.float64), answer.astype(np.float64)
    signal, noise = float((reference**2).sum()), float(((reference - answer) ** 2).sum())
    if noise == 0:
        return 200.0
    return float(10 * np.log10(max(signal, 1e-30) / noise))


class _Noise:
    """Sums of signal and noise over chunks."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def add(self, name: str, reference: Array, answer: Array) -> None:
        signal, noise = self.sums.get(name, (0.0, 0.0))
        difference = reference.astype(np.float64) - answer
        self.sums[name] = (
            signal + float((reference.astype(np.float64) ** 2).sum()),
            noise + float((difference**2).sum()),
        )

    def db(self, name: str) -> float | None:
        if name not in self.sums:
            return None
        signal, noise = self.sums[name]
        return 200.0 if noise == 0 else float(10 * np.log10(max(signal, 1e-30) / noise))


def _describe(run: _Calibration, quantized: _Quantized, labels: Array | None) -> QuantizationReport:
    """Run float and integer forms side by side and measure every layer, alone and in its place."""
    alone, placed, answers = _Noise(), _Noise(), []
    names = {name + (SCALED if found.scale.per_channel else "_q"): name for name, found in quantized.integers.items()}
    for chunk in run.chunks():
        reference = {run.graph.input_name: chunk}
        run_graph(run.graph, chunk, lambda step, value, kept=reference: kept.update({step.name: value}))  # type: ignore[misc]

        def exact(step: Step, value: Array, reference: dict[str, Array] = reference) -> Array | None:
            name = names.get(step.name)
            if name is None or name not in reference:
                return None
            scale = quantized.integers[name].scale
            alone.add(name, reference[name], scale.dequantize(value))
            return scale.quantize(reference[name])

        def in_place(step: Step, value: Array, reference: dict[str, Array] = reference) -> None:
            name = names.get(step.name)
            if name is not None and name in reference:
                placed.add(name, reference[name], quantized.integers[name].scale.dequantize(value))

        run_graph(quantized.graph, chunk, exact)
        answers.append(run_graph(quantized.graph, chunk, in_place))
    answer = np.concatenate(answers)[: len(run.samples)]
    report = QuantizationReport(samples=len(run.samples), output_sqnr_db=sqnr_db(run.output, answer))
    report.float_score, report.quantized_score = _scores(run.output, answer, labels)
    for layer in quantized.network.layers:
        report.layers.append(_layer_report(layer, run, quantized, alone, placed))
    noisy = [
        layer for layer in report.layers if layer.sqnr_db is not None and layer.kind in (CONV, DENSE, ADD, "affine")
    ]
    report.worst = min(noisy, key=lambda layer: layer.sqnr_db or 0.0).name if noisy else None
    return report


def _layer_report(layer: Layer, run: _Calibration, quantized: _Quantized, alone: _Noise, placed: _Noise) -> LayerReport:
    if layer.name not in quantized.integer_layers:
        return LayerReport(layer.name, layer.kind, "float32")
    scale = quantized.integers[layer.name].scale
    low, high = scale.limits
    return LayerReport(
        layer.name, layer.kind, scale.dtype, scale.scale, scale.zero_point, run.seen[layer.name].clipped(low, high),
        alone.db(layer.name), placed.db(layer.name),
    )  # fmt: skip


def _scores(reference: Array, answer: Array, labels: Array | None) -> tuple[float | None, float]:
    """Return accuracy of float and quantized, or (None, top-1 agreement) without labels."""
    top_float, top = reference.argmax(axis=1), answer.argmax(axis=1)
    if labels is None:
        return None, float((top == top_float).mean())
    return float((top_float == labels).mean()), float((top == labels).mean())


_CANDIDATES = 6


def _worst_to_move(
    run: _Calibration, quantized: _Quantized, report: QuantizationReport, labels: Array | None
) -> str | None:
    """Of the layers that add most noise, return the one whose return to float helps the output most."""
    noisy = sorted(
        (layer for layer in report.layers if layer.form != "float32" and layer.kind in _CORRECTED),
        key=lambda layer: layer.sqnr_db if layer.sqnr_db is not None else 0.0,
    )
    best: tuple[float, float] | None = None
    chosen = None
    for layer in noisy[:_CANDIDATES]:
        trial = _Quantized(quantized.network, quantized.arithmetic, quantized.scales, quantized.kept | {layer.name})
        answer = np.concatenate([run_graph(trial.graph, chunk) for chunk in run.chunks()])[: len(run.samples)]
        found = (_scores(run.output, answer, labels)[1], sqnr_db(run.output, answer))
        if best is None or found > best:
            best, chosen = found, layer.name
    return chosen
