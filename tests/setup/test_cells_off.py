"""Test cells with `enabled: false`: passed over, shown, and told what they lack."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.project_pipeline import refresh
from flows.stage_tasks import cells_of
from tasks.table import STAGES
from tests.conftest import REPOSITORY
from tvmflow import api
from tvmflow.config.params import load_params
from tvmflow.config.workspace import Workspace
from tvmflow.setup.doctor import cells_switched_off
from tvmflow.support.errors import ParamsError

OFF = {"model": "digits_torch", "target": "rk3399", "precision": "float32", "enabled": False, "needs": "a board"}


def _change(params: dict[str, Any]) -> None:
    params["cells"]["digits"]["enabled"] = True
    params["cells"]["board"] = dict(OFF)
    params["targets"]["rk3399"]["cc"] = "no-such-compiler"
    params["models"]["mine"] = {
        "framework": "onnx",
        "weights": {"file": "mine.onnx"},
        "input": {"shape": [1, 3, 8, 8]},
    }
    params["cells"]["mine"] = {**OFF, "model": "mine", "target": "local-cpu"}


def test_a_cell_that_is_off_is_passed_over_and_shown(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace(_change)
    workspace = Workspace(root)
    listed = ["digits_torch@local-cpu:float32", "digits_keras@local-cpu:float32"]
    assert [str(cell) for cell in workspace.params.cells.values()] == listed
    assert cells_of(workspace, None) == listed
    assert str(workspace.params.cell("board")) == "digits_torch@rk3399:float32", "whoever names it gets it"
    assert refresh(workspace)
    pipelines = {path.name: path.read_text() for path in (root / "pipelines").rglob("*") if path.is_file()}
    assert "digits_torch" in pipelines["cells.json"], pipelines
    assert not [name for name, text in pipelines.items() if "rk3399" in text], "DVC has no stages of it"
    rows = {row.name: row for row in api.status(root).cells}
    assert rows["board"].off == "a board" and rows["digits"].off is None and rows["board"].todo == ()


def test_a_clones_dvc_stages_are_those_of_cells_that_are_on(tmp_path: Path) -> None:
    """One line of params.yaml switches a cell; any command that runs cells, or `make pipeline`, makes its stages."""
    text = (REPOSITORY / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text)
    shutil.copyfile(REPOSITORY / "dvc.yaml", tmp_path / "dvc.yaml")
    for folder in ("tasks", "tvmflow"):
        (tmp_path / folder).mkdir()
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)

    listed = subprocess.run([*dvc, "stage", "list", "--name-only"], cwd=tmp_path, capture_output=True, check=True)
    built = {name.removeprefix("build@") for name in listed.stdout.decode().split() if name.startswith("build@")}
    off = Workspace(tmp_path).params.switched_off
    assert built == {*Workspace(tmp_path).params.cells} and len(off) == 9 and not built & {*off}
    on = text.replace("precision: float32, enabled: false, needs: an RK3399 board}", "precision: float32}")
    assert on != text
    (tmp_path / "params.yaml").write_text(on)
    assert not refresh(Workspace(tmp_path))
    [chosen] = yaml.safe_load((tmp_path / "dvc.yaml").read_text())["vars"]
    assert {*chosen["enabled"]} - built == {"rk3399"}
    (tmp_path / "params.yaml").write_text(text)
    refresh(Workspace(tmp_path))
    assert (tmp_path / "dvc.yaml").read_text() == (REPOSITORY / "dvc.yaml").read_text()
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    refresh(Workspace(tmp_path))
    assert (tmp_path / "dvc.yaml").read_text() == "stages: {}\n", "written by hand"


def test_the_doctor_says_all_that_each_lacks(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace(_change)
    board, mine = cells_switched_off(root, list(STAGES.values()))
    assert board.what == "cell board, off" and board.level == "ok"
    assert "no-such-compiler" in board.found and "no RPC tracker" in board.found and "mine.onnx" in mine.found


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"enabled": "no"}, "cells.board.enabled"),
        ({"needs": "two\nlines"}, "needs"),
        ({"model": "nope"}, "cells.board: unknown model 'nope'"),
        ({"precission": "float32"}, "precission"),
    ],
)
def test_what_is_wrong_with_a_cell_that_is_off_is_told(
    change: dict[str, Any], text: str, make_workspace: Callable[..., Path]
) -> None:
    root = make_workspace(lambda params: params["cells"].update(board=OFF | change))
    with pytest.raises(ParamsError, match=text):
        load_params(root / "params.yaml")


@pytest.mark.parametrize("place", [".", "examples/documents"])
def test_the_documents_cells_stand_ready(place: str) -> None:
    params = load_params(REPOSITORY / place / "params.yaml")
    off = params.switched_off
    assert {*off} == {
        *("android-cpu", "android-opencl", "android-vulkan", "adreno", "tensorflow-phone"),
        *("vta", "vta-cpu", "rk3399", "rk3399-mali"),
    }
    assert place == "." or list(params.cells) == ["here"]
    assert all(one.needs for one in off.values()) and not {*off} & {*params.cells}
