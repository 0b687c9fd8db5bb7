"""Test temporary folders: removed at the end, and by the next process after a kill, never those of a living one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tvmflow.support import temporary
from tvmflow.support.temporary import remove_folder, sweep, temporary_folder

_MAKES = """
import sys, time
from tvmflow.support.temporary import make_folder
print(make_folder("test"), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", _MAKES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    killed, alive = (subprocess.Popen(command, **pipes) for _ in range(2))  # type: ignore[call-overload]
    left, used = Path(killed.stdout.readline().strip()), Path(alive.stdout.readline().strip())
    (left / "closed").mkdir()
    (left / "closed" / "file").touch()
    (left / "closed").chmod(0)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    reused = tmp_path / used.name.replace(used.name.split("-")[4], "1")  # the process id was another process's before
    other_container = tmp_path / left.name.replace(left.name.split("-")[2], "1")
    foreign, file = tmp_path / "tvmflow-test", tmp_path / (left.name + "x")
    for folder in (reused, other_container, foreign):
        folder.mkdir()
    file.touch()
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / (left.name + "y")).symlink_to(victim)
    sweep(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {used.name, other_container.name, "tvmflow-test", file.name, left.name + "y", "victim"}
    alive.communicate("")
    sweep(tmp_path)
    assert not used.exists()


def test_a_folder_is_private_and_sweeps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_swept", set())
    old = tmp_path / f"tvmflow-test-{temporary._namespace()}-{os.getpid()}-1-x"
    old.mkdir()
    with temporary_folder("test", tmp_path) as folder:
        assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700 and not old.exists()
        with temporary_folder("test", tmp_path) as other:
            assert folder.is_dir() and other.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_removal_stays_inside(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (folder / "closed").mkdir(parents=True)
    outside.mkdir(mode=0o500)
    (folder / "closed" / "link").symlink_to(outside)
    (folder / "closed").chmod(0o500)
    remove_folder(folder)
    assert not folder.exists() and outside.stat().st_mode & 0o777 == 0o500


def test_it_is_the_only_owner_of_temporary_folders() -> None:
    """android_linker.py is a program without tvmflow, in the folder of link.py."""
    others = [
        path.name
        for root in ("tvmflow", "tasks", "flows")
        for path in (REPOSITORY / root).rglob("*.py")
        if re.search(r"mkdtemp|TemporaryDirectory|mkstemp", path.read_text(encoding="utf-8"))
    ]
    assert sorted(others) == ["android_linker.py", "temporary.py"]
