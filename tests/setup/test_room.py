"""Test that a workspace whose folders take no files is one error before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.faults.full_disk import full_disk
from tvmflow.config.workspace import Workspace
from tvmflow.setup.preflight import check_room
from tvmflow.support.errors import StoreError, last_words
from tvmflow.support.files import why_not_writable


@pytest.mark.parametrize("name", ["artifacts", "mlruns", ".prefect", ".dvc"])
def test_a_folder_that_is_a_file(name: str, tmp_path: Path) -> None:
    check_room(Workspace(tmp_path))
    (tmp_path / name).write_text("")
    with pytest.raises(StoreError, match=f"Not a directory while writing to {tmp_path / name}"):
        check_room(Workspace(tmp_path))


def test_the_words_about_a_full_disk_are_the_last_ones() -> None:
    said = b"ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status\n"
    assert last_words(said) == "ld: final link failed: No space left on device"
    assert last_words(b"one\ntwo\n") == "two" and last_words(b"") == ""


def test_a_full_disk(tmp_path: Path) -> None:
    disk, full = tmp_path / "disk", tmp_path / "full"
    disk.mkdir()
    assert why_not_writable(disk) is None and not list(disk.iterdir())
    script = """
import sqlite3, sys
from pathlib import Path
from flows.faults import explain, explain_in_cell, explains_faults
from tvmflow.support.errors import GateRefusedError, StageCrashedError, ToolchainError
disk, full = Path(sys.argv[1]), Path(sys.argv[2])
database = sqlite3.connect(disk / "a.db")
database.execute("create table t (x)")
assert explain(ValueError("a fault of ours"), disk) is None
assert "ended with ValueError: a fault of ours" in explain_in_cell(ValueError("a fault of ours"), disk, "build").found
full.touch()
try:
    with explains_faults(disk):
        database.execute("insert into t values (zeroblob(100000))")
        database.commit()
except Exception as error:
    print(error)
print(explain(StageCrashedError("build died"), disk))
print(explain(ToolchainError("ld returned 1"), disk))
print(explain(ToolchainError("ld: final link failed: No space left on device"), disk.parent))
print(explain(GateRefusedError("no"), disk))
print(explain_in_cell(OSError(28, "No space left on device", str(disk)), disk, "build"))
"""
    environment = {**os.environ, **full_disk(disk, full, tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(disk), str(full)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    room = f"no space left while writing to {disk}"
    assert said == [
        room,
        room,
        room,
        f"no space left while working in {disk.parent}",
        "no",
        f"no space left while working in {disk}",
    ]
