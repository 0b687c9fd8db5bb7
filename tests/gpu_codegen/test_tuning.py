"""Tune GPU kernels through the agent, with a driver that refuses, crashes and hangs."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_codegen.test_networks import gpu_backend
from tests.runtime.test_network import Branches
from tests.search_rules import QUICK_RULES, changed
from tvmflow.backends.backend import Backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.lower import lower
from tvmflow.config.params import DeviceEntry
from tvmflow.devices.agent.local import LocalAgentTransport
from tvmflow.devices.session import SessionLimits
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.paths import RUNTIME
from tvmflow.support.progress import silent
from tvmflow.toolchain.environments import cache_folder
from tvmflow.toolchain.software_gpus import software_drivers
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import COMPILE_ERROR, KERNEL_TIMEOUT, OK
from tvmflow.tuning.search.search import tune

KERNEL_TIMEOUT_S = 10.0


def _packed(backend: Backend) -> Any:
    model = ExportedModel(Branches(3).eval(), (TensorSpec("x", (1, 3, 16, 16)),))
    return backend.pack(canonicalize(model.to_relax()), None)[0]


def _tuned(backend: Backend, packed: Any, trials: int, folder: Path) -> tuple[Any, list[Any]]:
    """Tune the first convolution; returns the report and all records."""

    def opened() -> Any:
        device = DeviceEntry(transport="local-agent", key="test")
        return LocalAgentTransport().open(device, backend, SessionLimits(120.0, 60.0))

    rules = changed(
        QUICK_RULES, trials_per_workload=trials, has_tvm=False, kernel_timeout_s=KERNEL_TIMEOUT_S, give_up_s=120.0
    )
    tuning_log = TuningLog(folder / "log.jsonl", backend.kernel_kind, {"test": "1"})
    convolutions = [one for one in extract_workloads(lower(packed, backend)) if "conv2d" in one.name]
    report = tune(convolutions[:1], opened, backend, rules, tuning_log, folder, silent)
    return report, list(tuning_log.known())


def _with_faults(folder: Path, faults: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a driver that fails before PoCL, in a cache folder of the test's own."""
    drivers, name = software_drivers(), software_drivers().folder.name
    there, made = (
        next(drivers.folder.glob("root/usr/lib/*/libpocl.so.2")).parent,
        folder / "cache" / "gpu-drivers" / name,
    )
    libraries = made / there.relative_to(drivers.folder)
    libraries.mkdir(parents=True)
    for file in there.iterdir():
        (libraries / file.name).symlink_to(file)
    for file in ("pocl.icd", "lavapipe.json"):
        (made / file).symlink_to(drivers.folder / file)
    (folder / "cache" / "agent").symlink_to(cache_folder() / "agent")
    source = Path(__file__).parent / "faulty_driver.c"
    command = ["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{RUNTIME / 'gpu'}", str(source), "-o"]
    subprocess.run([*command, str(libraries / "libOpenCL-pixel.so")], check=True)
    monkeypatch.setenv("TVMFLOW_CACHE", str(folder / "cache"))
    monkeypatch.setenv("FAULTY_DRIVER", faults)
    monkeypatch.setenv("FAULTY_COUNT", str(folder / "count"))


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_records_of_a_gpu_are_measured_and_used(api: str, tmp_path: Path) -> None:
    backend = gpu_backend(api)
    packed = _packed(backend)
    report, records = _tuned(backend, packed, 3, tmp_path)
    assert report.measured == 3 and {record.status for record in records} == {OK}
    assert {record.device_kind for record in records} == {backend.device_kind}
    chosen = build_scheduled(packed, backend, report.best).kernels
    assert Counter(one.schedule for one in chosen if one.workload in report.best) == Counter(["record"])


def test_a_driver_that_fails_costs_the_candidate_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache_folder() / "agent").mkdir(parents=True, exist_ok=True)
    _with_faults(tmp_path, "c3 h6 r8", monkeypatch)
    backend = gpu_backend("opencl")
    report, records = _tuned(backend, _packed(backend), 6, tmp_path)
    assert (tmp_path / "count").stat().st_size > 8, "all three happened"
    found = Counter(record.status for record in records)
    assert found[COMPILE_ERROR] == found[KERNEL_TIMEOUT] == 1 and found[OK] >= 3 and len(found) == 3
    (refused,) = (record for record in records if record.status == COMPILE_ERROR)
    assert "refuses the kernels: error -5" in refused.error
    assert any("a signal ended it" in note for note in report.device_pool.notes)
    assert not report.device_pool.given_up and set(report.best) == {records[0].workload}
