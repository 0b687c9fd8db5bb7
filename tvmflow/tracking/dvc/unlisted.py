"""Maintain unlisted/dvc.yaml: DVC stages of cells that were run but are not under `cells:` of params.yaml.

They are the stages of dvc.yaml for these cells. They are in a separate file because `dvc repro` must run listed cells
only; `dvc status`, `push`, `pull` and `gc` see both. A cell that becomes listed moves over.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from pydantic import ValidationError

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.support.errors import StoreError
from tvmflow.support.files import write_atomic

FOLDER = "unlisted"
_HEADER = (
    "# Written by tvmflow: the stages of dvc.yaml for cells that were run and are not under cells: in params.yaml.\n"
)


def stage_name(workspace: Workspace, stage: str, cell: Cell) -> str:
    """Return the DVC name of a stage of a cell."""
    name = workspace.params.cell_name(cell)
    return f"{stage}@{name}" if name is not None else f"{FOLDER}/dvc.yaml:{stage}@{cell.slug}"


def lock_path(workspace: Workspace, cell: Cell) -> Path:
    """Return the dvc.lock of a cell."""
    listed = workspace.params.cell_name(cell) is not None
    return workspace.root / "dvc.lock" if listed else workspace.root / FOLDER / "dvc.lock"


def keep(workspace: Workspace, cells: list[Cell]) -> None:
    """Rewrite unlisted/dvc.yaml: add unlisted ones of the cells, remove those that are now listed."""
    lock = workspace.artifacts / ".locks" / "unlisted.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(lock):
        path = workspace.root / FOLDER / "dvc.yaml"
        known = {cell.slug: cell for cell in [*_known_stages(path), *cells] if workspace.params.cell_name(cell) is None}
        if not known:
            if path.exists():
                shutil.rmtree(path.parent)
            return
        each = {slug: cell.model_dump(mode="json") for slug, cell in sorted(known.items())}
        stages = _read(workspace.root / "dvc.yaml")["stages"]
        for stage in stages.values():
            stage["foreach"] = each
            stage["do"] = {"wdir": "..", **stage["do"]}
        text = _HEADER + yaml.safe_dump({"stages": stages}, sort_keys=False, width=200)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomic(path, text)


def _known_stages(path: Path) -> list[Cell]:
    if not path.exists():
        return []
    stages = _read(path)["stages"]
    try:
        return [Cell.model_validate(cell) for stage in stages.values() for cell in stage["foreach"].values()]
    except (ValidationError, KeyError, TypeError, AttributeError):
        raise _damaged_error(path) from None


def _read(path: Path) -> dict[str, Any]:
    try:
        pipeline = yaml.safe_load(path.read_text(encoding="utf-8"))
        if all(isinstance(stage["do"], dict) for stage in pipeline["stages"].values()):
            return dict(pipeline)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError):
        pass
    raise _damaged_error(path)


def _damaged_error(path: Path) -> StoreError:
    return StoreError(
        f"{path} is damaged", "the file as written by tvmflow", f"restore it with 'git checkout {path.name}'"
    )
