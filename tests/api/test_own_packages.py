"""Test that folders of the user named as our packages are neither taken for them nor a riddle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.heavy


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a project as those of Celery and Prefect are."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise SystemExit('mine was imported')\n")
    (tmp_path / "flows.py").write_text("raise SystemExit('mine was imported')\n")
    return tmp_path


def _python(folder: Path, *words: str, path: str = str(REPOSITORY)) -> subprocess.CompletedProcess[str]:
    command = ["env", f"PYTHONPATH={path}", sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_finds_its_own(own: Path, make_workspace: Callable[..., Path]) -> None:
    done = _python(own, "-m", "tvmflow", "--root", str(make_workspace()), "why", "digits")
    assert done.returncode == 0 and "never made" in done.stdout, done.stdout + done.stderr


def test_a_program_is_told_which_folder_hides_them(own: Path) -> None:
    said = (
        "try:\n import tvmflow; tvmflow.plan\n"
        "except Exception as error: print(type(error).__name__, error)\nelse: print('imported')"
    )
    done = _python(own, "-c", said)
    assert done.stdout.startswith("UsageError") and f"{own / 'tasks'} hides tvmflow's package 'tasks'" in done.stdout
    assert _python(own, "-P", "-c", said).stdout == "imported\n"
    (own / "tasks" / "__init__.py").write_text("")
    loaded = _python(own, "-c", f"import sys; import tasks; sys.path.insert(0, {str(REPOSITORY)!r})\n{said}")
    assert f"{own / 'tasks'} hides" in loaded.stdout, "it is loaded already"
