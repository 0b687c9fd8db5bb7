"""Quantize an imported network after training: calibrate, choose scales, correct, check, report.

Input: a float32 module with folded batch norms, and calibration samples. Output: a module that computes in integers,
and a report per layer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmflow.config.stage_params import Int8Params, VtaInt8Params
from tvmflow.ir.relax.graph import Array, Arrays, Graph, read_graph
from tvmflow.ir.relax.layers import CONV, DENSE, GEMM_KINDS, Layer, Network, group_layers
from tvmflow.ir.relax.scales import Scale, power_of_two, signed, unsigned
from tvmflow.quantization.bias_correction import correct_biases
from tvmflow.quantization.calibration import Calibration, int8_scales, outputs_of, power_of_two_scales
from tvmflow.quantization.cross_layer_equalization import equalize
from tvmflow.quantization.int8 import Int8Arithmetic
from tvmflow.quantization.layer_choice import Quantized
from tvmflow.quantization.qdq import strip_qdq
from tvmflow.quantization.report import QuantizationReport, describe, find_worst_layer, has_scores, worst_sqnr_db
from tvmflow.quantization.vta_int8 import VtaArithmetic
from tvmflow.support.errors import StageError, UnknownNameError
from tvmflow.support.progress import Progress

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

_TRIAL_SAMPLES = 32
_MIN_SAMPLES = 16  # for corrections of biases; those by a few samples look good on these, and are worse on others
_WORTH_DB = 0.1  # least gain of a correction to be used


def quantize_int8(
    mod: IRModule,
    samples: Array | Arrays,
    labels: Array | None,
    options: Int8Params,
    progress: Progress = lambda *_: None,
) -> tuple[Any, QuantizationReport]:
    """Return the module and the report of `choose_int8`, with the same arguments."""
    chosen, report = choose_int8(mod, samples, labels, options, progress)
    return chosen.module, report


def choose_int8(
    mod: IRModule,
    samples: Array | Arrays,
    labels: Array | None,
    options: Int8Params,
    progress: Progress = lambda *_: None,
) -> tuple[Quantized, QuantizationReport]:
    """Quantize to int8; a quantized model keeps its scales and weights. Raises UnknownNameError.

    samples: the calibration inputs, each (N, ...), or the single input. labels: (N,) or None. Gathers, matmuls of two
    values and other operators without an integer form stay in float.
    """
    samples = _arrays(samples)
    graph, given = strip_qdq(read_graph(mod))
    if options.activations == "auto":
        options = options.model_copy(update={"activations": "uint8"})
    # The dtype that the processor multiplies fastest: integers move by 128, numbers do not.
    as_multiplied = signed if options.activations == "int8" else unsigned
    given = {name: as_multiplied(scale) for name, scale in given.items()}
    chosen: _Trial | None = None
    for base in _prepare_trials(graph, given, samples, options, progress):
        can_correct = options.bias_correction and not given and base.run.can_batch and base.run.count >= _MIN_SAMPLES
        for correcting in (False, True) if can_correct else (False,):
            progress("choosing corrections", 0, 0)
            trial = _correct_biases(base) if correcting else base
            if chosen is None or trial.output_sqnr_db > chosen.output_sqnr_db + _WORTH_DB:
                chosen = trial
    assert chosen is not None
    run, quantized = chosen.run, chosen.quantized
    report = describe(run, quantized, labels)
    moved: list[str] = []
    goal = accuracy_goal(options.max_drop, labels, len(samples[0])) if has_scores(run.outputs) else None
    while goal is not None and report.quantized_score < _float_score(report) - goal:
        if len(moved) >= options.max_float_layers:
            break
        progress("moving layers back to float", len(moved), options.max_float_layers)
        worst = find_worst_layer(run, quantized, report, labels)
        if worst is None:
            break
        moved.append(worst)
        quantized = Quantized(chosen.network, chosen.arithmetic, chosen.scales, quantized.kept | {worst})
        report = describe(run, quantized, labels)
    report.moved_to_float = moved
    report.equalized_pairs, report.corrected_layers = chosen.equalized_pairs, chosen.corrected_layers
    if goal is not None:
        report.goal_met = report.quantized_score >= _float_score(report) - goal
    return quantized, report


def quantize_alike(chosen: Quantized, mod: IRModule, label: str) -> Any:
    """Return the network for other input sizes with the scales, weights and float layers of `chosen`. Raises
    StageError.
    """
    network = group_layers(strip_qdq(read_graph(mod))[0])
    for mine, theirs in itertools.zip_longest(network.items, chosen.network.items):
        if mine is None or theirs is None or mine.name != theirs.name:
            raise StageError(
                f"the network at {label} has other layers than at its largest size: {mine and mine.name} in "
                f"place of {theirs and theirs.name}",
                "the same layers at all sizes, so that they share their scales",
                "quantize to bfloat16, or give the model one shape",
            )
        if isinstance(mine, Layer) and isinstance(theirs, Layer):
            for name in ("weight", "bias", "low", "high"):
                number = getattr(theirs, name)
                if np.shape(number) == np.shape(getattr(mine, name)):
                    setattr(mine, name, number)
    return Quantized(network, chosen.arithmetic, chosen.scales, chosen.kept).module


def accuracy_goal(max_drop: float | None, labels: Array | None, samples: int) -> float | None:
    """Return the largest drop to allow, None for no goal.

    Without labels, a few samples cannot distinguish a small drop from a random flip between two classes; layers would
    return to float in vain. The drop must be at least one sample, unless it is 0.
    """
    if max_drop is None or (labels is None and 0 < max_drop * samples < 1):
        return None
    return max_drop


def quantize_vta(
    mod: IRModule,
    samples: Array | Arrays,
    labels: Array | None,
    options: VtaInt8Params,
    progress: Progress = lambda *_: None,
) -> tuple[Any, QuantizationReport]:
    """Quantize to VTA's power-of-two form. samples, labels: see `quantize_int8`."""
    samples = _arrays(samples)
    network = group_layers(read_graph(mod))
    run = Calibration(network, samples, progress)
    run.fill_histograms(None, {}, progress)
    kept = _resolve_float_layers(network, options.keep_float) | _skipped(network, options.skip_conv_layers)
    any_scales = dict.fromkeys(run.seen, power_of_two(1.0))
    integers = set(Quantized(network, VtaArithmetic(), any_scales, kept).integers)
    scales = power_of_two_scales(network, run, integers, one=options.scale == "global")
    chosen = 128 * max((scale.scale for scale in scales.values()), default=0.0)
    if options.scale == "global" and options.global_scale != "auto":
        scales = dict.fromkeys(scales, power_of_two(options.global_scale))
    quantized = Quantized(network, VtaArithmetic(), scales, kept)
    report = describe(run, quantized, labels)
    if options.scale == "global":
        report.best_global_scale = chosen
    return quantized.module, report


def _skipped(network: Network, numbers: tuple[int, ...]) -> frozenset[str]:
    """Return the convolutions with these numbers, in the network's order. Raises UnknownNameError."""
    names = [layer.name for layer in network.layers if layer.kind == CONV]
    if beyond := [number for number in numbers if number >= len(names)]:
        raise UnknownNameError(
            f"no convolution {beyond[0]} to keep in float, of {len(names)}",
            f"0 to {len(names) - 1}" if names else "a network with convolutions",
            hint="correct skip_conv_layers: under quantize: in params.yaml",
        )
    return frozenset(names[number] for number in numbers)


def _arrays(samples: Array | Arrays) -> Arrays:
    return samples if isinstance(samples, tuple) else (samples,)


@dataclass(frozen=True)
class _Trial:
    """A calibrated network with its scales, before the accuracy goal is checked."""

    network: Network
    run: Calibration
    arithmetic: Int8Arithmetic
    scales: dict[str, Scale]
    kept: frozenset[str]
    equalized_pairs: int = 0
    corrected_layers: int = 0

    @cached_property
    def quantized(self) -> Quantized:
        return Quantized(self.network, self.arithmetic, self.scales, self.kept)

    @cached_property
    def output_sqnr_db(self) -> float:
        """Return the SQNR of the outputs for the first samples."""
        few = tuple(x[:_TRIAL_SAMPLES] for x in self.run.samples)
        outputs = outputs_of(self.quantized.graph, self.run.chunks_of(few), len(few[0]))
        return worst_sqnr_db(tuple(reference[:_TRIAL_SAMPLES] for reference in self.run.outputs), outputs)


def _prepare_trials(
    graph: Graph, given: dict[str, Scale], samples: Arrays, options: Int8Params, progress: Progress
) -> list[_Trial]:
    """Return the network as it is and, where that is asked for, equalized."""
    network = group_layers(graph)
    run, twin, equalized, factors = Calibration(network, samples, progress), None, network.copy(), dict[str, Array]()
    if options.equalize and not given:
        factors = equalize(equalized, run.channel_ranges() if options.per_channel else None)
        twin = run.for_equalized(equalized, factors)
    if options.observer != "minmax":
        run.fill_histograms(twin, factors, progress)
    kept = _resolve_float_layers(network, options.keep_float)
    arithmetic = Int8Arithmetic(options.per_channel, bool(given))
    known = {network.names[name]: scale for name, scale in given.items()}
    prepared = [_Trial(network, run, arithmetic, int8_scales(network, run, options) | known, kept)]
    if twin is not None:
        scales = int8_scales(equalized, twin, options)
        prepared.append(_Trial(equalized, twin, arithmetic, scales, kept, len(factors)))
    return prepared


def _correct_biases(base: _Trial) -> _Trial:
    network = base.network.copy()
    count = correct_biases(network, base.run, base.quantized)
    return replace(base, network=network, corrected_layers=count)


def _float_score(report: QuantizationReport) -> float:
    return 1.0 if report.float_score is None else report.float_score


def _resolve_float_layers(network: Network, requested: tuple[str, ...]) -> frozenset[str]:
    """Resolve layer names, `first` (convolution or dense), `last`, `dense`. Raises UnknownNameError."""
    products = [layer.name for layer in network.layers if layer.kind in GEMM_KINDS]
    kept: set[str] = set()
    for name in requested:
        if name in ("first", "last"):
            kept.update(products[:1] if name == "first" else products[-1:])
        elif name == DENSE:
            kept.update(layer.name for layer in network.layers if layer.kind == DENSE)
        elif name in {layer.name for layer in network.layers}:
            kept.add(name)
        else:
            raise UnknownNameError(
                f"no layer {name!r} to keep in float",
                legal=["first", "last", "dense", *(x.name for x in network.layers)],
                hint="correct keep_float: under quantize: in params.yaml",
            )
    return frozenset(kept)
