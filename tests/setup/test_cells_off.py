"""Test cells with `enabled: false`: passed over, shown, and told what they lack."""

from __future__ import annotations

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
from tvmflow.config.params import Params, load_params
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


def test_the_documents_cells_stand_ready() -> None:
    params = Params.model_validate(yaml.safe_load((REPOSITORY / "examples" / "documents" / "params.yaml").read_text()))
    off = params.switched_off
    assert {*off} == {
        *("android-cpu", "android-opencl", "android-vulkan", "adreno", "tensorflow-phone"),
        *("vta", "vta-cpu", "rk3399", "rk3399-mali"),
    }
    assert list(params.cells) == ["here"]
    assert all(one.needs for one in off.values()) and not {*off} & {*params.cells}
