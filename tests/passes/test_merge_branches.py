"""Test MergeBranches: sums of convolutions of one image become one convolution, with equal outputs."""

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

_CHANNELS = 8


def _conv(kernel: int | tuple[int, int], padding: int | tuple[int, int], **options: int) -> nn.Module:
    """Return a convolution of 8 channels and its batch norm."""
    norm = nn.BatchNorm2d(_CHANNELS)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    conv = nn.Conv2d(_CHANNELS, _CHANNELS, kernel, padding=padding, bias=False, **options)
    return nn.Sequential(conv, norm) if kernel else norm


class _Sum(nn.Module):
    """The sum of branches; a `read` branch is also returned by itself, so that it stays."""

    def __init__(self, branches: list[nn.Module], read: bool = False) -> None:
        super().__init__()
        self.branches, self.read = nn.ModuleList(branches), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [branch(x) for branch in self.branches]
        total: torch.Tensor = torch.relu(sum(found))  # type: ignore[arg-type]
        return torch.cat([total, found[0]], 1) if self.read else total


def _norm() -> nn.Module:
    return _conv(1, 0)[1]  # type: ignore[index]


_CASES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "repvgg": (lambda: _Sum([_conv(3, 1), _conv(1, 0), _norm()]), 1),
    "stride": (lambda: _Sum([_conv(1, 0, stride=2), _conv(3, 1, stride=2)]), 1),
    "groups": (lambda: _Sum([_conv(3, 1, groups=4), _norm(), _conv(1, 0, groups=4)]), 1),
    "depthwise": (lambda: _Sum([_conv(3, 1, groups=8), _norm(), *(_conv(5, 2, groups=8) for _ in range(3))]), 1),
    "asymmetric": (lambda: _Sum([_conv((1, 3), (0, 1)), _conv(3, 1), _conv((3, 1), (1, 0))]), 1),
    "unpadded": (lambda: _Sum([_conv(3, 0), _conv(3, 0)]), 1),
    "crossed": (lambda: _Sum([_conv((1, 3), (0, 1)), _conv((3, 1), (1, 0))]), 2),  # neither kernel holds the other
    "grouped differently": (lambda: _Sum([_conv(3, 1), _conv(3, 1, groups=2)]), 2),
    "read": (lambda: _Sum([_conv(1, 0), _conv(3, 1)], read=True), 2),
    "dilated": (lambda: _Sum([_conv(3, 2, dilation=2), _conv(1, 0)]), 2),
    "residual": (lambda: _Sum([nn.Identity(), nn.Sequential(_conv(3, 1), _conv(3, 1))]), 2),
    "of different images": (lambda: _Sum([_conv(1, 0), nn.Sequential(nn.ReLU(), _conv(3, 1))]), 2),
}


@pytest.mark.parametrize("name", _CASES)
def test_branches_of_one_image_become_one_convolution(name: str) -> None:
    torch.manual_seed(0)
    make, convolutions = _CASES[name]
    model = ExportedModel(make().eval(), one_input("input", (2, _CHANNELS, 7, 6)))
    module = canonicalize(model.to_relax())
    operators = [step.op for step in read_graph(module).steps]
    assert operators.count("relax.nn.conv2d") == convolutions
    if convolutions == 1:
        assert operators == ["relax.nn.conv2d", "relax.add", "relax.nn.relu"], "biases are one"
    x = np.random.default_rng(0).standard_normal((2, _CHANNELS, 7, 6), dtype=np.float32)
    expected = model.run(x)[0]
    assert np.abs(run_all(read_graph(module), [x])[0] - expected).max() < 2e-6 * np.abs(expected).max() + 1e-5
