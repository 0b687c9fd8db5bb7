"""Run all stages of a GPU cell, with a correct and an incorrect compiler: what is stored, and what may be released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.table import STAGES
from tvmflow import api
from tvmflow.backends.manifest import read_manifest
from tvmflow.config.workspace import find_workspace
from tvmflow.devices.gpu.quarantine import read_quarantine
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.gpu_codegen import opencl
from tvmflow.pipeline.store import Store
from tvmflow.shipping.gates.gpu import gpu_reasons
from tvmflow.support.errors import AgreementError
from tvmflow.support.progress import silent

CELL = "digits_torch@local-opencl:float32"


def test_a_gpu_that_computes_other_values_is_in_quarantine_until_it_agrees(
    copy_of_finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = yaml.safe_load((copy_of_finished / "params.yaml").read_text())
    params["tune"]["trials_per_workload"] = 0
    params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1}
    (copy_of_finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = find_workspace(copy_of_finished)
    store, cell = Store(workspace, STAGES), workspace.params.cell(CELL)
    for name in STAGES:
        store.ensure(name, cell, progress=silent)
    card = json.loads((workspace.folder("evaluate", cell) / "scorecard.json").read_text())
    gpu = read_manifest(workspace.folder("build", cell)).network.gpu
    assert gpu == "opencl"
    assert card["device"]["gpu"]["driver"] == "Portable Computing Language" and card["gpu"]["open_ms"] > 0
    assert card["kernel_agreement"]["first"] is None and card["kernel_agreement"]["kernels"] > 3
    assert gpu_reasons(Scorecard.from_json(card), gpu, read_quarantine(workspace.root)) == []

    whole = opencl.opencl_of

    def damaged(function: Any, name: str, *others: Any, **options: Any) -> str:
        """Start the sums of convolutions at 1."""
        text = whole(function, name, *others, **options)
        return text.replace("0.0f", "1.0f", 1) if "conv2d" in name else text

    with monkeypatch.context() as wrong:
        wrong.setattr(opencl, "opencl_of", damaged)
        store.ensure("build", cell, progress=silent, again=True)
        with pytest.raises(AgreementError, match="is the first kernel that differs from the CPU's"):
            store.ensure("deploy", cell, progress=silent)
    [held] = api.quarantine(workspace)
    assert held.cell == CELL and "Portable Computing Language" in held.gpu
    [reason] = gpu_reasons(Scorecard.from_json(card), gpu, read_quarantine(workspace.root))
    assert "is in quarantine" in reason and held.kernel in reason
    assert all(kernel.agrees for kernel in api.device_agreement(CELL, workspace))
    assert api.quarantine(workspace) == ()
