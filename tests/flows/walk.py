"""Run all stages of a cell in this process."""

from __future__ import annotations

import json
from typing import Any

from tasks.table import STAGES
from tvmflow.config.workspace import Workspace
from tvmflow.evaluation.import_model import read_model
from tvmflow.pipeline.stage import StageContext
from tvmflow.support.progress import silent


def walk(workspace: Workspace, name: str) -> dict[str, Any]:
    """Run all stages of a cell as the store does, but in this process; return the scorecard."""
    cell = workspace.params.cell(name)
    for stage in STAGES.values():
        out = workspace.folder(stage.name, cell)
        out.mkdir(parents=True)
        inputs = {source: workspace.folder(source, cell) for source in stage.inputs}
        settings, limits = stage.settings(workspace, cell), stage.limits(workspace, cell)
        if stage.name == "import_model":  # what runs in the sandbox
            read_model(str(inputs["fetch"]), str(out), settings.max_relative_error, silent)
            continue
        log = workspace.tuning_log(cell)
        stage.run(StageContext(cell, settings, limits, inputs, out, workspace.root, log, silent))
    card: dict[str, Any] = json.loads((workspace.folder("evaluate", cell) / "scorecard.json").read_text())
    return card
