"""Compare random networks on OpenCL and Vulkan with the numpy reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.gpu_codegen.drivers import run_on
from tests.runtime.test_network import Branches
from tests.wide_models import described, samples_for
from tvmflow.backends.backend import Backend
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.registry import backend_named
from tvmflow.codegen.compile import LocalRunner, build_scheduled
from tvmflow.codegen.network.link import Network, write_network
from tvmflow.config.stage_params import Int8Params, MixedOperators
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.emit import build_main
from tvmflow.ir.relax.graph import Graph, TensorKind
from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.sources.data.datasets import Samples
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import SoftwareDrivers, software_drivers


@pytest.fixture(scope="module")
def drivers() -> SoftwareDrivers:
    return software_drivers()


def gpu_backend(api: str, *, textures: bool = False, kind: str = "generic") -> Backend:
    options: dict[str, Any] = {"software": True, "kind": kind}
    if api == "opencl":
        options["textures"] = textures
    return backend_named(api)(replace(host_target(), kind=api, options=options))


def write_on_gpu(
    module: object, api: str, path: Path, outputs: int = 2, *, textures: bool = False, kind: str = "generic"
) -> dict[str, Any]:
    """Compile a module for a GPU; returns the library's manifest."""
    backend = gpu_backend(api, textures=textures, kind=kind)
    packed, _ = backend.pack(module, None)
    scheduled = build_scheduled(packed, backend, {})
    inputs = tuple(
        TensorSpec(str(at), tuple(int(x) for x in type_of(p).shape), str(type_of(p).dtype))
        for at, p in enumerate(packed["main"].params)
    )
    network = Network(f"any@{api}:any", inputs, tuple(f"output {at}" for at in range(outputs)), 1)
    return write_network(path, scheduled, network, Command(("g++",)))


def _converted(module: Any, precision: str, samples: Samples) -> Any:
    if precision == "float32":
        return module
    options: MixedOperators | Int8Params = MixedOperators(low=("conv2d", "matmul"), high=("softmax", "sum"))
    if precision == "int8":
        options = Int8Params(max_drop=0.0)
    return to_precision(module, precision, PrecisionRequest(options, samples, lambda *_: None))[0]


def _check(module: Any, inputs: tuple[Any, ...], drivers: SoftwareDrivers, folder: Path, precision: str) -> None:
    expected = LocalRunner(host_backend().pack(module, None)[0], host_backend()).run(*inputs)
    ways = (("opencl", drivers.pocl, False), ("opencl", drivers.pocl, True), ("vulkan", drivers.lavapipe, False))
    for api, driver, textures in ways:
        made = write_on_gpu(module, api, folder / f"{api}.so", len(expected), textures=textures)
        assert bool(made.textures) == textures
        found = run_on(driver, folder / f"{api}.so", inputs, folder)
        assert len(found) == 2 * len(expected)
        _compare(expected, found, precision)


def _compare(expected: tuple[Any, ...], found: list[Any], precision: str) -> None:
    for at, output in enumerate(found):
        wanted = expected[at % len(expected)]
        assert output.shape == wanted.shape and output.dtype == wanted.dtype
        spread = np.ptp(wanted) or 1.0
        bound = 1e-5 if precision == "float32" else 2e-2
        assert np.ptp(wanted) > 0 and np.abs(output.astype(np.float64) - wanted).max() < bound * spread


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_any_chain_of_blocks_has_the_cpus_outputs(seed: int, drivers: SoftwareDrivers, tmp_path: Path) -> None:
    size = 15 + 3 * seed
    model = ExportedModel(Branches(seed).eval(), (TensorSpec("x", (1, 3, size, size)),))
    samples = np.random.default_rng(seed).standard_normal((1, 3, size, size), dtype=np.float32)
    _check(canonicalize(model.to_relax()), (samples,), drivers, tmp_path, "float32")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("text", "int8"),
        ("segmenter", "float32"),
        ("two", "float32"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("text", "float32"), ("segmenter", "int8"), ("two", "int8"))
        ),
    ],
)
def test_wide_models_have_the_cpus_outputs(name: str, precision: str, drivers: SoftwareDrivers, tmp_path: Path) -> None:
    samples = samples_for(name, 8)
    module = canonicalize(load_source(tmp_path, described(name, "onnx", tmp_path)).to_relax())
    module = _converted(module, precision, samples)
    _check(module, tuple(x[:1] for x in samples.inputs), drivers, tmp_path, precision)


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_places_of_limits_follow_numpy_where_a_number_is_none(
    api: str, drivers: SoftwareDrivers, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8, 40), dtype=np.float32)
    x[0, 1, 7], x[1, 0], x[2], x[3, :, 39], x[4, 3, :2] = np.nan, -np.inf, np.inf, np.nan, [np.inf, np.nan]
    builder = relax.BlockBuilder()

    def body(given: dict[str, Any]) -> list[Any]:
        negative = builder.emit(relax.op.negative(given["x"]))  # a kernel on the GPU, whatever it leaves to the CPU
        return [builder.emit(one) for axis in (1, 2) for one in (relax.op.argmax(negative, axis),)]

    module = build_main(builder, Graph({"x": TensorKind(x.shape, "float32")}), body)
    made = write_on_gpu(module, api, tmp_path / "network.so")
    assert made
    driver = drivers.pocl if api == "opencl" else drivers.lavapipe
    found = run_on(driver, tmp_path / "network.so", (x,), tmp_path, 1)
    for output, axis in zip(found, (1, 2), strict=True):
        assert np.array_equal(output, (-x).argmax(axis))
