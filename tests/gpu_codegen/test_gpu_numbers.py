"""Test measurements that only GPU libraries have: opening with and without cached programs, copies to and from the
GPU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.gpu_codegen.test_networks import gpu_backend, write_on_gpu
from tests.runtime.test_network import Branches
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.local import LocalAgentTransport
from tvmflow.devices.network_forms import LibraryForm
from tvmflow.devices.session import SessionLimits
from tvmflow.evaluation.latency import LatencyRules
from tvmflow.evaluation.on_device import DeviceRules, measure_on_device
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.progress import silent


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_gpu_has_numbers_of_its_own(api: str, tmp_path: Path) -> None:
    path = tmp_path / "network.so"
    write_on_gpu(
        canonicalize(ExportedModel(Branches(0).eval(), (TensorSpec("x", (1, 3, 16, 16)),)).to_relax()), api, path
    )
    form = LibraryForm(path, lambda session, name: session.network(name, tmp_path, []))
    samples = np.random.default_rng(0).standard_normal((2, 3, 16, 16), dtype=np.float32)
    rules = DeviceRules(LatencyRules(1, 6, 1.0, 1.0, 1.0), 2, 1, on_this_host=False)
    device = DeviceEntry(transport="local-agent", key="test")
    with LocalAgentTransport().open(device, gpu_backend(api), SessionLimits(120.0, 120.0)) as session:
        numbers = measure_on_device(session, form, form, (samples,), 1, rules, silent)
    gpu = numbers.measured.gpu
    assert gpu is not None and len(numbers.measured.cold_start_ms) == 2
    assert 0 < gpu.copy_out_ms < 50 and 0 < gpu.copy_in_ms < 50, "one kilobyte"
    assert 0 < gpu.open_ms and 0 < gpu.compile_ms
    if api == "opencl":  # PoCL compiles for a second; lavapipe does so when a pipeline first runs
        assert gpu.open_ms < gpu.compile_ms
