"""Compare every kernel of a network on a GPU with the same kernel on the CPU; the first faulty one is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.gpu_codegen.test_networks import gpu_backend
from tests.runtime.test_network import Branches
from tvmflow.backends.backend import Backend
from tvmflow.codegen.lower import lower
from tvmflow.config.params import DeviceEntry
from tvmflow.config.stage_params import MixedOperators
from tvmflow.devices.agent.local import LocalAgentTransport
from tvmflow.devices.session import DeviceSession, SessionLimits
from tvmflow.evaluation.kernel_agreement import KernelAgreement, kernel_agreement
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.gpu_codegen import opencl
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.precisions import PrecisionRequest, to_precision
from tvmflow.sources.data.datasets import Samples
from tvmflow.sources.networks.torch_zoo import build

BOUNDS = {"float32": 5e-6, "float16": 2e-2, "float16_acc32": 2e-2}


def _session(backend: Backend) -> Any:
    device = DeviceEntry(transport="local-agent", key="test")
    return LocalAgentTransport().open(device, backend, SessionLimits(120.0, 120.0))


def _module(name: str, side: int) -> Any:
    network = Branches(3).eval() if name == "branches" else build(f"torchvision/{name}", 3)
    return canonicalize(ExportedModel(network, (TensorSpec("x", (1, 3, side, side)),)).to_relax())


def _agreement(backend: Backend, module: Any, session: DeviceSession, side: int) -> list[KernelAgreement]:
    draw = np.random.default_rng(0)
    samples = [(draw.standard_normal((1, 3, side, side), dtype=np.float32),) for _ in range(2)]
    return kernel_agreement(lower(backend.pack(module, None)[0], backend), backend, {}, samples, session)


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "api", "textures"),
    [
        ("mobilenet_v2", "vulkan", False),
        pytest.param("resnet18", "opencl", True, marks=_SLOW),
        pytest.param("resnet18", "opencl", False, marks=_SLOW),
        pytest.param("resnet18", "vulkan", False, marks=_SLOW),
        pytest.param("mobilenet_v2", "opencl", True, marks=_SLOW),
        pytest.param("mobilenet_v2", "opencl", False, marks=_SLOW),
    ],
)
def test_every_kernel_of_a_network_agrees(name: str, api: str, textures: bool) -> None:
    backend = gpu_backend(api, textures=textures)
    with _session(backend) as session:
        found = _agreement(backend, _module(name, 64), session, 64)
        gpu = session.gpu
    assert gpu is not None and gpu.api == api and gpu.device and gpu.version
    assert gpu.driver == {"opencl": "Portable Computing Language", "vulkan": "llvmpipe"}[api]
    assert len(found) > 20 and all(kernel.varies for kernel in found)
    assert [kernel for kernel in found if kernel.error > BOUNDS["float32"]] == []


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["float16", "float16_acc32"])
@pytest.mark.parametrize(("api", "textures"), [("opencl", True), ("vulkan", False)])
def test_kernels_in_float16_agree(precision: str, api: str, textures: bool) -> None:
    backend = gpu_backend(api, textures=textures)
    request = PrecisionRequest(
        MixedOperators(low=("conv2d", "matmul"), high=("softmax", "sum")), Samples(()), lambda *_: None
    )
    module = to_precision(_module("branches", 24), precision, request)[0]
    with _session(backend) as session:
        found = _agreement(backend, module, session, 24)
    assert found and [kernel for kernel in found if kernel.error > BOUNDS[precision]] == []


@pytest.mark.slow
def test_the_first_kernel_that_goes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, module = gpu_backend("opencl"), _module("branches", 24)
    whole = opencl.opencl_of

    def damaged(function: Any, name: str, *others: Any, **options: Any) -> str:
        """Start the sums of the second convolution at 1."""
        text = whole(function, name, *others, **options)
        return text.replace("0.0f", "1.0f", 1) if "conv2d_nchwc1_" in name else text

    with _session(backend) as session:
        names = [kernel.kernel for kernel in _agreement(backend, module, session, 24)]
        monkeypatch.setattr(opencl, "opencl_of", damaged)
        wrong = [kernel.kernel for kernel in _agreement(backend, module, session, 24) if kernel.error > 1e-3]
    assert wrong and "conv2d_nchwc1" in wrong[0] and names.index(wrong[0]) > 0
