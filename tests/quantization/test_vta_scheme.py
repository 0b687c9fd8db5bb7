"""Test VTA's power-of-two scheme: its scales, its residual sums, and a second implementation of its specification."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.config.stage_params import VtaInt8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_vta
from tvmflow.support.errors import UnknownNameError
from tvmflow.vta.compiler.extract import Chain, extract
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.region import Sum

pytestmark = pytest.mark.heavy
Array = np.ndarray[Any, Any]


def test_vta_scales_follow_the_specification(depthwise: tuple[Any, Array, Array]) -> None:
    module, calibration, _ = depthwise
    _, report = quantize_vta(module, calibration, None, VtaInt8Params(scale="global", global_scale=8.0))
    integer = [layer for layer in report.layers if layer.dtype != "float32"]
    assert {layer.name for layer in integer} >= {"conv1", "conv2"} and all(layer.scale == 1 / 16 for layer in integer)
    assert {layer.dtype for layer in report.layers if layer.name in ("conv0", "dense0")} == {"float32"}
    _, report = quantize_vta(module, calibration, None, VtaInt8Params(scale="calibrated", keep_float=()))
    scales = [layer.scale for layer in report.layers if layer.scale is not None]
    assert len(set(scales)) > 1 and all(math.log2(scale).is_integer() for scale in scales)


def test_convolutions_are_skipped_by_their_numbers(depthwise: tuple[Any, Array, Array]) -> None:
    module, calibration, _ = depthwise

    def floats(*numbers: int) -> set[str]:
        options = VtaInt8Params(keep_float=("dense",), skip_conv_layers=numbers)
        _, report = quantize_vta(module, calibration, None, options)
        return {layer.name for layer in report.layers if layer.dtype == "float32" and layer.name.startswith("conv")}

    assert (floats(), floats(0), floats(2, 1)) == (set(), {"conv0"}, {"conv1", "conv2"})
    with pytest.raises(UnknownNameError, match="no convolution 99 to keep in float, of "):
        floats(0, 99)


@pytest.mark.parametrize("size", [0.01, 1.0, 300.0])
def test_one_scale_for_all_is_chosen_from_what_the_network_computes(size: float) -> None:
    """Whatever a network's numbers are, `auto` is within a decibel of the best power of two."""
    torch.manual_seed(3)
    layers = [torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3), torch.nn.Flatten()]
    layers[0].bias.data.mul_(size)
    layers[2].bias.data.mul_(size)
    module = canonicalize(
        ExportedModel(torch.nn.Sequential(*layers).eval(), one_input("input", (1, 4, 8, 8))).to_relax()
    )
    x = np.random.default_rng(0).standard_normal((16, 4, 8, 8), dtype=np.float32) * np.float32(size)

    def sqnr(options: VtaInt8Params) -> tuple[float, float | None]:
        _, report = quantize_vta(module, x, None, options)
        return report.output_sqnr_db, report.best_global_scale

    automatic, chosen = sqnr(VtaInt8Params(scale="global", keep_float=()))
    assert chosen is not None and automatic > 25
    for factor in (0.25, 0.5, 2.0, 4.0):
        other, best = sqnr(VtaInt8Params(scale="global", global_scale=chosen * factor, keep_float=()))
        assert best == chosen and other <= automatic + 1.0


def test_a_residual_sum_and_its_operands_have_one_scale_where_calibrated() -> None:
    """Operands of different sizes, and a sum that is larger than both: no shift before the sum, none behind it."""
    torch.manual_seed(5)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.small, self.large = (torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
            with torch.no_grad():
                self.large.weight.mul_(6.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            return torch.relu(self.small(y) + self.large(-y)).flatten(1)  # of one image they would be one layer

    module = canonicalize(ExportedModel(Net().eval(), one_input("input", (1, 4, 8, 8))).to_relax())
    x = np.random.default_rng(0).standard_normal((8, 4, 8, 8), dtype=np.float32)
    quantized, report = quantize_vta(module, x, None, VtaInt8Params(scale="calibrated", keep_float=()))
    scales = {layer.name: layer.scale for layer in report.layers}
    assert scales["conv1"] == scales["conv2"] == scales["add0"] != scales["conv0"]
    extraction = extract(read_graph(quantized), VtaConfig())
    (total,) = (
        f.operator
        for f in extraction.items
        if isinstance(f, Chain) and isinstance(f.operator, Sum) and len(f.operator.inputs) == 2
    )
    assert isinstance(total, Sum) and total.lefts == (0, 0) and (total.tail.right, total.tail.half) == (0, 0)
    assert report.output_sqnr_db > 25


@settings(max_examples=examples(8), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    bias_size=st.sampled_from([0.001, 0.3, 3.0]),
    weight_size=st.sampled_from([0.05, 0.5, 2.0]),
)
def test_vta_equals_the_specification_written_down_anew(seed: int, bias_size: float, weight_size: float) -> None:
    """Two convolutions and a residual sum, in integers as VTA's document states them, against the graph."""
    torch.manual_seed(seed)
    a, b = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 1)
    for layer in (a, b):
        with torch.no_grad():
            layer.weight.mul_(weight_size)
            layer.bias.mul_(bias_size)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = a, b

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.a(x))
            return torch.relu(self.b(y) + y).flatten(1)

    module = canonicalize(ExportedModel(Net().eval(), one_input("input", (1, 4, 5, 5))).to_relax())
    x = np.random.default_rng(seed).standard_normal((1, 4, 5, 5), dtype=np.float32) * 3
    quantized, _ = quantize_vta(module, x, None, VtaInt8Params(scale="global", global_scale=8.0, keep_float=()))
    output = run_graph(read_graph(quantized), x)

    def c_round(v: Array) -> Array:
        return np.sign(v) * np.floor(np.abs(v) + 0.5)

    def exponent(values: Array) -> int:
        return math.ceil(math.log2(float(np.abs(values).max())))

    def conv(q: Array, layer: torch.nn.Conv2d, relu: bool) -> Array:
        weight, bias = layer.weight.detach().numpy().astype(np.float64), layer.bias.detach().numpy().astype(np.float64)
        k, kb = exponent(weight), exponent(bias)
        qw = np.clip(c_round(weight * 2.0 ** (7 - k)), -127, 127)
        qb = np.clip(c_round(bias * 2.0 ** (7 - kb)), -127, 127).astype(np.int64)
        total = torch.nn.functional.conv2d(torch.from_numpy(q).double(), torch.from_numpy(qw), padding=layer.padding)
        acc, scale = total.numpy().astype(np.int64), k - 11
        shift = (kb - 7) - scale
        acc, scale = (
            (acc + (qb << shift).reshape(1, -1, 1, 1), scale)
            if shift >= 0
            else ((acc << -shift) + qb.reshape(1, -1, 1, 1), kb - 7)
        )
        n = -4 - scale
        acc = (acc + (1 << (n - 1))) >> n if n > 0 else acc << -n
        return np.clip(np.maximum(acc, 0) if relu else acc, -127, 127)

    q = np.clip(c_round(x.astype(np.float64) * 16), -127, 127).astype(np.int64)
    first = conv(q, a, relu=True)
    expected = np.clip(np.maximum(conv(first, b, relu=False) + first, 0), -127, 127)
    assert np.array_equal(output, (expected / 16).astype(np.float32).reshape(1, -1))
