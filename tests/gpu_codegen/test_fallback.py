"""Test GPU libraries with CPU fallback: correct outputs whatever the driver does, and the app learns where they were
computed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_codegen.drivers import run_beside, run_on
from tests.gpu_codegen.test_networks import gpu_backend
from tests.gpu_codegen.test_opencl_faults import SAMPLE, opencl_driver
from tests.gpu_codegen.vulkan_networks import build_shim
from tests.runtime.test_network import Branches
from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers


def _write(
    path: Path, api: str | None, seed: int = 0, side: int = 16, precision: str = "float32", *options: str
) -> Path:
    inputs = (TensorSpec("x", (1, 3, side, side)),)
    module = canonicalize(ExportedModel(Branches(seed).eval(), inputs).to_relax())
    backend = gpu_backend(api) if api else host_backend()
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    network = Network(f"any@{api or 'cpu'}:{precision}", inputs, ("scores", "features"), 1)
    write_network(path, scheduled, network, Command(("g++", *options)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network three times: cpu.so, opencl.so, vulkan.so; and others that are not the same."""
    made = tmp_path_factory.mktemp("fallback")
    for api in ("opencl", "vulkan"):
        _write(made / f"{api}.so", api)
    _write(made / "hangs.so", "opencl", 0, 16, "float32", "-DHANGS_MS=300")
    _write(made / "cpu.so", None)
    _write(made / "weights.so", "opencl", seed=1)
    _write(made / "int8.so", "opencl", seed=1, precision="int8")
    _write(made / "larger.so", "opencl", side=32)
    return made


def _expected(folder: Path) -> list[bytes]:
    with network_binding().Network(folder / "cpu.so") as network:
        assert network.processor == ("cpu", "", "", "", "")
        return [one.tobytes() for one in network(SAMPLE)]


def _with_gpu(folder: Path, gpu_library: str, **gpu: Any) -> Any:
    binding = network_binding()
    return binding.Network(folder / "cpu.so", gpu_library=folder / gpu_library, gpu=binding.Gpu(**gpu))


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_a_gpu_that_can_be_trusted_computes(api: str, folder: Path, tmp_path: Path) -> None:
    driver = software_drivers().pocl if api == "opencl" else software_drivers().lavapipe
    found, who = run_beside(driver, folder / "cpu.so", folder / f"{api}.so", (SAMPLE,), tmp_path)
    alone = run_on(driver, folder / f"{api}.so", (SAMPLE,), tmp_path, 1)
    assert who == "gpu" and [one.tobytes() for one in found] == [one.tobytes() for one in alone]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("p", "lists no device"),
        ("x", "clCreateContext: error -6"),
        ("m", "no buffer"),
        ("c", "refuses the kernels"),
        ("g", "runs 1 at most"),
        ("l", "error -36"),
        ("f", "clFinish: error -5"),
        ("h", "did not end within 300 ms"),
        (".", "self-test failed: output scores is .* of its spread off the CPU's, 0.002 is allowed"),
    ],
)
def test_a_driver_that_fails_or_lies_leaves_the_cpu(fault: str, reason: str, folder: Path, tmp_path: Path) -> None:
    library = "hangs.so" if fault == "h" else "opencl.so"
    with _with_gpu(folder, library, library=opencl_driver(tmp_path, fault)) as network:
        for _ in range(2):
            assert [one.tobytes() for one in network(SAMPLE)] == _expected(folder)
            found = network.processor
            assert found.kind == "cpu" and found.device == ("Fake GPU" if fault == "." else "")
            assert re.search(reason, found.reason) and ("Fake GPU" in found.reason) == (fault in "lfh")


def test_no_driver_or_no_library_leaves_the_cpu(folder: Path, tmp_path: Path) -> None:
    for library, gpu, reason in (
        ("vulkan.so", {"library": tmp_path / "libvulkan.so"}, "no library of Vulkan"),
        ("opencl.so", {"library": opencl_driver(tmp_path, "."), "device": "Mali"}, "with this in its name: Mali"),
        ("nowhere.so", {}, "no library for a GPU was given"),
    ):
        with _with_gpu(folder, library, **gpu) as network:
            assert network.processor.kind == "cpu" and reason in network.processor.reason
            assert [one.tobytes() for one in network(SAMPLE)] == _expected(folder)


def test_a_gpu_whose_subgroups_do_not_sum_leaves_the_cpu(folder: Path, tmp_path: Path) -> None:
    driver = software_drivers().lavapipe
    fault = {"REAL": str(driver.library), "FAULT": "sums", "LD_LIBRARY_PATH": str(build_shim(tmp_path).parent)}
    driver = replace(driver, environment={**driver.environment, **fault})
    found, who = run_beside(driver, folder / "cpu.so", folder / "vulkan.so", (SAMPLE,), tmp_path)
    assert who.startswith("cpu") and who.endswith("sums over subgroups")
    assert [one.tobytes() for one in found] == _expected(folder)


def test_a_gpu_that_fails_later_leaves_that_run_and_all_others_to_the_cpu(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver tells what the CPU computes for the sample, so the self-test passes."""
    expected, driver = _expected(folder), opencl_driver(tmp_path, "L")
    truth = tmp_path / "truth"
    truth.write_bytes(b"".join(expected))
    binding = network_binding()
    monkeypatch.setenv("FAKE_TRUTH", str(truth))
    with binding.Network(
        folder / "cpu.so", gpu_library=folder / "opencl.so", gpu=binding.Gpu(driver), sample=[SAMPLE]
    ) as network:
        assert network.processor[:3] == ("gpu", "", "Fake GPU")
        assert [one.tobytes() for one in network(SAMPLE)] == expected
        truth.unlink()
        for _ in range(2):
            assert [one.tobytes() for one in network(SAMPLE)] == expected
            assert network.processor.kind == "cpu" and "clFinish: error -5" in network.processor.reason


def test_a_library_of_another_network_is_refused(folder: Path, tmp_path: Path) -> None:
    binding, driver = network_binding(), opencl_driver(tmp_path, ".")
    for library, reason in (("larger.so", "other inputs"), ("cpu.so", "for the CPU, too")):
        with pytest.raises(binding.NetworkError, match=reason):
            _with_gpu(folder, library, library=driver)
    with pytest.raises(binding.NetworkError, match="not the other way round"):
        binding.Network(folder / "opencl.so", gpu_library=folder / "cpu.so")


@pytest.mark.parametrize("library", ["weights.so", "int8.so"])
def test_other_weights_fail_the_self_test_whatever_the_precision(library: str, folder: Path, tmp_path: Path) -> None:
    found, who = run_beside(software_drivers().pocl, folder / "cpu.so", folder / library, (SAMPLE,), tmp_path)
    assert who.startswith("cpu the self-test failed") and [one.tobytes() for one in found] == _expected(folder)
