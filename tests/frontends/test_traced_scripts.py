"""Test TorchScript files as torch.jit.trace writes them: sizes as tensors, and operators without defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.passes.pipeline import canonicalize

pytestmark = pytest.mark.heavy


class Traced(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.up = nn.Conv2d(4, 6, 3, padding=1), nn.ConvTranspose2d(6, 4, 2, 2)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, channels, height, width = image.shape
        pairs = image.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        made = self.up(self.conv(pairs.reshape(batch, channels, height, width)))
        larger = nn.functional.interpolate(image * scale, size=(height * 2 - 1, width + 3), mode="nearest")
        smooth = nn.functional.interpolate(image, scale_factor=1.7, mode="bilinear")
        return made, larger, smooth, *torch.var_mean(image, 1)


def _load(folder: Path, script: Any, *inputs: tuple[str, tuple[int, ...]]) -> Any:
    script.save(str(folder / "model.pt"))
    specs = tuple(TensorSpec(name, shape) for name, shape in inputs)
    return load_source(folder, SourceDescription("torch", None, "model.pt", specs))


def test_a_traced_network_equals_pytorch(tmp_path: Path) -> None:
    network, generator = Traced().eval(), torch.Generator().manual_seed(1)
    image, scale = torch.randn((2, 4, 5, 6), generator=generator), torch.randn((1, 4, 1, 1), generator=generator)
    script = torch.jit.trace(network, (image, scale))
    source = _load(tmp_path, script, ("scale", (1, 4, 1, 1)), ("image", (2, 4, 5, 6)))  # by name, not by place
    assert source.states == ()
    found = LocalRunner.of_plain(canonicalize(source.to_relax()), host_backend()).run(scale.numpy(), image.numpy())
    with torch.no_grad():
        expected = [one.numpy() for one in network(image, scale)]
    assert [one.shape for one in found] == [one.shape for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
