"""Test network.so with a VTA part through the C driver interface: outputs equal TVM's virtual machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.differential.test_vta_networks import pieces_module, quantized_module
from tests.differential.vta_cases import CONFIG
from tvmflow.backends.backend import Backend
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.registry import simulated_driver
from tvmflow.backends.vta import VtaBackend
from tvmflow.codegen.compile import LocalRunner, Scheduled, build_scheduled
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.passes import run_pass
from tvmflow.passes.layout.pack_channels import PackChannels
from tvmflow.support.errors import StageError
from tvmflow.support.runtime_binding import network_binding
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.vta.compiler.compiler import compile_region
from tvmflow.vta.compiler.offload import blobs_of, offload_vta, regions_of, replace_blobs
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.runtime.device import SimulatorDriver
from tvmflow.vta.runtime.driver_bridge import DriverSeam, find_design
from tvmflow.vta.runtime.runtime import program_to_blob, register

Array = np.ndarray[Any, Any]
WIDE = VtaConfig(log_batch=1)


def _backend(config: VtaConfig) -> Backend:
    return VtaBackend(replace(host_target(), options={"config": config.to_json()}))


def _built(config: VtaConfig, module: Any) -> tuple[Any, Scheduled]:
    """Return the module with its programs, and as it is compiled."""
    offloaded = run_pass(PackChannels(16), offload_vta(module, config)[0])
    programs = [program_to_blob(compile_region(config, region, "optimized")) for region in regions_of(offloaded)]
    compiled = replace_blobs(offloaded, dict(zip(blobs_of(offloaded), programs, strict=True)))
    return compiled, build_scheduled(compiled, _backend(config), {})


def _linked(path: Path, scheduled: Scheduled, shape: tuple[int, ...]) -> Path:
    network = Network(f"{path.stem}@vta:vta_int8", (TensorSpec("x", shape),), ("y",), 2)
    manifest = write_network(path, scheduled, network, Command(("g++",)))
    assert find_design(manifest.device)
    return path


def _seam(config: VtaConfig) -> DriverSeam:
    return DriverSeam(config, SimulatorDriver(), {})


@pytest.fixture(scope="module", params=["residual", "pieces", "wide"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path, Array]]:
    """Return a module that TVM's machine runs, its library and samples; one accelerator's part, three, and batches of
    two.
    """
    config = WIDE if request.param == "wide" else CONFIG
    module, samples = pieces_module() if request.param == "pieces" else quantized_module("calibrated")
    register(config)
    compiled, scheduled = _built(config, module)
    path = tmp_path_factory.mktemp("vta") / f"{request.param}.so"
    yield compiled, _linked(path, scheduled, (1, *samples.shape[1:])), samples


def test_outputs_are_those_of_tvms_machine(case: tuple[Any, Path, Array]) -> None:
    compiled, path, samples = case
    machine, networks = LocalRunner(compiled, host_backend()), [OpenedNetwork(path, threads) for threads in (1, 2)]
    for sample in samples:
        expected = machine.run(sample[None])[0]
        for network in networks:
            assert np.array_equal(network.run(sample[None])[0], expected)
    assert np.ptp(expected) > 0


def test_what_a_driver_does_is_told(case: tuple[Any, Path, Array]) -> None:
    _, path, samples = case
    binding = network_binding()
    with pytest.raises(binding.NetworkError, match="needs the driver of its accelerator"):
        binding.Network(path)
    design = find_design(binding.Network(path, driver=_seam(CONFIG).driver).device)
    assert design is not None
    board = _seam(design)
    network = binding.Network(path, driver=board.driver)
    other = _seam(VtaConfig(log_uop_buff_size=13))  # its instructions have other fields
    wrong = binding.Network(path, driver=other.driver)
    network(samples[:1])
    with pytest.raises(binding.NetworkError, match=r"the device failed: the accelerator failed in tvmflow\.vta\.run 0"):
        wrong(samples[:1])
    assert other.error and not board.error
    network.close(), wrong.close()
    assert not board.memories and not other.memories, "all memory is given back"


@pytest.mark.parametrize(
    "name",
    ["", "sim_1x16", "sim_1x16_i8w8a32_15_15_18_99", "nobody_1x16_i8w8a32_15_15_18_17", "sim_3x16_i8w8a32_15_15_18_17"],
)
def test_a_design_that_there_is_not(name: str) -> None:
    with pytest.raises(StageError, match="no simulator for the accelerator"):
        simulated_driver(name)
    assert find_design(WIDE.name) == WIDE and ctypes.sizeof(network_binding().Driver) == 56
