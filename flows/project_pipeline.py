"""Generate the DVC files of a workspace whose code is installed elsewhere.

Out: dvc.yaml                          stages that lead to the cells under `cells:`; the same in every workspace
     code.json                         stage -> digest of its code
     pipelines/cells.json              the cells under `cells:`
     pipelines/MODEL/dvc.yaml          all stages of the model's cells; dvc.lock is beside it
     pipelines/_settings/MODEL.json    target -> precision -> stage -> digest of the keys of params.yaml that it reads

params.yaml may omit any key, and DVC refuses to watch missing ones. So a stage depends on a digest of the values that
it reads, defaults included. `dvc repro` makes the digests anew when params.yaml changes (stage `settings`).
`python -m flows.project_pipeline` is what it runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.pipeline import HEADER as CLONE_HEADER
from flows.pipeline import inputs_of, render, stage_entry
from tasks.table import STAGES
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace, find_workspace
from tvmflow.pipeline.recipe_key import code_of
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.files import digest_of, write_atomic
from tvmflow.support.own_packages import own_module
from tvmflow.tracking.dvc import pipelines, unlisted

HEADER = """\
# Written by tvmflow; do not edit, it is written anew. Run a cell with `dvc repro cell@NAME`, all with `dvc repro`.
"""
_MODEL_HEADER = "# Written by tvmflow from params.yaml; do not edit, it is written anew.\n"
_CODE_FILE = "code.json"
_PROGRAM = "python -P -m"  # -P: do not import a folder tasks/ of the workspace
_OLD_HEADER = "# Written by tvmflow from params.yaml;"


def refresh(workspace: Workspace, cells: Sequence[Cell] = ()) -> bool:
    """Rewrite the DVC files of a workspace if tvmflow generates them; return whether it does.

    It does not if a user wrote dvc.yaml by hand. In a clone of the repository, that file alone gets the cells that are
    enabled. Otherwise the files have the listed cells, those that were run, and `cells`. Cells that params.yaml cannot
    name any more are dropped, with their locks.
    """
    path = workspace.root / "dvc.yaml"
    if path.exists() and not (text := path.read_text(encoding="utf-8")).startswith((HEADER, _OLD_HEADER)):
        if text.startswith(CLONE_HEADER):
            _write(path, render(workspace.params))
        return False
    params = workspace.params
    by_model = _cells_by_model(workspace, cells)
    for file in (workspace.root / pipelines.FOLDER).glob("*/dvc.yaml"):
        if file.parent.name not in by_model:
            shutil.rmtree(file.parent)
    stages = yaml.dump({"stages": _model_stages()}, Dumper=yaml.CSafeDumper, sort_keys=False, width=200)
    for model, of_model in by_model.items():
        _write(pipelines.model_file(workspace, model), f"{_MODEL_HEADER}{_cells_text(of_model)}{stages}")
        pipelines.drop_stages(pipelines.model_file(workspace, model).with_suffix(".lock"), of_model)
    pipelines.drop_stages(path.with_suffix(".lock"), params.cells)
    listed = {name: {"cell": str(cell), "slug": cell.slug} for name, cell in params.cells.items()}
    _write(workspace.root / pipelines.FOLDER / "cells.json", json.dumps({"listed": listed}, indent=1) + "\n")
    _write(workspace.root / _CODE_FILE, json.dumps(code_digests(), indent=1) + "\n")
    write_settings(workspace, by_model)
    _write(path, HEADER + yaml.safe_dump(_top_pipeline(bool(listed)), sort_keys=False, width=200))
    shutil.rmtree(workspace.root / unlisted.FOLDER, ignore_errors=True)  # of an older version: its stages are now here
    return True


def _cells_by_model(workspace: Workspace, more: Sequence[Cell] = ()) -> dict[str, dict[str, Cell]]:
    """Return model -> slug -> cell, of the listed cells, those that were run, and `more`."""
    by_model: dict[str, dict[str, Cell]] = {}
    for cell in (*workspace.params.cells.values(), *pipelines.locked_cells(workspace), *more):
        by_model.setdefault(cell.model, {})[cell.slug] = cell
    return by_model


def write_settings(workspace: Workspace, by_model: Mapping[str, Mapping[str, Cell]]) -> None:
    """Write the digests of the settings of all stages of cells, by model and slug."""
    params = workspace.params.model_dump(mode="json")
    folder = pipelines.settings_folder(workspace)
    for file in folder.glob("*.json"):
        if file.stem not in by_model:
            file.unlink()
    for model, cells in by_model.items():
        tree: dict[str, dict[str, dict[str, str]]] = {}
        for _, cell in sorted(cells.items()):
            digests = {name: _settings_digest(params, stage, cell) for name, stage in STAGES.items()}
            tree.setdefault(cell.target, {})[cell.precision] = digests
        _write(folder / f"{model}.json", json.dumps(tree, indent=1) + "\n")


def code_digests() -> dict[str, str]:
    """Return stage -> digest of its code."""
    return {name: digest_of(code_of(stage.module, stage.runs)) for name, stage in STAGES.items()}


def _settings_digest(params: Mapping[str, Any], stage: AnyStage, cell: Cell) -> str:
    """Return a digest of the values of the keys of params.yaml that a stage reads, defaults included."""
    names = {"model": cell.model, "target": cell.target, "precision": cell.precision}
    values = {}
    for key in stage.reads:
        value: Any = params
        for part in key.format(**names).split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        values[key] = value.get(str(cell)) if key == "overrides" else value  # those of other cells are not its own
    return digest_of(values)[:16]  # of as many values as a workspace has edits: no two are equal by chance


def _model_stages() -> dict[str, Any]:
    """Return the stages of a model's dvc.yaml; the cells are in its `vars`."""
    stages = {}
    for name, stage in STAGES.items():
        settings = f"{pipelines.FOLDER}/{pipelines.SETTINGS}/${{item.model}}.json"
        do = stage_entry(stage, f"{_PROGRAM} {own_module('tasks')}") | {
            "deps": inputs_of(stage),
            "params": [{settings: [f"${{item.target}}.${{item.precision}}.{name}"]}, {_CODE_FILE: [name]}],
        }
        do = {"wdir": "../..", **{key: value for key, value in do.items() if value}}
        stages[name] = {"foreach": "${cells}", "do": do}
    return stages


def _cells_text(cells: Mapping[str, Cell]) -> str:
    each = {slug: cell.model_dump(mode="json") for slug, cell in sorted(cells.items())}
    return yaml.dump({"vars": [{"cells": each}]}, Dumper=yaml.CSafeDumper, sort_keys=False, width=200)


def _top_pipeline(has_cells: bool) -> dict[str, Any]:
    """Return dvc.yaml of the workspace: it leads to every stage of the listed cells whose outputs no other reads."""
    read = {source for stage in STAGES.values() for source in stage.inputs}
    last = [stage for name, stage in STAGES.items() if name not in read]
    made = [f"artifacts/{stage.name}/${{item.slug}}" + (f"/{RECORD_NAME}" if stage.outputs else "") for stage in last]
    settings = {
        "cmd": f"{_PROGRAM} {own_module('flows.project_pipeline')}",
        "deps": ["params.yaml"],
        "outs": [{f"{pipelines.FOLDER}/{pipelines.SETTINGS}": {"cache": False}}],
    }
    cell = {"foreach": "${listed}", "do": {"cmd": "echo ${item.cell} is up to date", "deps": made}}
    stages: dict[str, Any] = {pipelines.SETTINGS_STAGE: settings, pipelines.CELL_STAGE: cell}
    return {"vars": [f"{pipelines.FOLDER}/cells.json"], "stages": stages} if has_cells else {"stages": {}}


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomic(path, text)


def main() -> None:
    """Write the digests of the settings of the cells that the DVC files of the workspace name."""
    workspace = find_workspace()
    write_settings(workspace, _cells_by_model(workspace))


if __name__ == "__main__":
    main()
