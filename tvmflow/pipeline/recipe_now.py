"""Compute the recipe of a stage as of now, and what changed in it since a library was made.

In:  the digests of what the stage reads, from the folders of a workspace or from the records of a library
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.check_params import packages_of
from tvmflow.pipeline.recipe_key import changed_parts, make_recipe, recipe_key
from tvmflow.pipeline.record import Record
from tvmflow.pipeline.stage import AnyStage, settings_json
from tvmflow.toolchain import versions as toolchain


def recipe_now(
    workspace: Workspace, stage: AnyStage, cell: Cell, settings: Any, digests: Mapping[str, str]
) -> dict[str, Any]:
    """Return the recipe of a stage with the installed tools and code. digests: of what it reads, by stage."""
    tools = toolchain.versions(stage.toolchain(settings)) | packages_of(workspace.params, cell, stage.reads)
    return make_recipe(stage.name, digests, settings_json(settings), tools, stage.code(settings))


def changes_since(
    workspace: Workspace, cell: Cell, stages: Iterable[AnyStage], records: Mapping[str, Record]
) -> dict[str, list[str]]:
    """Return stage -> what changed in its recipe since the records of a library, for stages whose key differs.

    Each stage is asked with the inputs that the library's stages had, so the answer does not depend on what this
    workspace holds. Empty: running the stages again would give the same keys. Raises the error of a cell that cannot
    be run.
    """
    changes = {}
    for stage in stages:
        settings = stage.settings(workspace, cell)
        known = records.get(stage.name)
        if known is None:
            changes[stage.name] = ["its record is missing"]
            continue
        try:
            digests = {source: records[source].digest(only) for source, only in stage.inputs.items()}
        except KeyError as missing:
            changes[stage.name] = [f"reads {missing}, which was not recorded"]
            continue
        recipe = recipe_now(workspace, stage, cell, settings, digests)
        if recipe_key(recipe) != known.key:
            changes[stage.name] = changed_parts(known.recipe, recipe)
    return changes
