"""Test that the store's file is read without importing MLflow, which takes seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tvmflow.cli.app import app
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.champion_digests import champion_with

NAME = "a.local-cpu.float32"


@pytest.mark.parametrize(
    ("alias", "sha256", "version"),
    [("champion", "aa", "2"), ("champion", "bb", None), ("challenger", "aa", None)],
)
def test_the_champion_is_known_by_its_library(tmp_path: Path, alias: str, sha256: str, version: str | None) -> None:
    assert champion_with(Workspace(tmp_path), NAME, sha256, "n") is None
    (tmp_path / "mlruns").mkdir()
    with sqlite3.connect(tmp_path / "mlruns" / "mlflow.db") as store:
        store.execute("CREATE TABLE registered_model_aliases (alias, version, name)")
        store.execute("CREATE TABLE model_version_tags (key, value, name, version)")
        store.execute("INSERT INTO registered_model_aliases VALUES (?, 2, ?)", (alias, NAME))
        store.execute("INSERT INTO model_version_tags VALUES ('library_sha256', 'aa', ?, 2)", (NAME,))
        store.execute("INSERT INTO model_version_tags VALUES ('library_sha256', 'bb', ?, 1)", (NAME,))
    assert champion_with(Workspace(tmp_path), NAME, sha256, "n") == version, "of before: nothing says what ships"
    with sqlite3.connect(tmp_path / "mlruns" / "mlflow.db") as store:
        store.execute("INSERT INTO model_version_tags VALUES ('network_sha256', 'n', ?, 2)", (NAME,))
    store.close()
    assert champion_with(Workspace(tmp_path), NAME, sha256, "n") == version
    assert champion_with(Workspace(tmp_path), NAME, sha256, "other") is None


def test_init_says_where_the_stores_are(make_workspace: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_workspace()

    def said() -> str:
        done = CliRunner().invoke(app, ["--root", str(root), "init"])
        assert done.exit_code == 0, done.output
        return done.stdout.strip().partition(": ")[2]

    assert said() == "DVC remote dvc_storage, MLflow store mlruns/mlflow.db"
    config = root / ".dvc" / "config"
    config.write_text(config.read_text().replace("../dvc_storage", "s3://bucket/tvmflow"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@server:5000/")
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://models:5000")
    (root / ".dvc" / "config.local").write_text("[core]\n    remote = mine\n['remote \"mine\"']\n    url = /mnt/dvc\n")
    assert said() == "DVC remote /mnt/dvc, MLflow store http://server:5000, registered models http://models:5000"
