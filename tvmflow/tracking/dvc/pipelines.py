"""Name the DVC stages and files of cells.

A workspace of `tvmflow new` has a dvc.yaml and a dvc.lock per model, in pipelines/MODEL/, so that DVC reads and writes
only the cells of one model when one of them is recorded. `flows.project_pipeline` writes them. A clone of the
repository has one dvc.yaml, and unlisted/ for cells that are not under `cells:`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.files import write_atomic
from tvmflow.tracking.dvc import unlisted

FOLDER = "pipelines"
SETTINGS = "_settings"  # no model's name starts with an underscore
SETTINGS_STAGE = "settings"  # the stage of dvc.yaml that writes pipelines/_settings/
CELL_STAGE = "cell"  # the stages of dvc.yaml that depend on all stages of a cell
_NAMES = re.compile(r"^  \w+@([\w.-]+):$", re.MULTILINE)
_LOCKED = re.compile(r"^  \w+@([\w-]+)\.([\w-]+)\.([\w-]+):$", re.MULTILINE)


def model_file(workspace: Workspace, model: str) -> Path:
    """Return the dvc.yaml of a model."""
    return workspace.root / FOLDER / model / "dvc.yaml"


def settings_folder(workspace: Workspace) -> Path:
    """Return the folder of the digests of the settings of each stage, a file per model."""
    return workspace.root / FOLDER / SETTINGS


def stage_name(workspace: Workspace, stage: str, cell: Cell) -> str:
    """Return the DVC name of a stage of a cell."""
    path = model_file(workspace, cell.model)
    if path.is_file():
        return f"{path.relative_to(workspace.root).as_posix()}:{stage}@{cell.slug}"
    return unlisted.stage_name(workspace, stage, cell)


def lock_path(workspace: Workspace, cell: Cell) -> Path:
    """Return the dvc.lock of a cell."""
    path = model_file(workspace, cell.model)
    return path.with_suffix(".lock") if path.is_file() else unlisted.lock_path(workspace, cell)


def stages_above(workspace: Workspace, cells: Iterable[Cell]) -> list[str]:
    """Return the stages of the top dvc.yaml that follow from the stages of cells, if it has any."""
    if not (workspace.root / FOLDER).is_dir():
        return []
    slugs = {cell.slug for cell in cells}
    listed = [name for name, cell in workspace.params.cells.items() if cell.slug in slugs]
    return [SETTINGS_STAGE, *(f"{CELL_STAGE}@{name}" for name in listed)]


def locked_cells(workspace: Workspace) -> list[Cell]:
    """Return the cells that the dvc.lock files of the models name and params.yaml has: they were run."""
    params, found = workspace.params, dict[str, Cell]()
    for path in sorted((workspace.root / FOLDER).glob("*/dvc.lock")):
        for model, target, precision in dict.fromkeys(_LOCKED.findall(path.read_text(encoding="utf-8"))):
            if model == path.parent.name and model in params.models and target in params.targets:
                try:
                    cell = Cell(model=model, target=target, precision=precision)
                except ValidationError:
                    continue
                found[cell.slug] = cell
    return list(found.values())


def drop_stages(lock: Path, kept: Container[str]) -> None:
    """Drop the stages of a dvc.lock whose cell, by its name behind the @, is not kept."""
    if not lock.is_file():
        return
    text = lock.read_text(encoding="utf-8")
    if all(name in kept for name in _NAMES.findall(text)):
        return
    content = yaml.load(text, Loader=yaml.CSafeLoader)
    stages = content.get("stages") or {}
    content["stages"] = {name: one for name, one in stages.items() if "@" not in name or name.split("@")[1] in kept}
    write_atomic(lock, lock_text(content))


def lock_text(content: Mapping[str, Any]) -> str:
    """Return the text of a dvc.lock as DVC writes it, with libyaml instead of Python: 30 times faster."""
    return str(
        yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, default_flow_style=False, allow_unicode=True)
    )
