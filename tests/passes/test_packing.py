"""Compare rows, (N, C) and (B, N, C), as images of one row of pixels with PyTorch in float64: random networks of dense
layers.
"""

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


class Rows(torch.nn.Module):
    """Dense layers, norms, activations and residuals over rows, as in transformers and mixers; some on (B, N, C), some
    on (B * N, C).
    """

    def __init__(self, seed: int, rows: int, channels: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = np.random.default_rng(seed)
        wide = int(draw.integers(5, 70))
        self.up, self.down = (
            torch.nn.Linear(channels, wide),
            torch.nn.Linear(wide, channels, bias=bool(draw.integers(2))),
        )
        self.norm, self.head = torch.nn.LayerNorm(channels), torch.nn.Linear(channels, 7)
        self.position = torch.nn.Parameter(torch.randn(1, rows, wide))
        self.activation = [torch.nn.GELU(), torch.nn.ReLU(), torch.nn.SiLU(), torch.nn.Tanh()][seed % 4]
        self.is_flat, self.scaled, self.has_four_axes = (
            bool(draw.integers(2)),
            bool(draw.integers(2)),
            bool(draw.integers(2)),
        )

    def forward(self, x: Any) -> Any:
        batch, rows, channels = x.shape
        y = self.up(x.reshape(-1, channels) if self.is_flat else x).reshape(batch, rows, -1)
        y = y + self.position
        y = self.activation(y.unflatten(1, (1, rows))).flatten(1, 2) if self.has_four_axes else self.activation(y)
        y = self.down(y * 0.5 if self.scaled else y)
        z = self.norm(x + y)
        return self.head(z).sum(1), y, z.transpose(1, 2)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(8))
def test_rows_have_pytorchs_outputs(seed: int) -> None:
    draw = np.random.default_rng(100 + seed)
    batch, rows = int(draw.integers(1, 4)), int(draw.choice([1, 2, 5, 7, 13, 17, 50, 197]))
    channels = int(draw.choice([3, 16, 24, 30, 48]))
    network, shape = Rows(seed, rows, channels).eval(), (batch, rows, channels)
    module = canonicalize(ExportedModel(network, (TensorSpec("x", shape),)).to_relax())
    packed, _ = host_backend().pack(module, None)
    x = draw.standard_normal(shape, dtype=np.float32)
    with torch.no_grad():
        expected = network.double()(torch.from_numpy(x).double())
    for ours, theirs in zip(LocalRunner(packed, host_backend()).run(x), expected, strict=True):
        assert ours.shape == tuple(theirs.shape)
        assert np.abs(ours - theirs.numpy()).max() < 1e-5 * np.ptp(theirs.numpy())
