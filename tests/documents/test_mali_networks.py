"""Run the networks of the Mali document for Mali's target, with PoCL in place of the GPU: outputs are the source's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.flows.walk import walk
from tests.gpu_codegen.drivers import run_on
from tests.gpu_codegen.test_networks import write_on_gpu
from tvmflow.backends.manifest import read_manifest
from tvmflow.config.workspace import Workspace
from tvmflow.frontends.registry import FRONTENDS, load_source
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.passes.pipeline import canonicalize
from tvmflow.sources.download import DownloadLimits
from tvmflow.sources.weights import WeightsRequest, fetch_weights
from tvmflow.support.progress import silent
from tvmflow.toolchain.software_gpus import software_drivers

pytestmark = pytest.mark.heavy

NETWORKS = {  # the document's name -> framework, network, size
    "resnet-18": ("torch", "torchvision/resnet18", 224),
    "resnet-34": ("torch", "torchvision/resnet34", 224),
    "resnet-50": ("torch", "torchvision/resnet50", 224),
    "vgg-16": ("torch", "torchvision/vgg16", 224),
    "vgg-19": ("torch", "torchvision/vgg19", 224),
    "mobilenet": ("keras", "keras/mobilenet", 224),
    "squeezenet_v1.1": ("torch", "torchvision/squeezenet1_1", 224),
    "inception_v3": ("torch", "torchvision/inception_v3", 299),
    "mxnet": ("mxnet", "mxnet/resnet18_v1", 224),
}
COMPILE_S = 900.0  # PoCL compiles a hundred kernels at the first run, on a machine that other tests use
SMALL = {"squeezenet_v1.1": 64, "mxnet": 32}


def _change(name: str, size: int) -> Callable[[dict[str, Any]], None]:
    framework, network, _ = NETWORKS[name]

    def change(params: dict[str, Any]) -> None:
        params["models"] = {
            "network": {
                "framework": framework,
                "network": network,
                "weights": {"seeded": 3},
                "input": {"shape": [1, 3, size, size]},
            }
        }
        params["targets"]["mali"] = {
            "kind": "opencl",
            "mcpu": "host",
            "threads": 2,
            "opencl": {"kind": "mali", "software": True, "timeout_s": COMPILE_S},
            "device": {"transport": "local-agent", "key": "mali"},
        }
        params["cells"] = {"mali": {"model": "network", "target": "mali", "precision": "float32"}}
        params["fetch"] |= {"random_samples": 4, "evaluation_samples": 4, "golden_samples": 2, "calibration_samples": 2}
        params["tune"] |= {"trials_per_workload": 0}
        params["deploy"] |= {"session_timeout_s": COMPILE_S}
        params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1, "cold_starts": 1, "peers": []}

    return change


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_have_the_sources_outputs(name: str, tmp_path: Path) -> None:
    framework, network, _ = NETWORKS[name]
    shape = (1, 3, SMALL[name], SMALL[name])
    request = WeightsRequest(
        framework, network, {"seeded": 3}, tmp_path, DownloadLimits(1, 1, 1.0), tmp_path,
        FRONTENDS[framework].files, SMALL[name],
    )  # fmt: skip
    weights = fetch_weights(request, tmp_path, None, silent)
    source = load_source(tmp_path, SourceDescription(framework, network, weights.name, one_input("data", shape)))
    made = write_on_gpu(canonicalize(source.to_relax()), "opencl", tmp_path / "mali.so", 1, kind="mali")
    assert made.gpu == "opencl" and not made.textures
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    wanted = source.run(x)[0]
    assert np.ptp(wanted) > 0.1 * np.abs(wanted).max()
    for found in run_on(software_drivers().pocl, tmp_path / "mali.so", (x,), tmp_path):
        assert found.shape == wanted.shape and np.abs(found - wanted).max() < 1e-4 * np.ptp(wanted)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_documents_networks_have_the_sources_outputs(name: str, make_workspace: Callable[..., Path]) -> None:
    workspace = Workspace(make_workspace(_change(name, NETWORKS[name][2])))
    card = walk(workspace, "mali")
    assert card["agreement"]["top1_agreement"] == 1.0 and card["agreement"]["max_relative_error"] < 1e-3
    assert card["agreement"]["sqnr_db"] > 60, "of outputs that differ from sample to sample"
    assert card["kernel_agreement"]["first"] is None and card["kernel_agreement"]["kernels"] > 15
    assert card["device"]["gpu"]["api"] == "opencl" and "Portable" in card["device"]["gpu"]["driver"]
    built = read_manifest(workspace.folder("build", workspace.params.cell("mali")))
    assert built.network.gpu == "opencl" and not built.network.textures, "of Mali: buffers"
