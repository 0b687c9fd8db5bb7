"""Test that the store's file is read without importing MLflow, which takes seconds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.store import champion_with

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
