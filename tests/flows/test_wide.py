"""Run a text model with two integer inputs, and a network with two outputs, through all stages on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.walk import walk
from tests.wide_models import SPECS, WORDS, write
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.check_params import check_rows
from tvmflow.setup.preflight import check_model

pytestmark = pytest.mark.heavy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "framework", "precision"),
    [("text", "onnx", "float32"), ("two", "torch", "int8")],
)
def test_a_wide_model_goes_all_the_way(
    name: str, framework: str, precision: str, tmp_path: Path, make_workspace: Callable[..., Path]
) -> None:
    def change(params: dict[str, Any]) -> None:
        (tmp_path / "files").mkdir()
        file = write(name, framework, tmp_path / "files")
        params["models"]["wide"] = {"framework": framework, "weights": {"file": str(file)}, "inputs": SPECS[name]}
        params["tune"] |= {"trials_per_workload": 1, "total_trials": 4}

    workspace = Workspace(make_workspace(change))
    check_rows(workspace.params)
    check_model(workspace, "wide")
    card = walk(workspace, f"wide@local-cpu:{precision}")
    cell = workspace.params.cell(f"wide@local-cpu:{precision}")
    manifest = json.loads((workspace.folder("build", cell) / "manifest.json").read_text())
    assert [spec["name"] for spec in manifest["inputs"]] == list(SPECS[name])
    peers = {"onnxruntime"} if framework == "onnx" else {"source", "onnxruntime"}  # ONNX's own runtime is a peer once
    assert set(card["peers"]) == peers and card["agreement"]["top1_agreement"] is not None
    assert card["latency"]["compute"]["median_ms"] > 0
    if name == "text":
        assert manifest["inputs"][0] == {"name": "ids", "shape": [1, 7], "dtype": "int64"} and WORDS == 50
        assert manifest["outputs"] == [{"name": "scores", "shape": [1, 4], "dtype": "float32"}]
        assert card["outputs"] == [] and card["agreement"]["max_relative_error"] < 1e-4
    else:
        assert [output["shape"] for output in manifest["outputs"]] == [[1, 6], [1, 12]] and len(card["outputs"]) == 2
        assert card["agreement"]["sqnr_db"] == min(output["sqnr_db"] for output in card["outputs"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "network"),
    [("keras", "keras/mobilenet"), ("mxnet", "mxnet/squeezenet1.1"), ("torch", "torchvision/squeezenet1_1")],
)
def test_a_network_of_every_zoo_goes_all_the_way(
    framework: str, network: str, make_workspace: Callable[..., Path]
) -> None:
    def change(params: dict[str, Any]) -> None:
        params["models"]["zoo"] = {
            "framework": framework,
            "network": network,
            "weights": {"seeded": 5},
            "input": {"shape": [1, 3, 64, 64]},
        }
        params["fetch"] = params.get("fetch", {}) | {"evaluation_samples": 8, "golden_samples": 4}
        params["tune"] |= {"trials_per_workload": 1, "total_trials": 4}

    workspace = Workspace(make_workspace(change))
    check_model(workspace, "zoo")
    card = walk(workspace, "zoo@local-cpu:float32")
    assert card["agreement"]["top1_agreement"] == 1.0 and card["agreement"]["max_relative_error"] < 1e-2
    assert card["machine"]["latency"]["runs"] > 0 and card["library_bytes"] > 1e6
