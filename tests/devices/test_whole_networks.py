"""Test the comparison of whole networks during tuning: through an agent as on a device with TVM, stored with their
unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.devices.agents import BACKEND, secret_file
from tests.faults.here import here
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.registry import open_session
from tvmflow.devices.session import SessionLimits
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.legalize.winograd import TILES
from tvmflow.passes.pipeline import canonicalize
from tvmflow.tuning.compare_networks import NetworkComparison, NetworkConfig
from tvmflow.tuning.measure.jobs import OpenSession
from tvmflow.tuning.records.log import TuningLog


@pytest.fixture(scope="module")
def packed() -> Any:
    """Return a network of one convolution that Winograd's algorithm can compute."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU())
    return PackChannels(16)(canonicalize(ExportedModel(module.eval(), (TensorSpec("x", (1, 16, 16, 16)),)).to_relax()))


@pytest.mark.parametrize("through", ["an agent", "TVM"])
def test_two_forms_of_a_network_are_compared_once(through: str, packed: Any, program: Path, tmp_path: Path) -> None:
    tuning_log = TuningLog(tmp_path / "log.jsonl", BACKEND.kernel_kind, {"test": "1"})
    [key] = list_convolution_keys(packed)
    forms = NetworkConfig({}, {}), NetworkConfig({key: TILES[0]}, {})
    with start_agent([str(program)], str(tmp_path / "store")) as agent:
        entry = {
            "transport": "agent",
            "key": "board",
            "port": agent.port,
            "secret_file": str(secret_file(tmp_path, agent.secret)),
        }
        device = DeviceEntry.model_validate(entry)
        opened: OpenSession = (
            here if through == "TVM" else lambda: open_session(device, BACKEND, SessionLimits(60.0, 5.0))
        )
        with NetworkComparison(packed, BACKEND, tuning_log, tmp_path, opened) as comparison:
            found = comparison.speedup(*forms)
            assert found > 0 and comparison.speedup(*forms) == found
            times = comparison.kernels(*forms)
            workloads = [{w.key for w in extract_workloads(comparison.lowered(form))} for form in forms]
    assert [set(kernels) for kernels in times] == workloads, "each form has times of its own kernels"
    assert workloads[0] != workloads[1] and all(0 < one < 1 for kernels in times for one in kernels.values())
    records = tuning_log.known()
    assert len(records) == 3 and all(record.template == "network" and record.canary_s > 0 for record in records)
    assert {record.unit.split("-")[0] for record in records} == {"here" if through == "TVM" else "host"}
    with NetworkComparison(packed, BACKEND, tuning_log, tmp_path, _nobody) as again:
        assert again.speedup(*forms) == found and again.kernels(*forms) == times, "they are in the log"


def _nobody() -> Any:
    raise AssertionError("what is known is not measured")
