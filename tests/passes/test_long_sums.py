"""Test sums of many numbers: rounding does not grow with their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize


class _Mean(torch.nn.Module):
    def __init__(self, channels: int, axes: tuple[int, ...], layer: bool) -> None:
        super().__init__()
        torch.manual_seed(channels)
        self.axes = axes
        self.layer = torch.nn.Conv2d(channels, channels, 1) if layer else torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        return (self.layer(x) * 0.01 + 1).mean(self.axes)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 24, 112, 112), (2, 3)), ((2, 16, 97, 101), (2, 3)), ((1, 5000, 24), (1,)), ((4, 64, 100), (0, 1))],
    ids=["packed image", "partial rows", "tokens", "two axes"],
)
def test_the_mean_of_many_numbers_is_rounded_as_that_of_few(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    network = _Mean(shape[1], axes, len(shape) == 4).eval()
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    exported = ExportedModel(network, (TensorSpec("x", shape),))
    backend = host_backend()
    (ours,) = LocalRunner(backend.pack(canonicalize(exported.to_relax()), None)[0], backend).run(x)
    with torch.no_grad():
        exact = network.double()(torch.from_numpy(x).double()).numpy()
    assert np.abs(ours / exact - 1).max() < 6e-7


def test_a_norm_of_images_of_any_width_keeps_small_differences() -> None:
    """No vector fits into a row of 101 numbers: each sum of 6464 was one by one, for errors of 1e-4 to 2e-3."""
    shape = (4, 64, 101)
    network = torch.nn.LayerNorm(shape[1:]).eval()
    x = np.stack([100 + 0.1 * np.random.default_rng(seed).standard_normal(shape[1:]) for seed in range(4)])
    exported = ExportedModel(network, (TensorSpec("x", shape),))
    backend = host_backend()
    (ours,) = LocalRunner(backend.pack(canonicalize(exported.to_relax()), None)[0], backend).run(x.astype(np.float32))
    with torch.no_grad():
        exact = network.double()(torch.from_numpy(x.astype(np.float32)).double()).numpy()
    assert np.abs(ours - exact).max() < 4e-4
