"""Provide a network with depthwise convolutions, and samples for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import one_input
from tvmflow.passes.pipeline import canonicalize

Array = np.ndarray[Any, Any]


class Depthwise(torch.nn.Module):
    """conv, depthwise, conv with ReLU6, with channels of very different scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.c, self.d = torch.nn.Conv2d(16, 8, 1), torch.nn.Linear(8, 5)
        with torch.no_grad():
            spread = torch.exp(torch.linspace(-3, 3, 16)).reshape(-1, 1, 1, 1)
            self.a.weight.mul_(spread)
            self.c.weight.div_(spread.reshape(1, -1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.relu(self.b(torch.nn.functional.relu(self.a(x))))
        return self.d(torch.nn.functional.relu6(self.c(x)).mean((2, 3)))


@pytest.fixture(scope="module")
def depthwise() -> tuple[Any, Array, Array]:
    """Return the module, calibration and other samples (N, 3, 8, 8)."""
    module = canonicalize(ExportedModel(Depthwise().eval(), one_input("input", (1, 3, 8, 8))).to_relax())
    samples = np.random.default_rng(0).standard_normal((48, 3, 8, 8), dtype=np.float32)
    return module, samples[:32], samples[32:]
