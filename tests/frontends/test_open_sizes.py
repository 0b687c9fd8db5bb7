"""Test .pt2 files that leave sizes open: they are imported for the sizes in params.yaml."""

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


class ShapesInside(nn.Module):  # type: ignore[misc]
    """Steps that need the sizes of their input: norms by instance, grids, recurrent layers, indices of a triangle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.InstanceNorm2d(2, affine=True)
        self.rows = nn.LSTM(6, 3, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turn = torch.tensor([[[0.9, 0.1, 0.0], [0.0, 1.0, 0.2]]]).expand(x.shape[0], 2, 3)
        moved = nn.functional.grid_sample(
            self.norm(x), nn.functional.affine_grid(turn, x.shape, align_corners=False), align_corners=False
        )
        rows, columns = torch.tril_indices(5, 6, -1)
        return moved, self.rows(x[:, 0])[0], x[:, :, rows, columns]


def test_a_program_with_open_sizes_equals_pytorch(tmp_path: Path) -> None:
    network, generator = ShapesInside().eval(), torch.Generator().manual_seed(1)
    example = torch.zeros(2, 2, 5, 6)
    program = torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "model.pt2")
    x = torch.randn((3, 2, 5, 6), generator=generator)
    spec = TensorSpec("x", tuple(x.shape))
    source: Any = load_source(tmp_path, SourceDescription("torch", None, "model.pt2", (spec,)))
    found = LocalRunner.of_plain(canonicalize(source.to_relax()), host_backend()).run(x.numpy())
    with torch.no_grad():
        expected = [one.numpy() for one in network(x)]
    assert [one.shape for one in found] == [one.shape for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5
