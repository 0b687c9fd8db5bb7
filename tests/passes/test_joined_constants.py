"""Test concatenations of values and constants, such as coordinates appended to channels: no pass may lose the
constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.passes.test_pool_resize_pad import operators_of


class _Joins(nn.Module):
    """A convolution whose outputs are joined with constants and with another's, read by what the seed says."""

    def __init__(self, seed: int, axes: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        kind: Any = nn.Conv2d if axes == 2 else nn.Conv1d
        fills_blocks = seed % 2 == 0
        width = 16 * int(draw.integers(1, 3)) if fills_blocks else int(draw.integers(5, 30))
        extra = 16 if fills_blocks else int(draw.integers(1, 9))
        self.order = draw.permutation(3).tolist()
        self.reader = seed % 4
        self.shape = (9,) * axes
        self.register_buffer("more", torch.randn(1, extra, *self.shape))
        self.one, self.two = kind(3, width, 3, padding=1), kind(3, width, 1)
        self.groups = 2 if (2 * width + extra) % 2 == 0 else 1
        self.last = kind(2 * width + extra, 11, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.one(x), self.two(x), self.more]
        y = torch.cat([parts[at] for at in self.order], 1)
        if self.reader == 0:
            y = torch.relu(y * 0.5)
        if self.reader == 1:  # a shuffle
            n, c = y.shape[:2]
            y = y.view(n, self.groups, c // self.groups, *self.shape).transpose(1, 2).reshape(n, c, *self.shape)
        if self.reader == 2:
            y = torch.cat([y[:, 3:], y[:, :3]], 1)
        y = self.last(y)
        ones = torch.ones(1, 11, *self.shape[:-1], 2)
        return torch.cat([ones, y, ones * 2], -1).mean(1) if self.reader == 3 else y


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_constants_among_joined_values_are_kept(seed: int, axes: int) -> None:
    operators_of(_Joins(seed, axes), (1, 3, *(9,) * axes), "float32")
