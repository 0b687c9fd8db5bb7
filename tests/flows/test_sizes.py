"""Run networks with dynamic sizes through all stages: one library for any length or batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.table import STAGES
from tests.flows.walk import walk
from tests.sized_models import ENCODER, IMAGES, TOKENS, write_encoder, write_images
from tvmflow.api import load, predict
from tvmflow.codegen.network.opened_network import OpenedNetwork
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.import_model import read_model
from tvmflow.frontends.onnx.frontend import open_session
from tvmflow.pipeline.check_params import check_rows
from tvmflow.pipeline.stage import StageContext
from tvmflow.setup.preflight import check_model
from tvmflow.support.errors import ModelFileError, UsageError
from tvmflow.support.progress import silent

BOUNDS = {
    "float32": 1e-4,
    "bfloat16": 0.02,
    "int8": 0.2,
}  # of the largest number; what the precisions cost this network


def _workspace(tmp_path: Path, make: Callable[..., Path], entry: dict[str, Any]) -> Workspace:
    def change(params: dict[str, Any]) -> None:
        params["models"]["sized"] = entry
        params["tune"] |= {"trials_per_workload": 1, "total_trials": 4}

    workspace = Workspace(make(change))
    check_rows(workspace.params)
    check_model(workspace, "sized")
    return workspace


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_text_encoder_of_any_length(precision: str, tmp_path: Path, make_workspace: Callable[..., Path]) -> None:
    file = write_encoder(tmp_path)
    workspace = _workspace(tmp_path, make_workspace, {"framework": "onnx", "weights": {"file": str(file)}, **ENCODER})
    card = walk(workspace, f"sized@local-cpu:{precision}")
    folder = workspace.folder("build", workspace.params.cell(f"sized@local-cpu:{precision}"))
    network, source = OpenedNetwork(folder / "network.so", 2), open_session(file)
    for length in (1, 5, 16, 17, 33, 40):
        ids = np.random.default_rng(length).integers(0, TOKENS, (1, length))
        expected = source.run(None, {"ids": ids, "mask": np.ones_like(ids)})
        found = network.run(ids, np.ones_like(ids))
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape and np.abs(a - b).max() < BOUNDS[precision] * np.abs(b).max()
    for length in (5, 40):
        ids = np.random.default_rng(length).integers(0, TOKENS, (3, length))
        named = {"mask": np.ones_like(ids), "ids": ids}
        remote = predict(f"sized@local-cpu:{precision}", named, workspace)
        with load(f"sized@local-cpu:{precision}", workspace) as library:
            here = library(**named)
        for row in range(3):
            for a, b, c in zip(remote, here, network.run(ids[row : row + 1], np.ones((1, length), int)), strict=True):
                assert (
                    np.array_equal(a[row : row + 1], c) and np.abs(b[row] - c[0]).max() < 1e-4 * np.abs(c).max() + 1e-6
                )
    with pytest.raises(UsageError, match="length is 41"):
        predict(f"sized@local-cpu:{precision}", (np.zeros((1, 41), int), np.ones((1, 41), int)), workspace)
    assert list(card["sizes"]) == ["length=16", "length=40"] and all(
        one["median_ms"] > 0 for one in card["sizes"].values()
    )
    metrics = json.loads(
        (
            workspace.folder("evaluate", workspace.params.cell(f"sized@local-cpu:{precision}")) / "metrics.json"
        ).read_text()
    )
    assert metrics["latency_ms.length_16"] > 0


@pytest.mark.slow
def test_images_in_any_batch(tmp_path: Path, make_workspace: Callable[..., Path]) -> None:
    file = write_images(tmp_path)
    workspace = _workspace(tmp_path, make_workspace, {"framework": "torch", "weights": {"file": str(file)}, **IMAGES})
    card = walk(workspace, "sized@local-cpu:int8")
    network = OpenedNetwork(workspace.folder("build", workspace.params.cell("sized@local-cpu:int8")) / "network.so", 2)
    x = np.random.default_rng(0).standard_normal((4, 3, 16, 16), dtype=np.float32)
    whole = network.run(x)[0]
    for batch in (1, 2, 3):
        assert network.run(x[:batch])[0].tobytes() == whole[:batch].tobytes(), "integers are the same in every bucket"
    assert list(card["sizes"]) == ["batch=1", "batch=4"]


def _fetched(workspace: Workspace) -> Path:
    cell, stage = workspace.params.cell("sized@local-cpu:float32"), STAGES["fetch"]
    out = workspace.folder("fetch", cell)
    out.mkdir(parents=True)
    log = workspace.tuning_log(cell)
    stage.run(
        StageContext(
            cell, stage.settings(workspace, cell), stage.limits(workspace, cell), {}, out, workspace.root, log, silent
        )
    )
    return out


def test_a_network_that_does_not_mask_is_refused(tmp_path: Path, make_workspace: Callable[..., Path]) -> None:
    file = write_encoder(tmp_path, heeds=False)
    workspace = _workspace(tmp_path, make_workspace, {"framework": "onnx", "weights": {"file": str(file)}, **ENCODER})
    fetched = _fetched(workspace)
    with pytest.raises(
        ModelFileError, match="does not mask the padding of its inputs: at length=8, padded to length=16"
    ):
        read_model(str(fetched), str(tmp_path), 1e-3, silent)


def test_an_accelerator_takes_one_shape(tmp_path: Path, make_workspace: Callable[..., Path]) -> None:
    file = write_images(tmp_path)
    workspace = _workspace(tmp_path, make_workspace, {"framework": "torch", "weights": {"file": str(file)}, **IMAGES})
    target = next(name for name, target in workspace.params.targets.items() if target.kind == "vta")
    cell = workspace.params.cell(f"sized@{target}:vta_int8")
    with pytest.raises(UsageError, match="on an accelerator or GPU"):
        STAGES["graph_pack"].settings(workspace, cell)
