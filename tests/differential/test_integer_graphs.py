"""Compare compiled integer graphs with the numpy reference bit for bit, packed and unpacked, and floats with
PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.config.stage_params import Int8Params, VtaInt8Params
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_convolution import convolve_transposed, exact_matmul
from tvmflow.ir.relax.numpy_interpreter import run_graph
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.mixed_precision import MixedPrecision, count_low_steps, to_mixed_precision
from tvmflow.quantization.post_training import quantize_int8, quantize_vta
from tvmflow.targets.cpu_features import features_of

Array = np.ndarray[Any, Any]


class Net(torch.nn.Module):
    """Every kind of layer that can be computed in integers, in one network."""

    def __init__(self, channels: int, stride: int, groups: int, signed: bool, average: str, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        conv = torch.nn.Conv2d
        self.first = conv(3, channels, 3, stride, 1)
        self.second = conv(channels, channels, 3, 1, 1, groups=groups or channels)
        self.third, self.norm = conv(channels, 16, 1), torch.nn.BatchNorm2d(2 * 16)
        self.last, self.signed = torch.nn.Linear(32, 7), signed
        self.average = {
            "valid": torch.nn.AvgPool2d(2),
            "padded": torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False),
            "counted": torch.nn.AvgPool2d(3, 2, 1),
            "none": torch.nn.Identity(),
        }[average]
        self.pool = torch.nn.MaxPool2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) if self.signed else torch.relu(self.first(x))
        y = torch.clamp(self.second(x), -0.5, 1.5)
        left, right = torch.nn.functional.silu(self.third(self.pool(x + y))).chunk(2, 1)
        right = torch.nn.functional.max_pool2d(torch.nn.functional.interpolate(right, scale_factor=2.0), 2)
        z = torch.cat([left, right], 1)
        z = torch.relu(self.norm(torch.cat([z, torch.relu(z)], 1)))
        return self.last(self.average(z).mean((2, 3)))


CHOICES = st.fixed_dictionaries(
    {
        "channels": st.sampled_from([8, 16, 20, 32]),
        "stride": st.sampled_from([1, 2]),
        "groups": st.sampled_from([0, 1, 2, 4]),
        "signed": st.booleans(),
        "average": st.sampled_from(["valid", "padded", "counted", "none"]),
        "seed": st.integers(0, 99),
    }
)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(choice=CHOICES, activations=st.sampled_from(["uint8", "int8", "global", "calibrated"]))
def test_the_compiled_graph_equals_the_definition(choice: dict[str, Any], activations: str) -> None:
    model = ExportedModel(Net(**choice).eval(), one_input("input", (1, 3, 13, 11)))
    module = canonicalize(model.to_relax())
    samples = np.random.default_rng(0).standard_normal((6, 3, 13, 11), dtype=np.float32)
    assert np.abs(run_graph(read_graph(module), samples[:1]) - model.run(samples[:1])[0]).max() < 1e-5
    if activations in ("uint8", "int8"):
        quantized, report = quantize_int8(module, samples, None, Int8Params(activations=activations, max_drop=None))
    else:
        quantized, report = quantize_vta(module, samples, None, VtaInt8Params(scale=activations, keep_float=()))
    integer = [layer.kind for layer in report.layers if layer.dtype != "float32"]
    assert {"conv", "add", "move"} <= set(integer)
    graph = read_graph(quantized)
    if activations in ("global", "calibrated"):  # the batch norm alone needs a multiplier: float on both sides
        bound = 1e-5
    else:
        assert {"concat", "affine", "mean"} <= set(integer)
        bound = 0.0
    for packed in (quantized, PackChannels(16)(quantized)):
        runner = LocalRunner(packed, host_backend())
        for sample in samples[:3]:
            defined = run_graph(graph, sample[None])
            assert np.abs(runner.run(sample[None])[0] - defined).max() <= bound * np.abs(defined).max()


def test_a_batch_runs_as_its_samples_do() -> None:
    model = ExportedModel(Net(16, 1, 0, True, "valid", 1).eval(), one_input("input", (1, 3, 13, 11)))
    module = canonicalize(model.to_relax())
    samples = np.random.default_rng(0).standard_normal((5, 3, 13, 11), dtype=np.float32)
    quantized, _ = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    graph = read_graph(quantized)
    assert np.array_equal(run_graph(graph, samples), np.concatenate([run_graph(graph, s[None]) for s in samples]))


@pytest.mark.parametrize(
    ("dtype", "accumulate", "bound"),
    [("float16", "float16", 5e-3), ("float16", "float32", 2e-3), ("bfloat16", "float32", 2e-2)],
)
def test_mixed_precision_computes_low_what_the_list_says(dtype: str, accumulate: str, bound: float) -> None:
    model = ExportedModel(Net(16, 1, 1, False, "none", 1).eval(), one_input("input", (1, 3, 13, 11)))
    module = canonicalize(model.to_relax())
    x = np.random.default_rng(0).standard_normal((1, 3, 13, 11), dtype=np.float32)
    high = ("softmax", "mean", "sum", "max_pool2d")
    low = to_mixed_precision(module, MixedPrecision(dtype, accumulate, ("conv2d",), high))
    graph = read_graph(low)
    matmul = next(step for step in graph.steps if step.op == "relax.matmul")
    assert matmul.dtype == "float32" and count_low_steps(low, dtype)[0] >= 3
    convolutions = [step for step in graph.steps if step.op == "relax.nn.conv2d"]
    assert len(convolutions) == 3 and {step.dtype for step in convolutions} == {accumulate}
    reference = model.run(x)[0]
    for form in (low, PackChannels(16)(low)):
        assert np.abs(LocalRunner(form, host_backend()).run(x)[0] - reference).max() <= bound * np.abs(reference).max()


ACTIVATIONS = {
    "relu": torch.nn.ReLU(),
    "silu": torch.nn.SiLU(),
    "hardswish": torch.nn.Hardswish(),
    "tanh": torch.nn.Tanh(),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU(approximate="tanh"),
    "leaky": torch.nn.LeakyReLU(0.1),
}


class Transposed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1)


@pytest.mark.parametrize("shape", [(16, 24), (2, 8, 24)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_of_a_sum_is_rounded_once(activation: str, shape: tuple[int, ...]) -> None:
    """Of rows, too, that are (N, L, C). Inputs and weights are numbers of bfloat16: all that differs from PyTorch is
    the rounding of what is stored, half of 2**-7.
    """
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 40)
    layer.weight.data = layer.weight.data.bfloat16().float()
    x = torch.randn(shape).bfloat16().float().numpy()
    network = torch.nn.Sequential(layer, ACTIVATIONS[activation], Transposed()).eval()
    model = ExportedModel(network, one_input("input", shape))
    module = to_mixed_precision(canonicalize(model.to_relax()), MixedPrecision("bfloat16", "float32", ("matmul",), ()))
    assert count_low_steps(module, "bfloat16")[0] > 0
    found, expected = LocalRunner(module, host_backend()).run(x)[0], model.run(x)[0]
    assert (np.abs(found - expected) <= 2.0**-8 * np.abs(expected) + 1e-6).all()
    target = host_backend().target
    if "avx512bf16" in features_of(
        target.mcpu, target.mtriple, target.mattr
    ):  # others may leave out a pair of conversions
        assert not np.array_equal(found, expected)


@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int32", "int8")])
def test_products_of_integers_are_exact(dtypes: tuple[str, str]) -> None:
    """Also of the largest numbers, whose sums float32 would round."""
    generator = np.random.default_rng(0)
    limits = [np.iinfo(np.int8 if dtype == "int8" else np.uint8) for dtype in dtypes]
    for low in (False, True):
        a, b = (
            generator.integers(limit.min if low else limit.max - 3, limit.max, shape, endpoint=True).astype(dtype)
            for dtype, limit, shape in zip(dtypes, limits, [(3, 5, 1030), (1030, 7)], strict=True)
        )
        assert np.array_equal(exact_matmul(a, b), a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("seed", range(12))
def test_transposed_convolutions_are_pytorchs(seed: int) -> None:
    draw = np.random.default_rng(seed)
    groups, kernel, stride = (
        int(draw.choice([1, 1, 3])),
        tuple(draw.integers(1, 5, 2).tolist()),
        tuple(draw.integers(1, 4, 2).tolist()),
    )
    padding = tuple(int(draw.integers(0, size)) for size in kernel)
    extra = tuple(int(draw.integers(0, size)) for size in stride)
    x = draw.integers(-128, 128, (2, 2 * groups, 5, 7)).astype(np.int8)
    weight = draw.integers(-127, 128, (2 * groups, 3, *kernel)).astype(np.int8)
    expected = torch.nn.functional.conv_transpose2d(
        torch.from_numpy(x).double(), torch.from_numpy(weight).double(), None, stride, padding, extra, groups
    ).numpy()
    for dtypes in (("int8", "int8", "int32"), ("float32", "float32", "float32")):
        found = convolve_transposed(
            x.astype(dtypes[0]), weight.astype(dtypes[1]), stride, [*padding, *padding], extra, groups
        )
        assert found.dtype == dtypes[2] and np.array_equal(found, expected)


class Upwards(torch.nn.Module):
    """A deconvolution of what an activation made, whose zero is 0 where activations are unsigned, or of signed
    values.
    """

    def __init__(self, kernel: int, signed: bool) -> None:
        super().__init__()
        torch.manual_seed(kernel)
        self.first, self.last, self.signed = torch.nn.Conv2d(3, 20, 3), torch.nn.Conv2d(12, 4, 3), signed
        self.up = torch.nn.ConvTranspose2d(20, 12, kernel, 2, padding=kernel // 2 - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(torch.relu(self.up(x if self.signed else torch.relu(x))))


@pytest.mark.few(2)
@pytest.mark.parametrize(("kernel", "signed"), [(2, False), (4, False), (5, False), (4, True)])
def test_deconvolutions_compute_in_integers(kernel: int, signed: bool) -> None:
    module = canonicalize(ExportedModel(Upwards(kernel, signed).eval(), one_input("input", (1, 3, 13, 11))).to_relax())
    samples = np.random.default_rng(0).standard_normal((6, 3, 13, 11), dtype=np.float32)
    quantized, report = quantize_int8(module, samples, None, Int8Params(activations="uint8", max_drop=None))
    kinds = {layer.kind for layer in report.layers if layer.dtype != "float32"}
    assert ("conv_transpose" in kinds) != signed
    assert report.output_sqnr_db > 25
    graph = read_graph(quantized)
    for packed in (quantized, PackChannels(16)(quantized)):
        runner = LocalRunner(packed, host_backend())
        for sample in samples[:3]:
            defined = run_graph(graph, sample[None])
            bound = 1e-5 * np.abs(defined).max() if signed else 0.0
            assert np.abs(runner.run(sample[None])[0] - defined).max() <= bound


@pytest.mark.parametrize("factor", [1.0, 0.0])
def test_a_layer_that_changes_nothing_is_quantized_too(factor: float) -> None:
    """As the norms of a network that was not trained are: all factors 1, all offsets 0."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 1)
            self.factor = torch.nn.Parameter(torch.full((1, 8, 1, 1), factor))
            self.offset = torch.nn.Parameter(torch.zeros(1, 8, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.a(x))
            return torch.cat([y, self.b(y * self.factor + self.offset)], 1).flatten(1)

    module = canonicalize(ExportedModel(Net().eval(), one_input("input", (1, 3, 8, 8))).to_relax())
    samples = np.random.default_rng(0).standard_normal((8, 3, 8, 8), dtype=np.float32)
    quantized, report = quantize_int8(module, samples, None, Int8Params(max_drop=None))
    assert "affine" in {layer.kind for layer in report.layers if layer.dtype != "float32"}
    found, exact = (run_graph(read_graph(graph), samples[:1]) for graph in (quantized, module))
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
