"""Generate the dvc.yaml of a clone of the repository from the table of stages: one DVC stage per stage and cell."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml

from tasks.table import STAGES
from tvmflow.config.keys import written_part
from tvmflow.config.params import Params, load_params
from tvmflow.pipeline.recipe_key import code_of
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.stage import AnyStage

_SLUG = "${item.model}.${item.target}.${item.precision}"
HEADER = """\
# Written by `make pipeline` from the table of stages; do not edit. A test compares it with tasks/. The cells come from
# nothing but params.yaml: run one with `dvc repro build@NAME`, all with `dvc repro`. foreach and not matrix, because
# with it a stage is named after its cell (build@digits) and depends on the parameters of its own model and target only;
# the names of a matrix over records would be build@cell0, build@cell1.
"""
_OFF = """\
# Where params.yaml has cells with `enabled: false`, the others are listed here: DVC cannot choose among `cells:`.
"""


def pipeline(params: Params | None = None) -> dict[str, Any]:
    """Return dvc.yaml as a value. params: whose cells with `enabled: false` get no stages."""
    chosen = params is not None and bool(params.switched_off)
    each = "${enabled}" if chosen else "${cells}"
    stages = {name: {"foreach": each, "do": stage_entry(stage)} for name, stage in STAGES.items()}
    if params is None or not chosen:
        return {"stages": stages}
    cells = {name: cell.model_dump(mode="json") for name, cell in params.cells.items()}
    return {"vars": [{"enabled": cells}], "stages": stages}


def stage_entry(stage: AnyStage, program: str = "python -m tasks") -> dict[str, Any]:
    entry: dict[str, Any] = {
        "cmd": f"{program} {stage.name} ${{item.model}}@${{item.target}}:${{item.precision}}",
        "deps": [*_code(stage), *inputs_of(stage)],
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


def inputs_of(stage: AnyStage) -> list[str]:
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


def render(params: Params | None = None) -> str:
    """Return the text of dvc.yaml."""
    header = HEADER + (_OFF if params is not None and params.switched_off else "")
    return header + yaml.safe_dump(pipeline(params), sort_keys=False, width=200)


if __name__ == "__main__":
    sys.stdout.write(render(load_params(Path("params.yaml"))))
