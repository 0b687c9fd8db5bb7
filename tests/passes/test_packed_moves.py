"""Channel shuffles on packed channels: networks drawn from seeds, beside PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from tests.passes.test_packed_images import operators_of
from tvmflow.backends.cpu import host_backend
from tvmflow.building.library import compile_module
from tvmflow.building.lower import lower
from tvmflow.frontends.exported import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.kernels.workloads import count_calls, extract_workloads
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.templates import scheduled


def _shuffled(x: torch.Tensor, groups: int) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Shuffles(nn.Module):
    """Units whose branches are joined, shuffled and taken apart, of channels that fill no blocks; what follows the last differs."""

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


@pytest.mark.parametrize(("seed", "dtype", "batch"), [(seed, "float32", 1 + (seed == 7)) for seed in range(10)] + [(12, "bfloat16", 1)])  # fmt: skip
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
    assert sum(count for name, count in calls.items() if "conv2d" not in name) <= 2 * units + 2, calls


def test_every_schedule_of_a_shuffle_keeps_the_output() -> None:
    class Shuffle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _shuffled(x, 4)

    backend = host_backend()
    network = nn.Sequential(nn.Conv2d(24, 24, 1), Shuffle(), nn.Conv2d(24, 16, 1)).eval()
    packed, _ = backend.pack(canonicalize(ExportedModel(network, (TensorSpec("x", (1, 24, 4, 5)),)).to_relax()), 16)
    moved = [
        w
        for w in extract_workloads(lower(packed, backend))
        if (match := backend.template_for(w.function)) and match[1][0].get("moved")
    ]
    assert len(moved) == 1
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 5, 16), dtype=np.float32)
    channels = np.concatenate([x[:, 0], x[:, 1]], -1)[..., :24]
    expected = channels.reshape(1, 4, 5, 4, 6).swapaxes(3, 4).reshape(1, 4, 5, 24)
    for output in _outputs(moved[0], x):
        assert np.array_equal(np.concatenate([output[:, 0], output[:, 1]], -1)[..., :24], expected)


def _outputs(workload: Any, x: Any) -> Any:
    """Run a kernel of one input under each of its candidates."""
    backend = host_backend()
    match = backend.template_for(workload.function)
    assert match is not None
    for knobs in match[1]:
        function = scheduled(workload.function, match[0], knobs).mod["main"].with_attr("global_symbol", "main")
        output = tvm.runtime.tensor(np.zeros((1, 2, 4, 5, 16), np.float32))
        compile_module(tvm.IRModule({"main": function}), backend)["main"](tvm.runtime.tensor(x), output)
        yield output.numpy()
