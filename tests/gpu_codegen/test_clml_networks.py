"""Run networks by a stand-in for CLML, Qualcomm's library for Adreno: outputs equal those of our kernels, and a driver
that fails leaves the CPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.gpu_codegen.drivers import run_on
from tests.gpu_codegen.test_networks import _converted
from tvmflow.backends.backend import Backend
from tvmflow.backends.cpu import host_backend
from tvmflow.backends.registry import backend_named
from tvmflow.codegen.compile import LocalRunner, build_scheduled, make_runner, schedule_lowered
from tvmflow.codegen.lower import lower
from tvmflow.codegen.network.description import Network
from tvmflow.codegen.network.link import write_network
from tvmflow.evaluation.kernel_agreement import with_all_outputs
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.pipeline import canonicalize
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.torch_zoo import build_seeded
from tvmflow.support.paths import RUNTIME
from tvmflow.targets.resolve import host_target
from tvmflow.toolchain.compilers import Command
from tvmflow.toolchain.software_gpus import software_drivers

HERE = Path(__file__).parent
SDK = HERE / "clml_sdk"
PRECISIONS = ["float32", "float16", "float16_acc32"]
INPUTS = (TensorSpec("x", (1, 3, 21, 18)),)


class _Mixed(nn.Module):  # type: ignore[misc]
    """Every kind of layer that CLML takes, around one that it does not take: a convolution of two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, (2, 1), (1, 0)), nn.ReLU6(), nn.MaxPool2d(3, 2, 1))
        self.depthwise = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.ReLU())
        self.ours = nn.Conv2d(6, 10, 3, padding=1, groups=2)
        self.narrow = nn.Conv2d(6, 10, 1, bias=False)
        self.dilated = nn.Sequential(nn.Conv2d(10, 9, (3, 2), dilation=(1, 2)), nn.ReLU(), nn.AvgPool2d(2, 1))
        self.head = nn.Linear(9, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depthwise(self.stem(x))
        y = torch.relu(self.ours(y) + self.narrow(y))
        return torch.softmax(self.head(self.dilated(y).mean((2, 3))), 1)


def _backend(sdk: Path | None) -> Backend:
    options: dict[str, Any] = {"software": True, "kind": "generic", "textures": False}
    if sdk:
        options["clml_sdk"] = str(sdk)
    return backend_named("opencl")(replace(host_target(), kind="opencl", options=options))


def _module(model: nn.Module, inputs: tuple[TensorSpec, ...], precision: str) -> Any:
    module = canonicalize(ExportedModel(model, inputs).to_relax())
    return _converted(module, precision, Samples((np.zeros(inputs[0].shape, np.float32),)))


def _write(module: Any, backend: Backend, path: Path, names: tuple[str, ...] = ("scores",)) -> Path:
    scheduled = build_scheduled(backend.pack(module, None)[0], backend, {})
    kinds = [type_of(parameter) for parameter in module["main"].params]
    inputs = tuple(TensorSpec(f"x{i}", tuple(map(int, k.shape)), str(k.dtype)) for i, k in enumerate(kinds))
    write_network(path, scheduled, Network("any@opencl:any", inputs, names, 1), Command(("g++",)))
    return path


def _sample(inputs: tuple[TensorSpec, ...] = INPUTS) -> Any:
    return np.random.default_rng(3).standard_normal(inputs[0].shape, dtype=np.float32)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clml") / "libclml.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", f"-I{SDK / 'include'}", "-o", str(path)]
    subprocess.run([*command, str(HERE / "clml_driver.c"), "-lm", "-ldl"], check=True)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network three times: cpu.so, kernels.so, clml.so."""
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(5)
    module = _module(_Mixed().eval(), INPUTS, "float32")
    for name, backend in (("cpu", host_backend()), ("kernels", _backend(None)), ("clml", _backend(SDK))):
        _write(module, backend, folder / f"{name}.so")
    return folder


def _error(found: Any, expected: Any) -> float:
    a, b = (np.asarray(one, np.float64) for one in (found, expected))
    assert np.ptp(b) > 0 and a.shape == b.shape
    return float(np.abs(a - b).max() / np.ptp(b))


def _run(library: Path, folder: Path, driver: Path | None, times: int = 2, **options: str) -> list[Any]:
    given = {"library": str(driver), **options} if driver else options
    return run_on(software_drivers().pocl, library, (_sample(),), folder, times, **given)


def _calls(log: Path) -> Counter[str]:
    return Counter(log.read_text().split())


@pytest.mark.parametrize(
    "precision", ["float32", *(pytest.param(one, marks=pytest.mark.slow) for one in PRECISIONS[1:])]
)
def test_layers_of_clml_and_our_kernels_make_one_network(
    precision: str, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLML_LOG", str(tmp_path / "log"))
    torch.manual_seed(5)
    module = _module(_Mixed().eval(), INPUTS, precision)
    expected = LocalRunner(host_backend().pack(module, None)[0], host_backend()).run(_sample())[0]
    found = _run(_write(module, _backend(SDK), tmp_path / "clml.so"), tmp_path, driver, 3)
    assert len(found) == 3 and all(_error(one, expected) < (1e-5 if precision == "float32" else 1e-2) for one in found)
    calls, runs = _calls(tmp_path / "log"), 3 + 2  # one at the start, one with a profile
    created = {name: count for name, count in calls.items() if name.startswith("clCreateMLOp")}
    assert sum(created.values()) * runs == calls["clEnqueueMLOpQCOM"]
    assert {"float32": calls["fp32"], "float16": calls["fp16"], "float16_acc32": calls["fp16_acc32"]}[precision] >= 2
    if precision == "float32":
        assert created == {
            "clCreateMLOpConvolutionForwardQCOM": 1,
            "clCreateMLOpFusedConvolutionActivationForwardQCOM": 3,
            "clCreateMLOpPoolingForwardQCOM": 3,
            "clCreateMLOpFullyConnectedQCOM": 1,
            "clCreateMLOpBinaryQCOM": 1,
            "clCreateMLOpActivationForwardQCOM": 1,
            "clCreateMLOpSoftmaxQCOM": 1,
        }
        weights = 2 * 3 + 1 + 2  # weights and bias; one convolution has none
        assert calls["clEnqueueWriteMLTensorDataQCOM"] == weights, "once, however often it runs"
        assert calls["clEnqueueCopyMLTensorDataQCOM"] == 4 * runs, "the input, the output, to our convolution and back"


@pytest.mark.parametrize("version", [1, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 3, 4))])
def test_the_newest_version_that_header_and_driver_have(
    version: int, small: Path, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's tables differ by version: functions of another one would be elsewhere."""
    old = tmp_path / "sdk" / "include" / "CL"
    old.mkdir(parents=True)
    for file in (SDK / "include" / "CL").iterdir():
        (old / file.name).write_text(file.read_text().replace("STAND_IN_VERSION 5", f"STAND_IN_VERSION {version}"))
    torch.manual_seed(5)
    module = _module(_Mixed().eval(), INPUTS, "float32")
    expected = _run(small / "kernels.so", tmp_path, None, 1)
    monkeypatch.setenv("CLML_LOG", str(tmp_path / "log"))
    found = _run(_write(module, _backend(tmp_path / "sdk"), tmp_path / "old.so"), tmp_path, driver, 1)
    assert _error(found[0], expected[0]) < 1e-5
    assert ("clCreateMLTensorQCOM" in _calls(tmp_path / "log")) == (version < 4)
    monkeypatch.setenv("CLML_VERSIONS", str(version))  # a driver that is older than the library
    assert _error(_run(small / "clml.so", tmp_path, driver, 1)[0], expected[0]) < 1e-5


def test_a_driver_of_no_version_that_is_known(
    small: Path, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLML_VERSIONS", "6 7")
    with pytest.raises(RuntimeError, match="no interface of version 1 to 5, which this library was built for"):
        _run(small / "clml.so", tmp_path, driver)
    with pytest.raises(RuntimeError, match="CLML: the driver has no clQueryMLInterfaceVersionsQCOM"):
        _run(small / "clml.so", tmp_path, None)


# Runs a library of the CPU with one of CLML beside it, for each fault in turn; prints fault, processor and reason.
_FAULTS = """
import os, sys
import numpy as np
from tvmflow_network import Gpu, Network
cpu, gpu, driver, samples, cache, *faults = sys.argv[1:]
x = np.load(samples)
with Network(cpu) as network:
    expected = network(x)
for fault in faults:
    os.environ["CLML_FAULT"] = fault
    options = {"cache": cache} if "Tun" in fault else {}
    with Network(cpu, gpu_library=gpu, gpu=Gpu(library=driver, **options), sample=[x]) as network:
        for _ in range(2):
            error = np.abs(network(x) - expected).max() / np.ptp(expected)
            assert error < 1e-5, (fault, error)
        print(fault, network.processor.kind, network.processor.reason, sep="|")
"""
_OPTIONAL = re.compile("Recording|Tun|Release")  # without which layers are computed all the same


def _run_faults(faults: list[str], small: Path, driver: Path, folder: Path) -> dict[str, tuple[str, str]]:
    np.save(folder / "x.npy", _sample())
    (folder / "cache").mkdir(exist_ok=True)
    environment = {**os.environ, **software_drivers().pocl.environment, "PYTHONPATH": str(RUNTIME / "python")}
    given = [small / "cpu.so", small / "clml.so", driver, folder / "x.npy", folder / "cache"]
    command = [sys.executable, "-c", _FAULTS, *map(str, given), *faults]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = (line.split("|") for line in done.stdout.splitlines())
    return {fault: (kind, reason) for fault, kind, reason in rows}


def test_a_driver_that_fails_at_each_call_in_turn(
    small: Path, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLML_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("CLML_RECORDS", "1")
    (tmp_path / "programs").mkdir()
    for _ in range(2):  # with nothing kept, and with what was kept
        _run(small / "clml.so", tmp_path, driver, 1, cache=str(tmp_path / "programs"))
    calls = {name: count for name, count in _calls(tmp_path / "log").items() if name.startswith("cl")}
    monkeypatch.delenv("CLML_LOG")
    assert len(calls) > 25
    faults = [f"{name} {at}" for name, count in calls.items() for at in range(1, min(count // 2, 9) + 1)]
    found = _run_faults([*faults, "none 0"], small, driver, tmp_path)
    assert found.pop("none 0") == ("gpu", "")
    assert list(found) == faults
    for fault, (kind, reason) in found.items():
        name = fault.split()[0]
        if _OPTIONAL.search(name) or (name == "clEnqueueMLOpQCOM" and kind == "gpu"):
            assert (kind, reason) == ("gpu", ""), fault
            continue
        assert kind == "cpu" and "CLML: " in reason, (fault, kind, reason)
        told = "clml" if re.search("MLOp", name) else name.replace("WithUsage", "")
        assert told in reason and re.search("error -6|it is NULL", reason), (fault, reason)


def test_a_driver_whose_convolutions_lie(small: Path, driver: Path, tmp_path: Path) -> None:
    kind, reason = _run_faults(["lies"], small, driver, tmp_path)["lies"]
    assert kind == "cpu" and "self-test failed: output scores is" in reason


@pytest.mark.parametrize(
    "fault",
    [
        "",
        "clEnqueueRecordingMLOpQCOM 1",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("clNewRecordingQCOM 1", "clEndRecordingQCOM 2")),
    ],
)
def test_recorded_layers(
    fault: str, small: Path, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _run(small / "kernels.so", tmp_path, None, 1)[0]
    for name, value in (("CLML_RECORDS", "1"), ("CLML_FAULT", fault), ("CLML_LOG", str(tmp_path / "log"))):
        monkeypatch.setenv(name, value)
    found = _run(small / "clml.so", tmp_path, driver, 3)
    assert all(_error(one, expected) < 1e-5 for one in found)
    calls = _calls(tmp_path / "log")
    layers, recordings, launched = 11, calls["clNewRecordingQCOM"], calls["clEnqueueRecordingMLOpQCOM"]
    assert recordings == 2, "before our convolution, and behind it"
    if fault:
        assert launched >= 4 and calls["clEnqueueMLOpQCOM"] > 2 * layers, "what is not recorded is enqueued"
    else:
        assert launched == 2 * 4 and calls["clEnqueueMLOpQCOM"] == 2 * layers, "while it records, and with a profile"


def test_what_is_found_by_trying_is_kept(
    small: Path, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, cache = _run(small / "kernels.so", tmp_path, None, 1)[0], tmp_path / "cache"
    cache.mkdir()
    for start, (tuned, loaded) in enumerate([(11, 0), (0, 1), (0, 1)]):
        monkeypatch.setenv("CLML_LOG", str(tmp_path / f"log{start}"))
        assert _error(_run(small / "clml.so", tmp_path, driver, 1, cache=str(cache))[0], expected) < 1e-5
        calls = _calls(tmp_path / f"log{start}")
        assert (calls["clTuneMLOpQCOM"], calls["clLoadMLTuningCacheQCOM"]) == (tuned, loaded)
    assert all("Tun" not in name for name in _without_folder(small, driver, tmp_path, monkeypatch))


def _without_folder(small: Path, driver: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    monkeypatch.setenv("CLML_LOG", str(folder / "log of none"))
    _run(small / "clml.so", folder, driver, 1)
    return _calls(folder / "log of none")


def test_each_layer_is_compared_with_the_same_on_the_cpu(driver: Path, tmp_path: Path) -> None:
    """`evaluate` gives all kernels an output: layers then read and write values that kernels could touch."""
    torch.manual_seed(5)
    backend = _backend(SDK)
    lowered = lower(backend.pack(_module(_Mixed().eval(), INPUTS, "float32"), None)[0], backend)
    [(module, names)] = list(with_all_outputs(lowered, 48))
    assert sum(name.startswith("clml") for name in names) == 11 and len(names) == 12
    expected = make_runner(schedule_lowered(module, host_backend(), {}).executable)((_sample(),))
    outputs = tuple(f"output {at}" for at in range(len(names)))
    write_network(
        tmp_path / "all.so",
        schedule_lowered(module, backend, {}),
        Network("a@b:c", INPUTS, outputs, 1),
        Command(("g++",)),
    )
    found = _run(tmp_path / "all.so", tmp_path, driver, 1)
    assert max(_error(a, b) for a, b in zip(found, expected, strict=True)) < 1e-5
    assert not [one.name for one in extract_workloads(lowered) if "clml" in one.name], "there is nothing to tune"


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "least"), [("resnet18", 36), ("mobilenet_v2", 60)])
def test_whole_networks(
    name: str, least: int, precision: str, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = (TensorSpec("x", (1, 3, 32, 32)),)
    module = _module(build_seeded(f"torchvision/{name}", 1), inputs, precision)
    sample = (_sample(inputs),)
    pocl = software_drivers().pocl
    expected = run_on(pocl, _write(module, _backend(None), tmp_path / "kernels.so"), sample, tmp_path, 1)[0]
    monkeypatch.setenv("CLML_LOG", str(tmp_path / "log"))
    library = _write(module, _backend(SDK), tmp_path / "clml.so")
    for found in run_on(pocl, library, sample, tmp_path, 2, library=str(driver)):
        assert _error(found, expected) < (1e-5 if precision == "float32" else 2e-2)
    layers = sum(count for call, count in _calls(tmp_path / "log").items() if call.startswith("clCreateMLOp"))
    assert layers >= (least if precision != "float16_acc32" else least // 2)
