"""Compare random chains of elementwise operators between convolutions, on packed channels, with PyTorch in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as F
from tvm import tirx

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner, build_scheduled
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.elementwise import BROADCASTING, UNARY
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize

Values = Callable[..., Any]

# Continuous ones: where a value jumps, rounding decides.
ONE: dict[str, Values] = {
    "exp": lambda x: torch.exp(-x.abs()),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "log of what fills as zero": lambda x: torch.log((x + 9).abs() * 0.5),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x * x + 0.5),
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "square": torch.square,
    "cube": lambda x: x**3,
    "inverse": lambda x: (x.abs() + 1) ** -1,
    "any power": lambda x: (x.abs() + 0.3) ** 1.7,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "selu": F.selu,
    "elu": F.elu,
    "mish": F.mish,
    "celu": F.celu,
    "hardswish": F.hardswish,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "erf": torch.erf,
    "negative": torch.neg,
    "leaky": lambda x: F.leaky_relu(x, 0.3),
}
TWO: dict[str, Values] = {
    "quotient": lambda x, y: x / (y.abs() + 1),
    "quotient of what fills as zero": lambda x, y: x / ((y + 9).abs() * 0.5),
    "larger": torch.maximum,
    "smaller": torch.minimum,
    "choice": lambda x, y: torch.where(y > x, y * 0.5, y * 0.5 + (x - y)),
    "power": lambda x, y: (x.abs() + 0.5) ** torch.tanh(y),
    "angle": lambda x, y: torch.atan2(x, y.abs() + 0.5),
    "gate of each pixel": lambda x, y: x * torch.sigmoid(y.mean(1, keepdim=True)),
    "largest of each pixel": lambda x, y: x - y.amax(1, keepdim=True),
    "gate of each channel": lambda x, y: x * torch.sigmoid(y.mean((2, 3), keepdim=True)),
}


class Chain(nn.Module):
    """Two convolutions, operators of what they make and of each other's, and a convolution that reads all of it."""

    def __init__(self, seed: int, channels: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        self.left, self.right = nn.Conv2d(5, channels, 3), nn.Conv2d(5, channels, 3)
        self.last = nn.Conv2d(channels, 7, 1)
        names = [str(name) for name in draw.choice([*ONE, *TWO], 8)]
        self.names = names

    def forward(self, x: Any) -> Any:
        a, b = self.left(x), self.right(x)
        for name in self.names:
            a, b = b, ONE[name](a) if name in ONE else TWO[name](a, b)
        return self.last(a + b)


def test_the_names_are_those_of_operators() -> None:
    known = {str(name) for name in tvm.ir.Op.list_op_names()}
    assert known >= UNARY | BROADCASTING and not UNARY & BROADCASTING


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(24))
def test_chains_have_pytorchs_outputs(seed: int) -> None:
    channels = (16, 12, 40, 32)[seed % 4]
    network = Chain(seed, channels).eval()
    shape = (1 + seed % 2, 5, 9, 8)
    exported = ExportedModel(network, (TensorSpec("x", shape),))
    packed, _ = host_backend().pack(canonicalize(exported.to_relax()), None)
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    (ours,), (theirs,) = LocalRunner(packed, host_backend()).run(x), exported.run(x)
    with torch.no_grad():
        exact = network.double()(torch.from_numpy(x).double()).numpy()
    assert np.isfinite(ours).all(), network.names
    limit = 4 * np.abs(theirs - exact).max() + 1e-6 * np.abs(exact).max()
    assert np.abs(ours - exact).max() < limit, network.names


@pytest.mark.parametrize("name", ONE)
def test_each_stays_on_packed_channels(name: str) -> None:
    block = host_backend().cpu_features().channel_block
    network = nn.Sequential(nn.Conv2d(5, 2 * block, 3), _Of(ONE[name]), nn.Conv2d(2 * block, 7, 1)).eval()
    packed, _ = host_backend().pack(
        canonicalize(ExportedModel(network, (TensorSpec("x", (1, 5, 9, 8)),)).to_relax()), None
    )
    between = [step.op for step in read_graph(packed).steps]
    first, last = (at for at, op in enumerate(between) if op == "relax.nn.conv2d")
    assert not {"relax.permute_dims", "relax.reshape"} & set(between[first:last]), between


@pytest.mark.parametrize("name", ["choice", "gelu", "selu", "mish", "power"])
def test_operators_that_read_a_value_twice_can_follow_each_other(name: str) -> None:
    """Inlined into one expression, each doubles it: twenty of them would not end."""

    def values(x: Any) -> Any:
        for _ in range(20):
            x = torch.tanh(ONE[name](x) if name in ONE else TWO[name](x, x.flip(3))) * 1.5
        return x

    network, shape = nn.Sequential(nn.Conv2d(5, 16, 3), _Of(values)).eval(), (1, 5, 9, 8)
    exported, backend = ExportedModel(network, (TensorSpec("x", shape),)), host_backend()
    packed, _ = backend.pack(canonicalize(exported.to_relax()), None)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (ours,), (theirs,) = LocalRunner(packed, backend).run(x), exported.run(x)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


class _Of(nn.Module):
    def __init__(self, function: Values) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    "split",
    [lambda x: x.split([5, 9, 12], 1), lambda x: x.chunk(2, 2), lambda x: x.unbind(1)[:3]],
    ids=["channels", "rows", "one by one"],
)
def test_kernels_of_several_outputs_have_a_schedule(split: Values) -> None:
    network, shape = _Of(lambda x: split(torch.tanh(x.transpose(2, 3)))).eval(), (1, 26, 10, 6)
    exported, backend = ExportedModel(network, (TensorSpec("x", shape),)), host_backend()
    packed, _ = backend.pack(canonicalize(exported.to_relax()), None)
    assert "none" not in {choice.schedule for choice in build_scheduled(packed, backend, {}).kernels}
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    for ours, theirs in zip(LocalRunner(packed, backend).run(x), exported.run(x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


class Heads(nn.Module):
    """Parts of tokens moved apart, as attention does with its queries, keys and values; heads of so many channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Any) -> Any:
        parts = x[:, 1:, : 3 * 4 * self.channels].reshape(1, x.shape[1] - 1, 3, 4, self.channels).permute(2, 0, 3, 1, 4)
        return parts, parts[1].transpose(1, 2) * 2.0


@pytest.mark.parametrize(("channels", "lanes"), [(13, 13), (16, 16), (17, 16), (19, 16), (37, 16), (50, 10)])
def test_heads_of_any_number_of_channels_are_moved_by_vectors(channels: int, lanes: int) -> None:
    shape = (1, 30, 12 * channels + 3)
    model = ExportedModel(Heads(channels).eval(), (TensorSpec("x", shape),))
    backend = host_backend()
    packed, _ = backend.pack(canonicalize(model.to_relax()), None)
    x = np.random.default_rng(channels).standard_normal(shape, dtype=np.float32)
    for found, expected in zip(LocalRunner(packed, backend).run(x), model.run(x), strict=True):
        assert np.array_equal(found, expected)
    kernels = [
        f for f in build_scheduled(packed, backend, {}).module.functions.values() if isinstance(f, tirx.PrimFunc)
    ]
    widths = [set(map(int, re.findall(r"T\.vectorized\((?:T\.int64\()?(\d+)", str(f)))) for f in kernels]
    assert widths and all(lanes in found for found in widths), widths
