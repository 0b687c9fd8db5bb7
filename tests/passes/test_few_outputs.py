"""Compare convolutions to few channels, from packed channels and from plain images, with PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.passes.test_pool_resize_pad import operators_of


def _network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a convolution to one or two channels behind one that packs channels, with any kernel, stride and padding,
    and its input.
    """
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    kernel, stride = [int(draw.integers(1, 6)) for _ in "hw"], [int(draw.integers(1, 3)) for _ in "hw"]
    padding = [int(draw.integers(0, extent)) for extent in kernel]
    channels = int(draw.choice([16, 20, 32]))
    last = nn.Conv2d(channels, 1 + seed % 2, kernel, stride, padding, dilation=1 + seed % 3 // 2)
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), last, nn.Sigmoid()), (1 + seed // 4, 3, 15, 17)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(8))
def test_lanes_are_added(seed: int) -> None:
    found = operators_of(*_network(seed))
    assert "sum" in found


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", [(1, 1, 1, 700), (2, 1, 3, 333), (1, 3, 4, 128)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [(0, 0), (5, 3)])
def test_filters_of_signals_are_spread_over_lanes(shape: tuple[int, ...], stride: int, padding: Any) -> None:
    torch.manual_seed(stride)
    filtered = nn.Sequential(nn.ZeroPad2d((*padding, 0, 0)), nn.Conv2d(shape[1], 1, (1, 64), (1, stride)))
    found = operators_of(filtered, shape)
    assert found.count("nn.conv2d") == 1 and "reshape" in found
