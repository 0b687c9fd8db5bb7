"""Test that dense blocks join their values in place, and compare them with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.differential.kernels import BOUND, HOST, error_of, imported
from tvmflow.codegen.compile import LocalRunner
from tvmflow.codegen.lower import lower
from tvmflow.ir.tir.workloads import count_calls
from tvmflow.passes.layout.pack_channels import PackChannels


class Dense(nn.Module):
    """A dense block. growth: channels of each layer; order: where a new value goes: last, first, or in between."""

    def __init__(self, growth: list[int], order: str) -> None:
        super().__init__()
        self.order = order
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        sums = np.cumsum([32, *growth])
        self.norms = nn.ModuleList(nn.BatchNorm2d(int(size)) for size in sums)
        self.layers = nn.ModuleList(
            nn.Conv2d(int(size), more, 3, padding=1) for size, more in zip(sums, growth, strict=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [self.stem(x)]
        for norm, layer in zip(self.norms, self.layers, strict=False):
            new = layer(torch.relu(norm(torch.cat(values, 1))))
            at = {"last": len(values), "first": 0, "between": len(values) // 2}[self.order]
            values.insert(at, new)
        return torch.relu(self.norms[-1](torch.cat(values, 1))).mean((2, 3))


@pytest.mark.parametrize(
    ("growth", "order", "batch", "copies"),
    [
        ([16, 32, 16, 16], "last", 1, 1),
        ([16, 16, 48], "first", 1, 1),
        ([16, 16, 16, 16], "between", 1, 4),  # no concat has the parts of the one before side by side
        ([16, 16, 16], "last", 2, 3),  # the parts of two images are not contiguous
        ([12, 12, 12], "last", 1, 0),  # channels that do not divide by the block are moved
    ],
    ids=["last", "first", "between", "batch", "odd"],
)
def test_a_dense_block_equals_pytorch(growth: list[int], order: str, batch: int, copies: int) -> None:
    torch.manual_seed(len(growth))
    shape = (batch, 3, 7, 9)
    network = Dense(growth, order)
    for norm in network.norms:
        assert isinstance(norm, nn.BatchNorm2d)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
    module, model = imported(network, shape)
    packed = PackChannels(16)(module)
    calls = count_calls(lower(packed, HOST))
    assert sum(count for name, count in calls.items() if "concatenate" in name) == copies, calls
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    found: Any = LocalRunner(packed, HOST).run(x)[0]
    assert error_of(found, model.run(x)[0]) < BOUND
