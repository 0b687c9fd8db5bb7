"""Recording stages in one go leaves what `dvc commit --force` and `dvc push` leave, for stages of several files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
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
    dvc.commit(Workspace(root), names, push=True)
    assert ([lock.read_bytes() for lock in locks], _files(root / dvc.DEFAULT_REMOTE)) == expected
    (root / "result.txt").unlink()
    (root / "result.txt").write_text("another")
    dvc.commit(Workspace(root), names[:2], push=False)
    assert locks[0].read_bytes() != expected[0][0] and _files(root / dvc.DEFAULT_REMOTE) == expected[1]
    assert "up to date" in _dvc(root, "status", *names)


@pytest.mark.parametrize(("name", "says"), [("nothing", "nothing"), ("never", "missing")])
def test_what_cannot_be_recorded_is_one_error_and_changes_nothing(root: Path, name: str, says: str) -> None:
    dvc.commit(Workspace(root), ["first"], push=False)
    before = (root / "dvc.lock").read_bytes()
    with pytest.raises(StoreError, match=says) as caught:
        dvc.commit(Workspace(root), ["second", name], push=True)
    assert "dvc commit --force second" in str(caught.value) and "Traceback" not in str(caught.value)
    assert (root / "dvc.lock").read_bytes() == before
