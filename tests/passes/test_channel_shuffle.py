"""Compare channel shuffles on packed channels in random networks with PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tvm import relax

from tests.passes.test_pool_resize_pad import operators_of
from tvmflow.backends.cpu import CpuBackend, host_backend
from tvmflow.codegen.compile import build_scheduled, make_runner
from tvmflow.codegen.lower import lower
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import count_calls
from tvmflow.passes.layout.channel_permute import permute_channels
from tvmflow.passes.legalize.convolutions import count_packed_convolutions
from tvmflow.passes.pipeline import canonicalize
from tvmflow.targets.resolve import ResolvedTarget

HOST = host_backend()


def _shuffled(x: torch.Tensor, groups: int) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Shuffles(nn.Module):
    """Units whose branches are joined, shuffled and taken apart, of channels that fill no blocks; what follows the last
    differs.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        self.groups = int(draw.choice([2, 3, 4]))
        self.width = self.groups * int(draw.integers(5, 20))
        self.cut = int(draw.integers(1, 2 * self.width))
        self.ending = seed % 5
        self.first = nn.Conv2d(3, self.width, 3, 2, 1)
        self.second = nn.Conv2d(self.width, self.width, 1)
        self.left = nn.Conv2d(self.cut, self.width, 1)
        self.right = nn.Conv2d(2 * self.width - self.cut, self.width, 3, padding=1)
        self.each = nn.Conv2d(2 * self.width, 2 * self.width, 3, padding=1, groups=2 * self.width)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.first(x))
        y = _shuffled(torch.cat([x, self.second(x)], 1), self.groups)
        a, b = y.split([self.cut, 2 * self.width - self.cut], 1)
        z = _shuffled(torch.cat([self.left(a), torch.relu(self.right(b))], 1), self.groups)
        if self.ending == 0:
            return self.each(z), a  # one is what the network returns
        if self.ending == 1:
            return z  # so is the shuffle itself
        if self.ending == 2:
            one, two = z.chunk(2, 1)
            return one * two + torch.sigmoid(one), two.mean((2, 3))
        if self.ending == 3:
            return _shuffled(z, self.groups).flatten(1) + z.flatten(1)
        joined = torch.cat([a, b], 1)  # joined again, and read by something else too
        return _shuffled(joined, 2), joined.mean((2, 3))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("seed", "dtype", "batch"), [(seed, "float32", 1 + (seed == 7)) for seed in range(10)] + [(12, "bfloat16", 1)]
)
def test_shuffles_of_packed_channels_equal_torch(seed: int, dtype: str, batch: int) -> None:
    size = 9 + seed % 3
    operators_of(Shuffles(seed), (batch, 3, size, size + 1), dtype)


class _Units(nn.Module):
    """Units as in ShuffleNetV2: half of the channels pass, half are computed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 40, 3, 2, 1)
        self.units = nn.ModuleList(nn.Conv2d(20, 20, 1) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        for unit in self.units:
            passed, computed = y.chunk(2, 1)
            y = _shuffled(torch.cat([passed, torch.relu(unit(computed))], 1), 2)
        return y.mean((2, 3))


@pytest.mark.parametrize("units", [2, 5])
def test_a_unit_costs_a_convolution_and_two_moves(units: int) -> None:
    network = _Units(units).eval()
    operators_of(network, (1, 3, 12, 12))
    network.float()
    model = ExportedModel(network, (TensorSpec("x", (1, 3, 12, 12)),))
    packed, _ = host_backend().pack(canonicalize(model.to_relax()), 16)
    calls = count_calls(lower(packed, host_backend()))
    assert sum(count for name, count in calls.items() if "conv2d" in name) == units + 1
    assert sum(count for name, count in calls.items() if "conv2d" not in name) <= 2 * units + 3, calls


class _Choices(nn.Module):
    """Channels taken from images and joined in many ways, of numbers that fill no blocks."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        self.width, self.step, self.ending = int(draw.integers(20, 70)), int(draw.integers(1, 4)), seed % 4
        self.cuts = sorted(int(cut) for cut in draw.choice(np.arange(1, self.width), 2, replace=False))
        sizes = np.diff([0, *self.cuts, self.width])
        self.first = nn.Conv2d(3, self.width, 3, padding=1)
        self.each = nn.ModuleList(
            nn.Conv2d(int(size), int(size), 2 * at + 1, padding=at, groups=int(size)) for at, size in enumerate(sizes)
        )
        self.last = nn.Conv2d(self.width, 9, 1)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.tanh(self.first(x))
        parts = x.tensor_split(self.cuts, 1)
        y = torch.cat([one(part) for one, part in zip(self.each, parts, strict=True)], 1)
        if self.ending == 0:
            return self.last(torch.relu(y) + x)
        if self.ending == 1:
            return y, parts[1]
        if self.ending == 2:
            return self.last(y[:, :: self.step].repeat(1, self.step, 1, 1)[:, : self.width] * x), y[:, 3:].flatten(1)
        return torch.cat([parts[2], y, parts[0]], 1).mean((2, 3)), parts[1] * 2


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("seed", "dtype", "batch"), [(seed, "float32", 1 + seed % 2) for seed in range(12)] + [(12, "bfloat16", 1)]
)
def test_choices_of_packed_channels_equal_torch(seed: int, dtype: str, batch: int) -> None:
    operators_of(_Choices(seed), (batch, 3, 6 + seed % 3, 7), dtype)


@pytest.mark.parametrize("mcpu", ["host", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "float16"])
def test_any_channels_become_a_packed_image(dtype: str, lanes: int, mcpu: str) -> None:
    draw = np.random.default_rng(lanes)
    n, height, width = 2, 3, 5
    counts = [int(count) for count in draw.integers(1, 4, 3)]  # blocks of each image
    channels: list[Any] = [
        (image, int(draw.integers(counts[image] * lanes))) for image in draw.integers(0, 3, 5 * lanes - 3).tolist()
    ]
    channels[lanes : 2 * lanes] = [None] * lanes
    channels[1::7] = [None] * len(channels[1::7])
    images = [draw.integers(-9, 99, (n, count, height, width, lanes)).astype(dtype) for count in counts]
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{at}", relax.TensorType(image.shape, dtype)) for at, image in enumerate(images)]
    with builder.function("main", parameters):
        with builder.dataflow():
            out = builder.emit_output(permute_channels(builder, parameters, channels))
        builder.emit_func_output(out)
    target = HOST if mcpu == "host" else CpuBackend(ResolvedTarget("llvm", mcpu, "x86_64-linux-gnu", (), 2, "g++"))
    (found,) = make_runner(build_scheduled(builder.get(), target, {}).executable)(tuple(images))
    flat = [image.transpose(0, 1, 4, 2, 3).reshape(n, -1, height, width) for image in images]
    wanted = np.zeros((n, 5 * lanes, height, width), dtype)
    for at, source in enumerate(channels):
        if source is not None:
            wanted[:, at] = flat[source[0]][:, source[1]]
    assert np.array_equal(found.transpose(0, 1, 4, 2, 3).reshape(wanted.shape), wanted)


class _Groups(nn.Module):
    """Convolutions in groups of channels that fill no blocks, several outputs of each channel among them."""

    def __init__(self, groups: int, inputs: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(groups)
        self.first, self.last = nn.Conv2d(3, groups * inputs, 3), nn.Conv2d(groups * outputs, 8, 1)
        self.middle = nn.Conv2d(groups * inputs, groups * outputs, 3, 2, 1, groups=groups)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.middle(self.first(x))
        return self.last(torch.relu(y)), y.mean((2, 3))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "sizes", [(3, 20, 20), (48, 1, 2), (32, 3, 6), (5, 8, 16), (6, 36, 36), (24, 1, 5), (2, 50, 4), (7, 3, 3)]
)
def test_convolutions_in_any_groups_are_packed(sizes: tuple[int, int, int]) -> None:
    network = _Groups(*sizes).eval()
    operators_of(network, (2, 3, 9, 10))
    network.float()
    model = ExportedModel(network, (TensorSpec("x", (1, 3, 9, 10)),))
    packed, _ = host_backend().pack(canonicalize(model.to_relax()), 16)
    assert count_packed_convolutions(packed) == (3, 3)
