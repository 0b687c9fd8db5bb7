"""Grouped convolutions of any width, packed by merging groups, beside PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tvmflow.backends.cpu import host_backend
from tvmflow.building.library import LocalRunner
from tvmflow.frontends.exported import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.canonicalize import canonicalize
from tvmflow.passes.packed_weights import merged_groups


class Grouped(torch.nn.Module):
    """A dense convolution, a grouped one, an activation whose zero is none, and a dense one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        groups, width = int(draw.choice([2, 3, 5, 13, 32])), int(draw.choice([1, 2, 4, 8, 16, 24]))
        wider = width * int(draw.choice([1, 1, 2]))
        self.first = torch.nn.Conv2d(3, groups * width, 3, padding=1)
        self.middle = torch.nn.Conv2d(groups * width, groups * wider, 3, int(draw.choice([1, 2])), 1, groups=groups)
        self.last = torch.nn.Conv2d(groups * wider, 5, 1)

    def forward(self, x: Any) -> Any:
        return self.last(torch.sigmoid(self.middle(self.first(x).relu())))


@pytest.mark.parametrize("seed", range(10))
def test_groups_have_pytorchs_outputs(seed: int) -> None:
    network, shape = Grouped(seed).eval(), (1, 3, 9, 11)
    module = canonicalize(ExportedModel(network, (TensorSpec("x", shape),)).to_relax())
    packed, _ = host_backend().pack(module, None)
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    with torch.no_grad():
        expected = network.double()(torch.from_numpy(x).double()).numpy()
    (found,) = LocalRunner(packed, host_backend()).run(x)
    assert np.abs(found - expected).max() < 2e-5 * np.ptp(expected)


@pytest.mark.parametrize(
    ("groups", "inputs", "outputs", "left"),
    [
        (13, 8, 8, 7),
        (32, 4, 4, 8),
        (4, 16, 16, 4),
        (6, 24, 24, 3),
        (32, 1, 2, None),
        (5, 24, 24, None),
        (7, 3, 3, None),
    ],
)
def test_groups_are_merged_where_they_fill_blocks(groups: int, inputs: int, outputs: int, left: int | None) -> None:
    weight = np.random.default_rng(0).standard_normal((groups * outputs, inputs, 1, 1)).astype(np.float32)
    merged = merged_groups(weight, groups, 16)
    assert (merged and merged[1]) == left
    if merged is not None:
        assert merged[0].sum() == pytest.approx(weight.sum(), rel=1e-4) and (merged[0] != 0).sum() == weight.size
