"""Test a workspace of `tvmflow new` at the size of a team: linear growth of DVC's files, independent cells."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench.team_scale import SyntheticWorkspace
from flows.project_pipeline import refresh
from flows.recording import record
from tvmflow.config.params import STAGE_NAMES
from tvmflow.config.workspace import Workspace
from tvmflow.frontends.registry import tools_of
from tvmflow.tracking.dvc import pipelines
from tvmflow.tracking.dvc import repository as dvc


def _lock_bytes(root: Path, cells: int) -> float:
    """Return the bytes of all dvc.lock files per cell, after cells were recorded."""
    made = SyntheticWorkspace(root, cells)
    for cell in made.cells:
        made.leave(cell)
    assert record(made.workspace, made.cells, STAGE_NAMES) == {}
    return sum(path.stat().st_size for path in root.rglob("dvc.lock") if path.parent.name != ".locks") / cells


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return a workspace of four recorded cells, and the bytes of its dvc.lock files per cell."""
    root = tmp_path_factory.mktemp("four")
    return root, _lock_bytes(root, 4)


def _edit(root: Path, old: str, new: str) -> Workspace:
    path = root / "params.yaml"
    path.write_text(path.read_text().replace(old, new))
    workspace = Workspace(root)
    refresh(workspace)
    return workspace


def test_the_locks_grow_with_the_cells(four: tuple[Path, float], tmp_path: Path) -> None:
    assert four[1] < 10e6 / 600
    assert _lock_bytes(tmp_path / "one", 1) == pytest.approx(four[1], rel=0.1)
    sizes = []
    for cells in (15, 60):
        root = tmp_path / str(cells)
        refresh(SyntheticWorkspace(root, cells).workspace)
        sizes.append(sum(path.stat().st_size for path in (root / "pipelines").rglob("*.*")))
    assert sizes[1] == pytest.approx(4 * sizes[0], rel=0.02)


def test_settings_are_those_of_the_cell(four: tuple[Path, float]) -> None:
    path = pipelines.settings_folder(Workspace(four[0])) / "m000.json"
    before = yaml.safe_load(path.read_text())
    try:
        _edit(four[0], "    threads: 2\n", "    threads: 1\n")  # t01, t03
        after = yaml.safe_load(path.read_text())
    finally:
        _edit(four[0], "    threads: 1\n", "    threads: 2\n")
    assert [target for target in before if before[target] != after[target]] == ["t01", "t03"]
    of_one = before["t01"]["float32"], after["t01"]["float32"]
    assert {name for name in STAGE_NAMES if of_one[0][name] != of_one[1][name]} == {
        "graph_pack",
        "tune",
        "build",
        "deploy",
        "evaluate",
    }


def test_removed_and_renamed_cells_fail_nothing_and_leave_no_stage(tmp_path: Path) -> None:
    _lock_bytes(tmp_path, 2)
    workspace = _edit(tmp_path, "t01", "renamed")
    cells = list(workspace.params.cells.values())
    assert "t01" not in (tmp_path / "dvc.lock").read_text() + (tmp_path / "pipelines/m000/dvc.lock").read_text()
    assert [dvc.is_published(workspace, cell) for cell in cells] == [True, False]
    workspace = _edit(tmp_path, "m000", "other")
    assert not (tmp_path / "pipelines/m000").exists() and (tmp_path / "pipelines/other/dvc.yaml").exists()
    assert record(workspace, list(workspace.params.cells.values()), STAGE_NAMES) == {}


def test_an_unlisted_cell_that_was_run_stays(four: tuple[Path, float]) -> None:
    cell = Workspace(four[0]).params.cell("m000-t02")
    workspace = _edit(four[0], "  m000-t02:\n    model: m000\n    target: t02\n    precision: float32\n", "")
    stages = yaml.safe_load((four[0] / "pipelines/m000/dvc.lock").read_text())["stages"]
    assert f"build@{cell.slug}" in stages and dvc.is_published(workspace, cell)
    assert "t02" not in (four[0] / "pipelines/cells.json").read_text(), "dvc repro leaves it alone"


def test_versions_in_a_key_are_those_that_the_network_uses() -> None:
    assert "torchvision" in tools_of("torch", "torchvision/resnet18")
    assert "torchvision" in tools_of("torch", "nets.py:make"), "a file may import it"
    assert "torchvision" not in (*tools_of("torch", "digits_cnn"), *tools_of("torch", None))
