"""Test AverageFirst: what is averaged before a 1x1 convolution, with equal outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize


class _Read(nn.Module):
    """A convolution that an average and something else read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(8, 12, 1), nn.AvgPool2d(2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.conv(x)
        return y, self.pool(y)


def _norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


_CASES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "transition": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1, bias=False), nn.AvgPool2d(2)), True),
    "bias": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1), nn.AvgPool2d(2)), True),
    "norm": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1), _norm(12), nn.AvgPool2d((3, 2), (2, 1))), True),
    "groups": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1, groups=2), nn.AvgPool2d(3, 2)), True),
    "3x3": (lambda: nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.AvgPool2d(2)), False),
    "stride": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1, stride=2), nn.AvgPool2d(2)), False),
    "padded": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1), nn.AvgPool2d(3, 2, 1)), False),
    "over the edge": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1), nn.AvgPool2d(2, ceil_mode=True)), False),
    "activation": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1), nn.ReLU(), nn.AvgPool2d(2)), False),
    "maximum": (lambda: nn.Sequential(nn.Conv2d(8, 12, 1), nn.MaxPool2d(2)), False),
    "read": (_Read, False),
}


@pytest.mark.parametrize("name", _CASES)
def test_an_average_moves_before_a_convolution(name: str) -> None:
    torch.manual_seed(0)
    make, moves = _CASES[name]
    model = ExportedModel(make().eval(), one_input("input", (2, 8, 9, 7)))
    module = canonicalize(model.to_relax())
    graph = read_graph(module)
    order = [step.op for step in graph.steps if "conv2d" in step.op or "pool" in step.op]
    assert len(order) == 2 and ("pool" in order[0]) == moves
    x = np.random.default_rng(0).standard_normal((2, 8, 9, 7), dtype=np.float32)
    for found, expected in zip(run_all(graph, (x,)), model.run(x), strict=True):
        assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
