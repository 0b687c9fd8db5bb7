"""dvc.yaml, written from the table of stages: one stage of DVC per stage and cell of params.yaml."""

from __future__ import annotations

import sys
from typing import Any

import yaml

from tasks.table import STAGES
from tvmflow.artifacts import RECORD_NAME
from tvmflow.recipe import code_of
from tvmflow.stages import Stage

_SLUG = "${item.model}.${item.target}.${item.precision}"
# Stages whose outputs are named one by one: what the next stage needs, what is a metric, what is a plot.
_FILES = {
    "tune": ["best.json", "curve.csv", "workloads.json", RECORD_NAME],
    "evaluate": ["scorecard.json", "metrics.json", "confusion.csv", "latency.csv", RECORD_NAME],
}
_METRICS = {"metrics.json"}
_PLOTS: dict[str, dict[str, str]] = {
    "curve.csv": {"x": "trial", "y": "kernels_ms", "title": "time of all kernels while tuning"},
    "confusion.csv": {"x": "actual", "y": "predicted", "template": "confusion", "title": "confusion"},
    "latency.csv": {"x": "median_ms", "y": "what", "template": "bar_horizontal", "title": "median latency"},
}
_MODEL_PARAMS = {"fetch", "import_model", "evaluate"}
_TARGET_PARAMS = {"tune", "build", "deploy", "evaluate"}
_BLOCK_PARAMS = {"graph_pack": ["graph_pack", "quantize.max_relative_error"], "deploy": ["deploy", "build"]}
HEADER = """\
# Written by `make pipeline` from the table of stages; do not edit. A test compares it with tasks/.
# The cells come from nothing but params.yaml: run one with `dvc repro build@NAME`, all with `dvc repro`.
# foreach and not matrix, because with it a stage is named after its cell (build@digits) and depends on the parameters of
# its own model and target only; the names of a matrix over records would be build@cell0, build@cell1.
"""


def pipeline() -> dict[str, Any]:
    """Return dvc.yaml as a value."""
    return {"stages": {name: {"foreach": "${cells}", "do": _stage(stage)} for name, stage in STAGES.items()}}


def _stage(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cmd": f"python -m tasks.{stage.name} ${{item.model}}@${{item.target}}:${{item.precision}}",
        "deps": [*_code(stage), *_inputs(stage)],
        "params": _params(stage.name),
    }
    folder = f"artifacts/{stage.name}/{_SLUG}"
    files = _FILES.get(stage.name)
    if files is None:
        return found | {"outs": [folder]}
    found["outs"] = [f"{folder}/{name}" for name in files if name not in _METRICS and name not in _PLOTS]
    if stage.name == "tune":
        found["outs"].append({f"artifacts/tuning_log/{_SLUG}.jsonl": {"persist": True}})
    metrics = [f"{folder}/{name}" for name in files if name in _METRICS]
    plots = [{f"{folder}/{name}": _PLOTS[name]} for name in files if name in _PLOTS]
    return found | ({"metrics": metrics} if metrics else {}) | ({"plots": plots} if plots else {})


def _code(stage: Stage) -> list[str]:
    """Return the code that the stage uses, by folder of the library: the same that is in its recipe key."""
    places = set()
    for file in code_of(stage.module):
        parts = file.split("/")
        places.add("/".join(parts[:2]))
    return sorted(places)


def _inputs(stage: Stage) -> list[str]:
    found = []
    for source, only in stage.inputs.items():
        folder = f"artifacts/{source}/{_SLUG}"
        if only is None or source not in _FILES:
            found.append(folder)
        else:
            found += [f"{folder}/{name}" for name in only]
    return found


def _params(stage: str) -> list[str]:
    found = list(_BLOCK_PARAMS.get(stage, [stage]))
    if stage in _MODEL_PARAMS:
        found.append("models.${item.model}")
    if stage in _TARGET_PARAMS:
        found.append("targets.${item.target}")
    return found


def render() -> str:
    """Return the text of dvc.yaml."""
    return HEADER + yaml.safe_dump(pipeline(), sort_keys=False, width=200)


if __name__ == "__main__":
    sys.stdout.write(render())
