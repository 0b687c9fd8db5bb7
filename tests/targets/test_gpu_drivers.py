"""Test that the driver of a GPU is in the keys of what is measured on it, and what a damaged file of drivers says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.table import STAGES
from tvmflow.config.workspace import Workspace
from tvmflow.devices.gpu_facts import Gpu
from tvmflow.devices.probe_driver import keep_driver
from tvmflow.pipeline.recipe_key import changed_parts
from tvmflow.pipeline.recipe_now import recipe_now
from tvmflow.support.errors import StoreError
from tvmflow.targets.gpu_drivers import DRIVERS_FILE, known_drivers, note_driver

TARGET = "local-opencl"


def gpu(version: str, api: str = "opencl", works: bool = True) -> Gpu:
    facts = {"name": "Mali-G78", "driver": "Mali", "version": version}
    return Gpu(api, "lib.so", facts, {"buffer": "ok" if works else "wrong values"})


def changes(workspace: Workspace, cell_name: str, change: Callable[[], None]) -> dict[str, list[str]]:
    """Return stage -> what a change does to its recipe."""
    cell = workspace.params.cell(cell_name)

    def recipes() -> dict[str, dict[str, object]]:
        return {
            name: recipe_now(workspace, stage, cell, stage.settings(workspace, cell), {})
            for name, stage in STAGES.items()
            if stage.is_cached
        }

    before = recipes()
    change()
    after = recipes()
    return {name: lines for name in before if (lines := changed_parts(before[name], after[name]))}


def test_an_upgrade_of_a_driver_changes_what_is_measured_on_its_gpu_only(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace()
    keep_driver(root, TARGET, "opencl", "one", [gpu("0", "vulkan"), gpu("1", works=False), gpu("2")])
    workspace = Workspace(root)

    def upgrade() -> None:
        keep_driver(root, TARGET, "opencl", "one", [gpu("3")])

    line = "params.gpu_driver: Mali 2 -> Mali 3"
    assert changes(workspace, f"digits_torch@{TARGET}:float32", upgrade) == {"tune": [line], "evaluate": [line]}
    assert changes(workspace, "digits_torch@local-cpu:float32", lambda: note_driver(root, TARGET, "one", "x")) == {}


def test_units_with_different_drivers_do_not_take_turns_at_the_key(tmp_path: Path) -> None:
    note_driver(tmp_path, TARGET, "two", "Mali 2")
    note_driver(tmp_path, TARGET, "one", "Mali 1")
    both = known_drivers(tmp_path, TARGET, "opencl")
    assert both == "Mali 1, Mali 2"
    before = (tmp_path / DRIVERS_FILE).stat().st_mtime_ns
    note_driver(tmp_path, TARGET, "two", "Mali 2")
    assert (tmp_path / DRIVERS_FILE).stat().st_mtime_ns == before and known_drivers(tmp_path, TARGET, "opencl") == both
    assert known_drivers(tmp_path, "another", "opencl") == "" == known_drivers(tmp_path, TARGET, "llvm")


@pytest.mark.parametrize("text", ["<<<<<<< HEAD\n{}", "[]", '{"a": 1}', "\xff"])
def test_a_damaged_file_of_drivers_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / DRIVERS_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match=f"{DRIVERS_FILE} cannot be read") as error:
        known_drivers(tmp_path, TARGET, "vulkan")
    assert "conflict" in error.value.hint
