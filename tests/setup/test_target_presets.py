"""Test the targets that come with the package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.conftest import REPOSITORY, tvmflow
from tvmflow import api
from tvmflow.backends.registry import backend_for
from tvmflow.config.params import load_params
from tvmflow.setup.target_presets import needs_of, presets
from tvmflow.support.errors import UnknownNameError


def _onnx(path: Path) -> None:
    from onnx import helper, numpy_helper

    weights = [numpy_helper.from_array(np.ones((4, 1, 3, 3), np.float32), "w")]
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", (1, 1, 8, 8)), ("y", (1, 4, 6, 6))))
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def test_the_package_has_the_targets_of_the_repository_and_says_what_each_is_for() -> None:
    shipped = yaml.safe_load((REPOSITORY / "params.yaml").read_text())["targets"]
    assert {name: preset.entry for name, preset in presets().items()} == shipped
    assert [name for name, preset in presets().items() if len(preset.note) < 10] == []


def test_every_preset_can_be_written_and_resolved(tmp_path: Path) -> None:
    root = api.new_workspace(tmp_path / "new", list(presets())).root
    targets = load_params(root / "params.yaml").targets
    assert targets == {name: preset.target for name, preset in presets().items()}
    assert all(backend_for(target).target.mtriple for target in targets.values())


def test_needs_are_what_is_there_or_one_thing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = needs_of(presets()["local-cpu"].target)
    assert here.can_build and here.can_measure and not here.hints
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("ANDROID_HOME", "ANDROID_SDK_ROOT", "ANDROID_NDK_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    phone = needs_of(presets()["android-arm64"].target)
    assert not phone.can_measure and "adb" in phone.device and any("adb" in hint for hint in phone.hints)
    board = needs_of(presets()["raspberry-pi-5"].target)
    assert not board.can_measure and "tracker" in board.device and board.hints


def test_a_model_is_added_for_a_preset(tmp_path: Path) -> None:
    root = api.new_workspace(tmp_path / "new").root
    before = (root / "params.yaml").read_text()
    _onnx(root / "small.onnx")
    with pytest.raises(UnknownNameError, match="unknown target 'rasberry-pi-5'") as error:
        api.add_model(root / "small.onnx", root, target="rasberry-pi-5")
    assert "raspberry-pi-5" in str(error.value) and (root / "params.yaml").read_text() == before
    added = api.add_model(root / "small.onnx", root, target="raspberry-pi-5")
    assert str(added.cell) == "small@raspberry-pi-5:float32"
    params = load_params(root / "params.yaml")
    assert params.targets["raspberry-pi-5"] == presets()["raspberry-pi-5"].target


def test_a_workspace_with_an_unknown_target_is_not_begun(tmp_path: Path) -> None:
    done = tvmflow(tmp_path, "new", str(tmp_path / "new"), "--target", "raspberry", code=2)
    assert "raspberry-pi-5" in done.stderr and not (tmp_path / "new").exists()


def test_the_list_says_which_are_written(tmp_path: Path) -> None:
    root = api.new_workspace(tmp_path / "new", ["linux-arm64"]).root
    found = {one["name"]: one for one in json.loads(tvmflow(root, "targets", "--json").stdout)}
    assert found.keys() >= presets().keys()
    assert [name for name, one in found.items() if one["is_written"]] == ["local-cpu", "linux-arm64"]
    assert found["local-cpu"]["can_measure"] and not found["linux-arm64"]["can_measure"]
