"""Test the logged library as an MLflow model: loaded from the registry, run from the command line, with its
signature.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flows.release_model import decide
from tests.conftest import REPOSITORY, SLUG
from tests.tracking.ledger_bench import LedgerBench
from tests.tracking.mlflow_server import MlflowServer
from tvmflow.api.bundles import part_of
from tvmflow.api.runs import run
from tvmflow.config.workspace import Workspace
from tvmflow.shipping.bundle.write import BundleRequest, write_bundle
from tvmflow.support.files import sha256_of
from tvmflow.tracking.mlflow.experiments import experiment_id
from tvmflow.tracking.mlflow.store import open_mlflow
from tvmflow.tracking.mlflow.trend import EXPERIMENT

MODEL = f"models:/{SLUG}@challenger"


def test_the_registered_library_is_loaded_and_answers(finished: Path) -> None:
    client = open_mlflow(Workspace(finished))
    from mlflow import artifacts, pyfunc
    from mlflow.exceptions import MlflowException

    [run] = client.search_runs([experiment_id(client, Workspace(finished), "digits_torch")])
    with np.load(artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="golden.npz")) as data:
        inputs, outputs = data["input.input"], data["output.output"]
    model = pyfunc.load_model(MODEL)
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, *inputs.shape[1:])
    np.testing.assert_allclose(model.predict(inputs), outputs, atol=1e-4)
    np.testing.assert_allclose(model.predict(model.input_example), outputs[:1], atol=1e-4)
    with pytest.raises(MlflowException, match="schema"):
        model.predict(inputs[0])


def test_a_champion_of_a_server_runs_and_is_bundled_where_nothing_else_is_left(
    copy_of_finished: Path, server: MlflowServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By MLflow's own command line, from another folder and home, after the workspace that made it is gone."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    maker, cell = Workspace(copy_of_finished), Workspace(copy_of_finished).params.cell("digits")
    assert run("digits", workspace=maker.root)[0].outcomes == {}, "nothing to do but to record"
    assert decide(maker, cell).promoted
    x = np.load(maker.folder("fetch", cell) / "golden.npz")["x"][:2]
    expected = np.load(maker.folder("quantize", cell) / "reference.npz")["golden"][:2]
    home = tmp_path / "home of another"
    (home / "clone").mkdir(parents=True)
    shutil.copyfile(maker.root / "params.yaml", home / "clone" / "params.yaml")
    shutil.rmtree(maker.root)

    part = part_of(Workspace(home / "clone"), cell, False, home / "part")
    network = part.records["build"].outputs["network.so"]
    assert sha256_of(part.path("build", "network.so")) == network.sha256
    write_bundle(home / "app.zip", [part], BundleRequest("app"), None)
    (home / "input.json").write_text(json.dumps({"inputs": x.tolist()}))
    options = ["-m", f"models:/{SLUG}@champion", "-i", "input.json", "-t", "json", "-o", "output.json"]
    done = subprocess.run(
        [sys.executable, "-m", "mlflow", "models", "predict", *options, "--env-manager", "local"],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        timeout=200,
        env={**os.environ, "HOME": str(home), "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads((home / "output.json").read_text())["predictions"]
    np.testing.assert_allclose(np.asarray(outputs), expected, atol=1e-4)


def test_a_history_run_of_before_is_taken_over_with_its_steps(ledger: LedgerBench) -> None:
    """It used to stand among the measurements of its model."""
    from mlflow.entities import Metric

    client, cell = open_mlflow(ledger.workspace), ledger.cell("digits_torch")
    model = experiment_id(client, ledger.workspace, "digits_torch")
    tags = {"tvmflow.kind": "history", "cell": str(cell), "device.kind": "cpu-test-t2", "tvmflow.steps": "2"}
    old = client.create_run(model, tags=tags).info.run_id
    client.log_batch(old, [Metric("latency_ms.median", 3.0, 1000, 1), Metric("latency_ms.median", 2.0, 2000, 2)])
    ledger.measure(cell, "library")
    assert [run.data.tags["tvmflow.kind"] for run in client.search_runs([model])] == ["measurement"]
    [run] = client.search_runs([experiment_id(client, ledger.workspace, EXPERIMENT)])
    steps = client.get_metric_history(run.info.run_id, "latency_ms.median")
    assert sorted((m.step, m.value) for m in steps) == [(1, 3.0), (2, 2.0), (1_750_000_060, 1.0)]
