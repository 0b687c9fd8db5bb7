"""Compare random networks around joined convolutions with PyTorch in float64, and check the operators that remain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.passes.test_pool_resize_pad import operators_of
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize


class _Mixed(nn.Module):
    """Convolutions of several kernel sizes, joined, normalized and activated, as in MixNet; what reads them differs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        self.seed = seed
        sizes = [int(size) for size in draw.integers(3, 24, 3)]
        total = sum(sizes)
        self.parts = nn.ModuleList(
            nn.Conv2d(4, size, 2 * at + 1, padding=at, bias=bool(seed % 2)) for at, size in enumerate(sizes)
        )
        self.norm = nn.BatchNorm2d(total)
        with torch.no_grad():
            for values in (self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var):
                values.copy_(torch.from_numpy(draw.uniform(0.5, 2, total)))
        self.scale = nn.Parameter(torch.from_numpy(draw.uniform(0.5, 2, (total, 1, 1)).astype(np.float32)))
        self.gate, self.last = nn.Conv2d(total, total, 1), nn.Conv2d(total, 5, 1)

    def forward(self, x: torch.Tensor) -> Any:
        joined = torch.cat([part(x) for part in self.parts], 1)
        if self.seed % 5 == 1:  # read by something else, too
            return self.last(F.silu(self.norm(joined))), joined.mean((2, 3))
        y = F.silu(self.norm(joined))
        if self.seed % 5 == 2:
            y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        if self.seed % 5 == 3:
            y = torch.where(y > 0.1, y * self.scale, joined - 1) + x[:, :1]
        if self.seed % 5 == 4:
            return y
        return self.last(y * 2 + self.scale)


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(10))
def test_joined_convolutions_equal_torch(seed: int) -> None:
    operators_of(_Mixed(seed).eval(), (1 + seed % 2, 4, 7, 9), "float32")


def test_a_norm_behind_joined_convolutions_is_part_of_them() -> None:
    model = ExportedModel(_Mixed(0).eval(), (TensorSpec("x", (1, 4, 7, 9)),))
    steps = [step.op for step in read_graph(canonicalize(model.to_relax())).steps]
    joined = steps.index("relax.concat")
    counts = [steps[:joined].count(f"relax.{name}") for name in ("nn.conv2d", "add", "multiply", "sigmoid")]
    assert counts == [3, 6, 6, 3], steps  # a bias, a SiLU and what the network does itself of each, no scale of a norm
    assert "relax.nn.batch_norm" not in steps
