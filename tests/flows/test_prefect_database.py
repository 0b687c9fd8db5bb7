"""Test the Prefect database of a new workspace: a copy without keys, never damaged."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from flows import prefect_server


def _make(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE configuration (key TEXT)")
        database.execute("CREATE TABLE flow (name TEXT)")
        database.execute("INSERT INTO configuration VALUES ('ENCRYPTION_KEY')")
        database.commit()


def _keys(path: Path) -> list[tuple[str]]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT key FROM configuration").fetchall()


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "first.db"
    assert prefect_server._copy_empty_database(path) == path  # to be kept, once Prefect has made it
    _make(path)
    prefect_server._keep_empty_database(path)
    return path


def test_a_new_workspace_starts_with_the_tables_and_without_the_keys(first: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.db"
    assert prefect_server._copy_empty_database(second) is None
    assert _keys(first) == [("ENCRYPTION_KEY",)] and _keys(second) == []
    assert [path.name for path in prefect_server._empty_database().parent.iterdir()] == [
        prefect_server._empty_database().name
    ]


def test_a_database_that_is_there_stays(first: Path) -> None:
    assert prefect_server._copy_empty_database(first) is None
    assert _keys(first) == [("ENCRYPTION_KEY",)]


@pytest.mark.parametrize("damage", ["cut", "overwritten", "text"])
def test_a_damaged_copy_is_made_anew(first: Path, tmp_path: Path, damage: str) -> None:
    kept = prefect_server._empty_database()
    whole = kept.read_bytes()
    half = len(whole) // 2
    kept.write_bytes(
        {"cut": whole[:half], "overwritten": whole[:half] + bytes(len(whole) - half), "text": b"text"}[damage]
    )
    second = tmp_path / "second.db"
    assert prefect_server._copy_empty_database(second) == second and not second.exists()
    prefect_server._keep_empty_database(first)
    assert prefect_server._copy_empty_database(second) is None and _keys(second) == []


def test_a_database_elsewhere_is_left_alone(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://localhost/prefect")
    assert prefect_server._copy_empty_database(tmp_path / "second.db") is None and not (tmp_path / "second.db").exists()
