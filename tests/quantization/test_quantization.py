"""Test scales, observers, equalization, bias correction and the accuracy goal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_equal

from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.emit import constant, float_module
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.layers import group_layers
from tvmflow.ir.relax.numpy_interpreter import run_all, run_graph
from tvmflow.ir.relax.scales import (
    asymmetric,
    find_exact_scales,
    power_of_two,
    quantize_weight,
    round_half_away,
    to_fixed_point,
)
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization import post_training as quantizer
from tvmflow.quantization.bias_correction import correct_biases
from tvmflow.quantization.calibration import Calibration, int8_scales
from tvmflow.quantization.cross_layer_equalization import equalize
from tvmflow.quantization.int8 import Int8Arithmetic
from tvmflow.quantization.layer_choice import Quantized
from tvmflow.quantization.observers import OBSERVERS, Observed
from tvmflow.quantization.parallel import on_processors, run_together
from tvmflow.quantization.post_training import quantize_int8
from tvmflow.quantization.report import sqnr_db
from tvmflow.support.errors import UnknownNameError
from tvmflow.support.progress import silent

pytestmark = pytest.mark.heavy

Array = np.ndarray[Any, Any]


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8))
def test_a_fixed_point_factor_is_exact_to_31_bits_of_the_largest(factors: list[float]) -> None:
    multipliers, shift = to_fixed_point(np.array(factors))
    assert multipliers.max() < 2**31 and 0 <= shift <= 46
    assert np.abs(multipliers * 2.0**-shift - factors).max() <= max(max(factors) * 2.0**-30, 2.0**-47)


@given(st.floats(-50, 50, width=32), st.floats(0, 100, width=32), st.sampled_from(["uint8", "int8"]))
def test_quantizing_stays_within_half_a_step_and_keeps_zero(low: float, width: float, dtype: str) -> None:
    scale = asymmetric(low, low + width, dtype)
    limits = scale.limits
    x = np.linspace(max(limits[0], min(low, 0)), min(limits[1], max(low + width, 0)), 101, dtype=np.float32)
    error = np.abs(scale.dequantize(scale.quantize(x)) - x).max()
    assert error <= scale.scale * 0.5001 + 1e-4 * np.abs(x).max()
    assert scale.dequantize(scale.quantize(np.zeros(1, np.float32)))[0] == 0


@given(st.floats(1e-6, 1e6))
def test_a_power_of_two_scale_is_the_smallest_that_holds_the_largest(largest: float) -> None:
    scale = power_of_two(largest)
    whole = scale.scale * 128
    assert math.log2(whole).is_integer() and whole >= largest > whole / 2
    assert (scale.low, scale.high, scale.zero_point) == (-127, 127, 0)


def test_halves_go_away_from_zero() -> None:
    assert round_half_away(np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 2.4])).tolist() == [1, -1, 2, 3, -3, 0, 2]


def test_weights_per_channel_and_of_zeros() -> None:
    weight = np.array([[1.004, -2.0], [0.0, 0.0], [0.012, 0.02]], np.float32)[:, :, None, None]
    q, scales = quantize_weight(weight, 0)
    assert q[:, :, 0, 0].tolist() == [[64, -127], [0, 0], [76, 127]] and len(scales) == 3
    assert quantize_weight(weight, None)[1].shape == (1,)


def test_weights_that_came_quantized_keep_their_integers() -> None:
    draw = np.random.default_rng(0)
    q = draw.integers(-63, 64, (6, 4, 3, 3)).astype(np.float32)
    q[0, 0, 0, 0] = 63
    columns = draw.uniform(0.001, 0.1, (6, 1, 1, 1)).astype(np.float32)
    for scales in (np.float32(0.0123), columns):
        found = find_exact_scales(q * scales, 0)
        assert found is not None and found[1].shape == ((1,) if scales.ndim == 0 else (6,))
        integers, units = found
        np.testing.assert_allclose(integers * units.reshape(-1, 1, 1, 1), q * scales, rtol=1e-6)
        assert np.abs(integers).max() > 100, "multiples of them, so that the bias has small units"
    assert find_exact_scales(draw.standard_normal((6, 40)).astype(np.float32), 0) is None
    zeros = find_exact_scales(np.zeros((2, 3), np.float32), 1)
    assert zeros is not None and not zeros[0].any()


def _observed(values: Array) -> Observed:
    seen = Observed()
    for part in np.array_split(values, 2):
        seen.add(Observed.of(part))
    seen.counts += sum(seen.count(part) for part in np.array_split(values, 3))
    return seen


def test_a_histogram_is_numpys_but_for_numbers_on_an_edge() -> None:
    values = np.random.default_rng(0).laplace(size=(10, 4, 500)).astype(np.float32)
    seen = _observed(values)
    counts, _ = np.histogram(values, len(seen.counts), (values.min(), values.max()))
    assert seen.counts.sum() == values.size and np.abs(np.cumsum(seen.counts - counts)).max() <= 3
    assert np.allclose(seen.channel_mean, values.mean(axis=(0, 2)), atol=1e-6)


@pytest.mark.parametrize("name", OBSERVERS)
def test_an_observer_stays_inside_what_was_seen(name: str) -> None:
    values = np.random.default_rng(0).laplace(size=(10, 4, 50)).astype(np.float32)
    low, high = OBSERVERS[name](_observed(values), 99.9, 255)
    assert values.min() <= low < 0 < high <= values.max()


@pytest.mark.parametrize("name", ["percentile", "kl"])
def test_one_outlier_does_not_decide_the_range(name: str) -> None:
    values = np.random.default_rng(0).normal(size=(100, 4, 50)).astype(np.float32)
    values[0, 0, 0] = 1000.0
    _, high = OBSERVERS[name](_observed(values), 99.9, 255)
    assert high < 600 and OBSERVERS["minmax"](_observed(values), 99.9, 255)[1] == 1000.0


def test_mse_is_never_worse_than_min_max_on_what_it_saw() -> None:
    values = np.maximum(np.random.default_rng(1).laplace(size=(100, 4, 64)), 0).astype(np.float32)
    errors = {}
    for name in ("minmax", "mse"):
        scale = asymmetric(*OBSERVERS[name](_observed(values), 99.9, 255), "uint8")
        errors[name] = float(((scale.dequantize(scale.quantize(values)) - values) ** 2).mean())
    assert errors["mse"] <= errors["minmax"] * 1.01


def test_equalization_changes_no_output_and_evens_ranges(depthwise: tuple[Any, Array, Array]) -> None:
    module, _, x = depthwise
    network = group_layers(read_graph(module))
    before = np.abs(network.layers[0].weight).reshape(16, -1).max(1)  # type: ignore[arg-type]
    assert len(equalize(network)) == 2
    after = np.abs(network.layers[0].weight).reshape(16, -1).max(1)  # type: ignore[arg-type]
    assert np.ptp(np.log(after)) < 0.5 * np.ptp(np.log(before))
    assert sqnr_db(run_graph(read_graph(module), x), run_graph(read_graph(float_module(network)), x)) > 100


@pytest.mark.parametrize("per_channel", [True, False])
def test_an_equalized_network_is_known_without_running_it(
    depthwise: tuple[Any, Array, Array], per_channel: bool
) -> None:
    module, samples, _ = depthwise
    network = group_layers(read_graph(module))
    run, equalized = Calibration(network, (samples,), silent), network.copy()
    factors = equalize(equalized, run.channel_ranges() if per_channel else None)
    known, found = run.for_equalized(equalized, factors), Calibration(equalized, (samples,), silent)
    run.fill_histograms(known, factors, silent)
    found.fill_histograms(None, {}, silent)
    for name, seen in found.seen.items():
        assert np.allclose(known.seen[name].channel_magnitude, seen.channel_magnitude, rtol=1e-4)
        assert np.allclose(known.seen[name].channel_mean, seen.channel_mean, rtol=1e-4, atol=1e-6)
        assert np.abs(np.cumsum(known.seen[name].counts - seen.counts)).max() <= 1e-3 * seen.counts.sum()


def test_pieces_that_go_together_get_what_each_gets_alone(depthwise: tuple[Any, Array, Array]) -> None:
    module, samples, _ = depthwise
    graph, seen = read_graph(module), dict[str, list[Array]]()
    halves = [(samples[:16],), (samples[16:],)]
    with on_processors() as each:
        run_together(graph, halves, each, lambda step, values: seen.update({step.name: values}))
    for half, x in enumerate(halves):
        run_all(graph, x, lambda step, value, half=half: assert_equal(seen[step.name][half], value))  # type: ignore[misc]


@pytest.mark.parametrize("observer", ["mse", "minmax"])
def test_signed_activations_mean_what_unsigned_ones_do(depthwise: tuple[Any, Array, Array], observer: str) -> None:
    """So that each processor may have the dtype that it multiplies fastest."""
    module, calibration, x = depthwise
    outputs = []
    for activations in ("uint8", "int8"):
        options = Int8Params(observer=observer, activations=activations, max_drop=None)
        graph = read_graph(quantize_int8(module, calibration, None, options)[0])
        dtypes = {str(kind.dtype) for kind in graph.kinds().values()}
        assert activations in dtypes and not {"uint8", "int8"} - {activations} & dtypes
        outputs.append(run_graph(graph, x))
    assert np.array_equal(*outputs) and np.ptp(outputs[0]) > 0


NAIVE = {"observer": "minmax", "per_channel": False, "equalize": False, "bias_correction": False}


def _sqnr(depthwise: tuple[Any, Array, Array], **options: Any) -> float:
    module, calibration, x = depthwise
    quantized, _ = quantize_int8(module, calibration, None, Int8Params(**(NAIVE | options), max_drop=None))
    return sqnr_db(run_graph(read_graph(module), x), run_graph(read_graph(quantized), x))


def test_every_means_against_uneven_channels_helps(depthwise: tuple[Any, Array, Array]) -> None:
    naive = _sqnr(depthwise)
    assert _sqnr(depthwise, equalize=True) > naive + 4
    assert _sqnr(depthwise, per_channel=True) > naive + 4
    assert _sqnr(depthwise, per_channel=True, equalize=True) > naive + 4
    assert _sqnr(depthwise, bias_correction=True) >= naive


def test_the_goal_moves_the_worst_layers_until_it_is_met(depthwise: tuple[Any, Array, Array]) -> None:
    module, calibration, _ = depthwise
    _, without = quantize_int8(module, calibration, None, Int8Params(**NAIVE, max_drop=None))
    assert without.quantized_score < 1.0 and without.goal_met is None
    _, report = quantize_int8(module, calibration, None, Int8Params(**NAIVE, max_drop=0.0))
    assert report.goal_met and report.quantized_score == 1.0 and report.moved_to_float
    dtypes = {layer.name: layer.dtype for layer in report.layers}
    assert all(dtypes[name] == "float32" for name in report.moved_to_float)
    _, report = quantize_int8(module, calibration, None, Int8Params(**NAIVE, max_drop=0.0, max_float_layers=0))
    assert report.goal_met is False and report.moved_to_float == []


@pytest.mark.parametrize(
    ("max_drop", "labelled", "samples", "goal"),
    [
        (0.005, False, 8, None),
        (0.005, False, 199, None),
        (0.005, False, 200, 0.005),
        (0.005, True, 8, 0.005),
        (0.0, False, 8, 0.0),
        (None, True, 512, None),
        (0.25, False, 8, 0.25),
    ],
)
def test_a_goal_needs_samples_that_can_tell(
    max_drop: float | None, labelled: bool, samples: int, goal: float | None
) -> None:
    assert quantizer.accuracy_goal(max_drop, np.zeros(samples) if labelled else None, samples) == goal


@pytest.mark.parametrize("place", range(1, 4))
def test_the_report_points_at_the_layer_that_hurts(place: int) -> None:
    """The layer whose weights quantize badly: each row has one large weight, on an input that is always zero."""
    torch.manual_seed(place)
    network = torch.nn.Sequential(*(part for _ in range(5) for part in (torch.nn.Linear(32, 32), torch.nn.ReLU())))
    with torch.no_grad():
        network[2 * place - 2].bias[7] = -1000.0
        network[2 * place].weight[:, 7] = 500.0
    module = canonicalize(ExportedModel(network.eval(), one_input("input", (1, 32))).to_relax())
    samples = np.random.default_rng(0).standard_normal((64, 32), dtype=np.float32)
    _, report = quantize_int8(module, samples, None, Int8Params(equalize=False, bias_correction=False, max_drop=None))
    layers = {layer.name: layer for layer in report.layers if layer.kind == "dense"}
    assert report.worst == f"dense{place}" and list(layers) == [f"dense{at}" for at in range(5)]
    for at, layer in enumerate(layers.values()):
        assert layer.sqnr_db is not None and layer.total_sqnr_db is not None
        assert layer.clipped is not None and 0 <= layer.clipped < 0.01
        assert layer.sqnr_db < 15 if at == place else layer.sqnr_db > 30, "alone"
        assert layer.total_sqnr_db < 30 if at >= place else layer.total_sqnr_db > 30, "with what came before"


def test_named_layers_stay_in_float(depthwise: tuple[Any, Array, Array]) -> None:
    module, calibration, _ = depthwise
    _, report = quantize_int8(
        module, calibration, None, Int8Params(keep_float=("first", "last", "conv1"), max_drop=None)
    )
    assert [layer.dtype for layer in report.layers if layer.kind in ("conv", "dense")] == [
        "float32",
        "float32",
        "uint8",
        "float32",
    ]
    with pytest.raises(UnknownNameError, match="conv2"):
        quantize_int8(module, calibration, None, Int8Params(keep_float=("conv9",), max_drop=None))


def test_a_norm_reads_each_operand_of_a_concat_at_its_own_scale() -> None:
    """The scale of the concat would leave the small operand one step."""
    from tvm import relax

    draw = np.random.default_rng(0)
    weights = [draw.standard_normal((4, 3, 1, 1)) * size for size in (1.0, 200.0)]
    factors = np.repeat([1.0, 1 / 200], 4).reshape(1, 8, 1, 1)
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = [builder.emit(relax.op.nn.conv2d(x, constant(weight, "float32"))) for weight in weights]
            joined = builder.emit(relax.op.concat(parts, axis=1))
            scaled = builder.emit(relax.op.multiply(joined, constant(factors, "float32")))
            output = builder.emit_output(builder.emit(relax.op.nn.relu(scaled)))
        builder.emit_func_output(output)
    samples = draw.standard_normal((8, 3, 8, 8), dtype=np.float32)
    exact = run_graph(read_graph(builder.get()), samples[:1])
    quantized, report = quantize_int8(builder.get(), samples, None, Int8Params(max_drop=None))
    assert {layer.kind: layer.dtype for layer in report.layers}["affine"] == "uint8"
    found = run_graph(read_graph(quantized), samples[:1])
    assert min(sqnr_db(exact[:, part], found[:, part]) for part in (slice(4), slice(4, 8))) > 30


class _Parts(torch.nn.Module):
    """Halves of a SiLU: one is enlarged, then they are joined for a convolution; or only multiplied."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gated, self.first, self.last = gated, torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.nn.functional.silu(self.first(x)).chunk(2, 1)
        if self.gated:
            return left * torch.sigmoid(right)
        pooled = torch.nn.functional.interpolate(torch.nn.functional.max_pool2d(right, 2), scale_factor=2.0)
        return torch.relu(self.last(torch.cat([left, pooled], 1)))


@pytest.mark.parametrize("gated", [False, True])
def test_what_layers_round_is_rounded_before_it_is_moved(gated: bool) -> None:
    shape = (1, 3, 10, 10)
    module = canonicalize(ExportedModel(_Parts(gated).eval(), one_input("x", shape)).to_relax())
    samples = np.random.default_rng(0).standard_normal((8, *shape[1:]), dtype=np.float32)
    quantized, report = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    moved = {layer.name: layer.dtype for layer in report.layers if layer.kind in ("split", "move", "concat")}
    names = {"split0", "item0", "item1"} | (set() if gated else {"max_pool2d0", "resize2d0", "concat0"})
    assert moved == dict.fromkeys(names, "float32" if gated else "uint8")
    exact = run_graph(read_graph(module), samples[:1])
    assert sqnr_db(exact, run_graph(read_graph(quantized), samples[:1])) > 25


@pytest.mark.parametrize(("samples", "corrected"), [(4, 1), (256, 2)])
def test_means_of_few_values_correct_no_bias(samples: int, corrected: int) -> None:
    """The second layer has a value of each channel for each sample."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Conv2d(8, 4, 1), torch.nn.Sigmoid()
    )
    shape = (1, 3, 10, 10)
    module = canonicalize(ExportedModel(net.eval(), one_input("x", shape)).to_relax())
    images = np.random.default_rng(0).random((samples, *shape[1:]), dtype=np.float32)
    network = group_layers(read_graph(module))
    run = Calibration(network, (images,), silent)
    scales = int8_scales(network, run, Int8Params(observer="minmax", activations="uint8"))
    trial = Quantized(network, Int8Arithmetic(), scales, frozenset())
    before = {layer.name: layer.bias for layer in network.layers if layer.kind == "conv"}
    assert correct_biases(network, run, trial) == corrected
    moved = [name for name, bias in before.items() if not np.array_equal(bias, network.layer(name).bias)]
    assert moved == ["conv0", "conv1"][:corrected]


@pytest.mark.parametrize(("samples", "tried"), [(15, False), (16, True)])
def test_a_few_samples_correct_no_bias(samples: int, tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (1, 3, 10, 10)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1))
    module = canonicalize(ExportedModel(net.eval(), one_input("x", shape)).to_relax())
    images = np.random.default_rng(0).random((samples, *shape[1:]), dtype=np.float32)
    correct, calls = quantizer._correct_biases, list[Any]()
    monkeypatch.setattr(quantizer, "_correct_biases", lambda trial: calls.append(trial) or correct(trial))
    quantize_int8(module, images, None, Int8Params(max_drop=None))
    assert bool(calls) == tried
