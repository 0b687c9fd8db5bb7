"""Test the addresses of MLflow's stores: what needs a driver of a database is one error, before MLflow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.tracking.mlflow.address import REGISTRY, TRACKING, mlflow_uri, registry_uri


@pytest.mark.parametrize(
    "uri", ["postgresql://ann:secret@db/mlflow", "postgresql+psycopg2://db/mlflow", "mysql://db/x", "file:///tmp/runs"]
)
def test_a_store_of_another_kind_is_one_error(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, address in ((TRACKING, mlflow_uri), (REGISTRY, registry_uri)):
        monkeypatch.delenv(TRACKING, raising=False)
        monkeypatch.setenv(variable, uri)
        with pytest.raises(StoreError, match="is not of a usable kind") as told:
            address(Workspace(tmp_path))
        assert "secret" not in str(told.value)


def test_the_command_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACKING, "postgresql://ann:secret@db/mlflow")
    (tmp_path / "params.yaml").write_text("{models: {}, targets: {}}\n")
    command = [sys.executable, "-m", "tvmflow", "--root", str(tmp_path), "history"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "secret" not in done.stderr
    assert done.stderr.startswith("error: the MLflow store postgresql://db/mlflow is not of a usable kind\n")
