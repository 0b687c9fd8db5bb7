"""Test a finished cell: its champion as a bundle, verified elsewhere, and as an app release under DVC."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import CELL, SLUG, tvmflow
from tvmflow import api
from tvmflow.config.workspace import Workspace
from tvmflow.shipping.bundle.signing import new_keys
from tvmflow.shipping.gates.candidate import Candidate
from tvmflow.support.errors import StoreError, UnknownNameError
from tvmflow.tracking.app_releases import bundle_path, read_releases
from tvmflow.tracking.mlflow.registry import registry_name
from tvmflow.tracking.mlflow.releases import promote
from tvmflow.tracking.mlflow.store import open_mlflow

pytestmark = pytest.mark.heavy


def test_from_a_champion_to_an_app_and_back(copy_of_finished: Path, tmp_path: Path) -> None:
    root, keys = copy_of_finished, new_keys(tmp_path / "key")
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["apps"] = {
        "camera": {"cells": ["digits"]},
        "strict": {"cells": ["digits"], "gates": {"min_accuracy": 1.0, "max_library_mb": 0.001}},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = Workspace(root)
    with pytest.raises(StoreError, match="has no champion"):
        api.bundle("digits", workspace=workspace, unsigned=True, output=tmp_path / "no.zip")
    candidate = Candidate(workspace, workspace.params.cell("digits"))
    promote(workspace, candidate.version, "asked for")

    first, manifest = api.bundle("digits", output=tmp_path / "1.zip", workspace=workspace, key=keys.private)
    assert [(one.cell, one.made.version) for one in manifest.libraries] == [(CELL, candidate.version.version)]
    for stage in ("build", "evaluate", "quantize"):  # the champion's files come from DVC's cache
        shutil.rmtree(root / "artifacts" / stage / SLUG)
    second, _ = api.bundle("digits", output=tmp_path / "2.zip", workspace=workspace, key=keys.private)
    assert first.read_bytes() == second.read_bytes()
    done = subprocess.run(  # no workspace, no variables
        [sys.executable, "-m", "tvmflow", "verify", str(first), "--key", str(keys.public), "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    [library] = json.loads(done.stdout)["libraries"]
    assert library["cell"] == CELL and library["ran"].startswith("4 golden inputs")

    refused = tvmflow(root, "release", "strict", "--unsigned", code=3)
    assert (
        "accuracy is" in refused.stderr and "library in MB is" in refused.stderr and "Traceback" not in refused.stderr
    )
    with pytest.raises(UnknownNameError, match="no app 'camra'") as error:
        api.release_app("camra", workspace, unsigned=True)
    assert "camera" in error.value.hint
    assert "camera version 1 is now on beta" in tvmflow(root, "release", "camera", "--key", str(keys.private)).stdout
    [released] = read_releases(workspace, "camera").versions
    data = bundle_path(workspace, "camera", 1).read_bytes()
    bundle_path(workspace, "camera", 1).unlink()  # as in a clone: DVC has it
    assert api.release_app("camera", workspace, channel="stable", key=keys.private).version == 1
    assert bundle_path(workspace, "camera", 1).read_bytes() == data
    pointer = yaml.safe_load((root / "releases" / "camera-1.zip.dvc").read_text())
    assert pointer["outs"][0]["md5"] == released.bundle.md5
    assert (root / "dvc_storage/files/md5" / released.bundle.md5[:2] / released.bundle.md5[2:]).read_bytes() == data
    version = open_mlflow(workspace).get_model_version(
        registry_name(workspace.params.cell("digits")), candidate.version.version
    )
    assert version.tags["app.camera"] == "beta 1, stable 1"
    assert json.loads(tvmflow(root, "releases", "camera", "--json").stdout)["channels"] == {"beta": 1, "stable": 1}
