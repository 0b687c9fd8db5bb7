"""Test recorded OpenCL kernels (cl_qcom_recordable_queues): equal outputs by one launch, and the fallback without
it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu_codegen.drivers import fake_driver, run_on
from tests.gpu_codegen.test_opencl_faults import SAMPLE, write_library
from tvmflow.toolchain.software_gpus import software_drivers


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_library(tmp_path_factory.mktemp("recorded"))


@pytest.mark.parametrize("fault", ["", "n", "e", "q"])
def test_recorded_kernels(fault: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pocl, count = software_drivers().pocl, tmp_path / "count"
    expected = run_on(pocl, library, (SAMPLE,), tmp_path, 1)
    driver = fake_driver(Path(__file__).parent / "recording_driver.c", tmp_path, ".", "-D_GNU_SOURCE")
    monkeypatch.setenv("RECORDING_FAULT", fault)
    monkeypatch.setenv("RECORDING_COUNT", str(count))
    found = run_on(pocl, library, (SAMPLE,), tmp_path, 3, library=str(driver))
    assert [a.tobytes() for a in found] == 3 * [a.tobytes() for a in expected]
    launches = count.read_text()
    profiled = launches.lstrip("R")
    assert set(profiled) == {"K"}
    recorded = len(launches) - len(profiled)
    assert recorded == (0 if fault else 1 + 3), "the first run is that of the start"
