"""Test Winograd convolutions on PoCL and lavapipe, with whole and partial tiles, and fused epilogues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.gpu_codegen.drivers import run_on
from tests.gpu_codegen.test_networks import gpu_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.pipeline import canonicalize
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers
from tvmflow.tuning.winograd_choice import find_alternatives

SIZES = ((12, 16), (13, 7))


class Residual(nn.Module):  # type: ignore[misc]
    """A convolution with a sum behind it, and one with a padding of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=(0, 1))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.two(torch.relu(self.one(x)) + x))


def _model(size: tuple[int, int]) -> ExportedModel:
    return ExportedModel(Residual().eval(), (TensorSpec("x", (1, 8, *size)),))


@pytest.mark.few(1)
@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_outputs_are_those_of_the_source(api: str, tmp_path: Path) -> None:
    backend, drivers = gpu_backend(api), software_drivers()
    driver = drivers.pocl if api == "opencl" else drivers.lavapipe
    for size in SIZES:
        model = _model(size)
        x = np.random.default_rng(0).standard_normal((1, 8, *size), dtype=np.float32)
        packed, _ = backend.pack(canonicalize(model.to_relax()), None)
        chosen = dict(zip(list_convolution_keys(packed), (4, 2), strict=True))
        scheduled = build_scheduled(packed, backend, {}, winograd=chosen)
        assert [one.template for one in scheduled.kernels].count("gpu_winograd") == 2
        network = Network("any@gpu:any", model.inputs, ("y",), 1)
        write_network(tmp_path / f"{size}.so", scheduled, network, Command(("g++",)))
        (wanted,) = model.run(x)
        (found,) = run_on(driver, tmp_path / f"{size}.so", (x,), tmp_path, 1)
        assert np.abs(found - wanted).max() < 5e-6 * np.ptp(wanted)


def test_the_tuner_has_both_tiles_to_choose_from() -> None:
    backend = gpu_backend("vulkan")
    packed, _ = backend.pack(canonicalize(_model(SIZES[0]).to_relax()), None)
    found = find_alternatives(packed, backend, extract_workloads(lower(packed, backend)), {"float32": 1e-4})
    assert sorted((one.key, one.m) for one in found) == sorted(
        (key, m) for key in list_convolution_keys(packed) for m in (2, 4)
    )
    for one in found:
        template, knobs = backend.template_for(one.added[0].function) or (None, [])
        assert template is not None and template.name == "gpu_winograd" and len(knobs) > 4
