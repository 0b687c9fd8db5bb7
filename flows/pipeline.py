"""Generate dvc.yaml from the table of stages: one DVC stage per stage and cell of params.yaml."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import yaml

from tasks.table import STAGES
from tvmflow.config.keys import written_part
from tvmflow.config.params import Params
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.recipe_key import code_of
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.stage import AnyStage
from tvmflow.support.files import digest_of, write_atomic

_SLUG = "${item.model}.${item.target}.${item.precision}"
HEADER = """\
# Written by `make pipeline` from the table of stages; do not edit. A test compares it with tasks/. The cells come from
# nothing but params.yaml: run one with `dvc repro build@NAME`, all with `dvc repro`. foreach and not matrix, because
# with it a stage is named after its cell (build@digits) and depends on the parameters of its own model and target only;
# the names of a matrix over records would be build@cell0, build@cell1.
"""
PROJECT_HEADER = """\
# Written by tvmflow from params.yaml; do not edit, it is written anew. Run a cell with `dvc repro build@NAME`, all with
# `dvc repro`.
"""
CODE_FILE = "code.json"


def pipeline() -> dict[str, Any]:
    """Return dvc.yaml as a value."""
    return {"stages": {name: {"foreach": "${cells}", "do": _stage(stage)} for name, stage in STAGES.items()}}


def project_pipeline(params: Params) -> dict[str, Any]:
    """Return dvc.yaml of a workspace whose code is installed elsewhere.

    Its params.yaml may omit any key. So the cells are written in dvc.yaml, and a stage depends on all of params.yaml
    (the recipe key decides what matters) and on the digest of its code in code.json.
    """
    cells = {name: cell.model_dump(mode="json") for name, cell in params.cells.items()}
    stages = {}
    for name, stage in STAGES.items():
        do = _stage(stage, "python -P -m tasks")  # -P: do not import a folder tasks/ of the workspace
        do |= {"deps": _inputs(stage), "params": [{"params.yaml": None}, {CODE_FILE: [name]}]}
        stages[name] = {"foreach": cells, "do": {key: value for key, value in do.items() if value}}
    return {"stages": stages if cells else {}}


def code_digests() -> dict[str, str]:
    """Return stage -> digest of its code."""
    return {name: digest_of(code_of(stage.module, stage.runs)) for name, stage in STAGES.items()}


def refresh(workspace: Workspace) -> bool:
    """Rewrite dvc.yaml and code.json of a workspace if tvmflow generates them; return whether it does.

    It does not in a clone of the repository, nor if a user wrote dvc.yaml by hand.
    """
    path = workspace.root / "dvc.yaml"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(PROJECT_HEADER.splitlines()[0]):
        return False
    text = PROJECT_HEADER + yaml.safe_dump(project_pipeline(workspace.params), sort_keys=False, width=200)
    for file, new in ((path, text), (workspace.root / CODE_FILE, json.dumps(code_digests(), indent=1) + "\n")):
        if not file.exists() or file.read_text(encoding="utf-8") != new:
            write_atomic(file, new)
    return True


def _stage(stage: AnyStage, program: str = "python -m tasks") -> dict[str, Any]:
    entry: dict[str, Any] = {
        "cmd": f"{program} {stage.name} ${{item.model}}@${{item.target}}:${{item.precision}}",
        "deps": [*_code(stage), *_inputs(stage)],
        "params": params_of(stage),
    }
    folder = f"artifacts/{stage.name}/{_SLUG}"
    if not stage.outputs:
        return entry | {"outs": [folder]}
    plain = [output.name for output in stage.outputs if not output.is_metric and output.plot is None]
    entry["outs"] = [f"{folder}/{name}" for name in (*plain, RECORD_NAME)]
    if stage.keeps_log:
        entry["outs"].append({f"artifacts/tuning_log/{_SLUG}.jsonl": {"persist": True}})
    metrics = [f"{folder}/{output.name}" for output in stage.outputs if output.is_metric]
    plots = [{f"{folder}/{output.name}": dict(output.plot)} for output in stage.outputs if output.plot is not None]
    return entry | ({"metrics": metrics} if metrics else {}) | ({"plots": plots} if plots else {})


def _code(stage: AnyStage) -> list[str]:
    """Return the code of a stage, by folder of the package, as in its recipe key."""
    places = set()
    for file in code_of(stage.module, stage.runs):
        parts = file.split("/")
        places.add("/".join(parts[:2]))
    return sorted(places)


def _inputs(stage: AnyStage) -> list[str]:
    paths = []
    for source, only in stage.inputs.items():
        folder = f"artifacts/{source}/{_SLUG}"
        if only is None or not STAGES[source].outputs:
            paths.append(folder)
        else:
            paths += [f"{folder}/{name}" for name in only]
    return paths


def params_of(stage: AnyStage) -> list[str]:
    """Return the keys whose change makes DVC run the stage: those that it reads, or the enclosing block of an optional
    key.

    DVC rejects missing keys. Limits of a stage are not included.
    """
    keys = {written_part(key) for key in stage.reads}
    outermost = [key for key in keys if not any(key.startswith(f"{other}.") for other in keys)]
    return [re.sub(r"{(\w+)}", r"${item.\1}", key) for key in sorted(outermost)]


def render() -> str:
    """Return the text of dvc.yaml."""
    return HEADER + yaml.safe_dump(pipeline(), sort_keys=False, width=200)


if __name__ == "__main__":
    sys.stdout.write(render())
