"""Test that folders of the user named as our packages are neither taken for them nor a riddle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tvmflow.pipeline.recipe_key import code_of

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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel in it, as installed."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(folder), str(REPOSITORY)], check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.mark.slow
def test_a_wheel_and_a_project_with_such_folders_do_not_meet(
    installed: Path, own: Path, make_workspace: Callable[..., Path]
) -> None:
    assert not {"tasks", "flows"} & {path.name for path in installed.iterdir()}
    root = make_workspace()
    (own / "tasks" / "__init__.py").write_text("MINE = True\n")
    (own / "flows.py").write_text("MINE = True\n")
    code = (
        "import sys, tasks, flows, tvmflow, json\n"
        f"plans = tvmflow.plan(workspace={str(root)!r})\n"
        "from tvmflow.tasks.table import STAGES\nfrom tvmflow.flows.sweep import sweep\n"
        "from tvmflow.pipeline.recipe_key import code_of\n"
        "codes = {name: code_of(stage.module, stage.runs) for name, stage in STAGES.items()}\n"
        "print(json.dumps([tasks.MINE and flows.MINE, tvmflow.__file__, len(plans), codes]))"
    )
    done = _python(own, "-c", code, path=str(installed))
    assert done.returncode == 0, done.stderr
    mine, place, plans, codes = json.loads(done.stdout)
    assert mine and Path(place).is_relative_to(installed) and plans == 2
    assert codes == {name: code_of(stage.module, stage.runs) for name, stage in STAGES.items()}, "keys of both are one"
    (own / "tasks" / "__init__.py").write_text("raise SystemExit('mine was imported')\n")
    for module in (["tvmflow", "--root", str(root), "why", "digits"], ["tvmflow.tasks", "--help"]):
        done = _python(own, "-m", *module, path=str(installed))
        assert done.returncode == 0, done.stdout + done.stderr
