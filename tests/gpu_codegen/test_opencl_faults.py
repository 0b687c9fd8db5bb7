"""Test failing OpenCL drivers and cached programs: a clear reason, and never an output that was not computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.gpu_codegen.drivers import fake_driver, run_on
from tests.gpu_codegen.test_networks import gpu_backend
from tests.runtime.test_faults import build_program, calls_that_fail
from tests.runtime.test_network import Branches
from tvmflow.codegen.compile import build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.runtime_binding import network_binding
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers

INPUTS = (TensorSpec("x", (1, 3, 16, 16)),)
SAMPLE = np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=np.float32)


def write_library(folder: Path, *options: str) -> Path:
    """Write a network of few kernels for PoCL. options: of the compiler of its host code."""
    path = folder / "network.so"
    backend = gpu_backend("opencl")
    module = canonicalize(ExportedModel(Branches(0).eval(), INPUTS).to_relax())
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    network = Network("any@opencl:any", INPUTS, ("scores", "features"), 1)
    write_network(path, scheduled, network, Command(("g++", *options)))
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that gives a driver 300 ms for its first run."""
    return write_library(tmp_path_factory.mktemp("opencl"), "-DHANGS_MS=300")


def opencl_driver(folder: Path, fault: str) -> Path:
    return fake_driver(Path(__file__).parent / "fake_opencl.c", folder, fault)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("p", "lists no device"),
        ("x", "clCreateContext: error -6"),
        ("m", "no buffer of [0-9]+ bytes: error -4"),
        ("c", "refuses the kernels: error -11: line 7: what is float4"),
        ("g", "groups of [0-9]+, and the device runs 1 at most"),
        ("l", "error -36"),
        ("f", "clFinish: error -5"),
        ("r", "running the kernels: error -14"),
        ("h", "did not end within 300 ms"),
    ],
)
def test_a_driver_that_fails_at_the_start_says_why(fault: str, reason: str, library: Path, tmp_path: Path) -> None:
    binding = network_binding()
    with pytest.raises(binding.NetworkError, match=reason):
        binding.Network(library, gpu=binding.Gpu(opencl_driver(tmp_path, fault)))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("n", "error -36"), ("e", "clFinish: error -5")],
)
def test_a_device_that_fails_in_a_run_is_given_up(fault: str, reason: str, library: Path, tmp_path: Path) -> None:
    binding = network_binding()
    with binding.Network(library, gpu=binding.Gpu(opencl_driver(tmp_path, fault))) as network:
        with pytest.raises(binding.NetworkError, match=reason):
            network(SAMPLE)
        with pytest.raises(binding.NetworkError, match="an earlier run failed"):
            network(SAMPLE)


def test_a_device_that_is_not_there_and_a_library_that_is_none(library: Path, tmp_path: Path) -> None:
    binding = network_binding()
    with pytest.raises(binding.NetworkError, match="lists no device with this in its name: Mali"):
        binding.Network(library, gpu=binding.Gpu(opencl_driver(tmp_path, "."), "Mali"))
    (tmp_path / "libOpenCL.so").write_bytes(b"no library")
    with pytest.raises(binding.NetworkError, match="libOpenCL"):
        binding.Network(library, gpu=binding.Gpu(tmp_path / "libOpenCL.so"))


def test_kept_programs_that_are_damaged_or_anothers_are_compiled_again(tmp_path: Path) -> None:
    driver, cache, library = software_drivers().pocl, tmp_path / "cache", write_library(tmp_path)
    cache.mkdir()
    expected = run_on(driver, library, (SAMPLE,), tmp_path, 1, cache=str(cache))
    [kept] = cache.iterdir()
    whole = kept.read_bytes()
    damages = (
        whole[:-9],
        whole[:40],
        b"",
        whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
        whole[:8] + bytes(8) + whole[16:],
    )
    for damaged in damages:
        kept.write_bytes(damaged)
        found = run_on(driver, library, (SAMPLE,), tmp_path, 1, cache=str(cache))
        assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]
        anew = kept.read_bytes()
        assert anew[:16] == whole[:16] and anew != damaged and len(anew) > 100, "written anew"


def test_every_call_of_the_c_library_may_fail(library: Path, tmp_path: Path) -> None:
    assert calls_that_fail(build_program(tmp_path), library, opencl_driver(tmp_path, "-")) > 40
