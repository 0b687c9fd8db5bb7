"""Test the example projects: valid params.yaml, also for editors; README commands; a complete dry run."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.main import get_command

from tests.contract.test_repository import REPOSITORY
from tvmflow import api
from tvmflow.cli import app
from tvmflow.config.params import STAGE_NAMES
from tvmflow.setup.params_schema import params_schema

EXAMPLES = sorted(path.parent for path in (REPOSITORY / "examples").glob("*/params.yaml"))


def _name(path: Path) -> str:
    return path.name


def test_the_list_names_every_project_and_every_app() -> None:
    listed = re.findall(r"^\| \[(\S+)\]", (REPOSITORY / "examples" / "README.md").read_text(), re.M)
    apps = sorted(path.parent for path in (REPOSITORY / "examples" / "apps").glob("*/README.md"))
    assert len(EXAMPLES) == 6 and len(apps) == 7
    assert sorted(listed) == sorted(str(path.relative_to(REPOSITORY / "examples")) for path in [*EXAMPLES, *apps])


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_a_dry_run_finds_everything_that_the_readme_makes(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / example.name
    shutil.copytree(example, root)
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.delitem(sys.modules, "network", raising=False)
    for command in re.findall(r"^python (\w+\.py)", (root / "README.md").read_text(), re.M):
        quick = ["--epochs", "0"] if "--epochs" in (root / command).read_text() else []
        monkeypatch.setattr(sys, "argv", [command, *quick])
        runpy.run_path(str(root / command), run_name="__main__")
    plans = api.plan(workspace=root, look=True)
    assert plans and [plan.error for plan in plans] == [None] * len(plans)
    assert all([stage.stage for stage in plan.stages][:4] == list(STAGE_NAMES)[:4] for plan in plans), plans
    jsonschema.validate(yaml.safe_load((root / "params.yaml").read_text()), params_schema())


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_the_readme_names_commands_and_cells_that_there_are(example: Path) -> None:
    text = (example / "README.md").read_text()
    cells = api.open_workspace(example).params
    for command, cell in re.findall(r"^tvmflow (\w+)(?: (?!-)(\S+))?", text, re.M):
        assert command in get_command(app).commands  # type: ignore[attr-defined]
        if cell:
            cells.cell(cell)
    most = 120 if cells.switched_off else 20  # many devices, or one small network
    assert len((example / "params.yaml").read_text().splitlines()) <= most
