"""Test that recording stages at once equals `dvc commit --force` and `dvc push`, for stages of several files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import free_port
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreAwayError
from tvmflow.tracking.dvc import repository as dvc


def _dvc(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a DVC repository with stages in two files: one reads another's folder, one was never made."""
    stages = {
        "first": {"cmd": "true", "outs": ["made"]},
        "second": {"cmd": "true", "deps": ["made"], "outs": ["result.txt"]},
        "never": {"cmd": "true", "outs": ["missing"]},
        "above": {"cmd": "true", "deps": ["missing"]},
    }
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"third": {"cmd": "true", "outs": ["x"]}}}))
    (tmp_path / "made").mkdir()
    for name in ("made/one", "made/two", "result.txt", "others/x"):
        (tmp_path / name).write_text(name)
    dvc.initialize(Workspace(tmp_path))
    return tmp_path


def test_the_same_as_dvcs_own_commands(root: Path) -> None:
    names = ["first", "second", "others/dvc.yaml:third"]
    locks = (root / "dvc.lock", root / "others" / "dvc.lock")
    _dvc(root, "commit", "--force", *names)
    _dvc(root, "push", *names)
    expected = [lock.read_bytes() for lock in locks], _files(root / dvc.DEFAULT_REMOTE)
    for lock in locks:
        lock.unlink()
    for file in (root / dvc.DEFAULT_REMOTE).rglob("*"):
        if file.is_file():
            file.unlink()
    assert dvc.commit(Workspace(root), {"a": names[:2], "b": names[2:]}, push=True) == {}
    assert ([lock.read_bytes() for lock in locks], _files(root / dvc.DEFAULT_REMOTE)) == expected
    (root / "result.txt").unlink()
    (root / "result.txt").write_text("another")
    dvc.commit(Workspace(root), {"a": names[:2]}, push=False)
    assert locks[0].read_bytes() != expected[0][0] and _files(root / dvc.DEFAULT_REMOTE) == expected[1]
    assert "up to date" in _dvc(root, "status", *names)


def test_what_cannot_be_recorded_fails_its_own_cell_only(root: Path) -> None:
    dvc.commit(Workspace(root), {"a": ["first"]}, push=False)
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    lock["stages"]["gone"] = lock["stages"]["first"]
    (root / "dvc.lock").write_text(yaml.safe_dump(lock))
    cells = {"a": ["first", "never"], "b": ["first", "nothing"], "c": ["second"]}
    failed = dvc.commit(Workspace(root), cells, push=True, also=["above"])
    assert set(failed) == {"a", "b"} and "missing" in str(failed["a"]) and "nothing" in str(failed["b"])
    stages = yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    assert set(stages) == {"first", "second"}, "a stage that dvc.yaml does not name is dropped"
    (root / ".dvc" / "config").write_text("[core]\n    no_scm = True\n    remote = none\n")
    failed = dvc.commit(Workspace(root), {"a": ["first"]}, push=True)
    assert "none" in str(failed["a"]), "a remote that is away"
    remote = f"http://user:open-sesame@127.0.0.1:{free_port()}/team"
    (root / ".dvc" / "config").write_text(
        f"[core]\n    no_scm = True\n    remote = web\n['remote \"web\"']\n    url = {remote}\n"
    )
    failed = dvc.commit(Workspace(root), {"a": ["first"]}, push=True)
    place = remote.replace("user:open-sesame@", "")
    assert isinstance(failed["a"], StoreAwayError), "the server of a remote is away"
    assert f"the DVC remote web ({place}) did not take the files" in str(failed["a"]), failed
    (root / "dvc.yaml").write_text("stages: 3")
    assert "dvc.yaml" in str(dvc.commit(Workspace(root), {"a": ["first"]}, push=False)["a"])
