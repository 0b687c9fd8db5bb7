"""Run a stage in a folder of its own on a Dask worker: `python -m tasks.stage_elsewhere FOLDER N`.

In:  request.json, and in/STAGE/ with what the stage reads
Out: out/; progress, and the facts or the error at the end, as lines of JSON on the file descriptor N
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from tasks.dask_worker import OUT, REQUEST
from tasks.events import Tell, tell_waits, teller
from tasks.table import STAGES
from tasks.worker_tools import check_recipe
from tvmflow.config.params import Cell
from tvmflow.devices.device_lock import describe_work
from tvmflow.devices.this_host import hold_host_for_stage
from tvmflow.pipeline.stage import AnyStage, StageContext
from tvmflow.support.errors import TvmflowError
from tvmflow.support.json_values import adapter
from tvmflow.support.secrets import mask_process
from tvmflow.support.tvm_import import prepare_import_of_tvm


def main(folder: Path, descriptor: int) -> None:
    """Run the stage of a folder."""
    mask_process()
    prepare_import_of_tvm()
    tell = teller(descriptor)
    tell_waits(tell)
    stage, context, recipe = read_request((folder / REQUEST).read_text(encoding="utf-8"), folder, tell)
    describe_work(f"Dask {context.cell.slug} {stage.name}")
    try:
        check_recipe(stage, context.settings, recipe)
        with hold_host_for_stage(alone=False):
            facts = stage.run(context)
    except TvmflowError as error:
        tell({"error": error.to_json()})
        sys.exit(error.exit_code)
    tell({"facts": facts})


def request_of(stage: AnyStage, context: StageContext[Any, Any], recipe: Mapping[str, Any]) -> str:
    """Return what a stage is asked for, as JSON."""
    kinds = {"cell": Cell, "settings": _kind(stage.settings), "limits": _kind(stage.limits)}
    parts = {name: adapter(kind).dump_python(getattr(context, name), mode="json") for name, kind in kinds.items()}
    return json.dumps({"stage": stage.name, "recipe": recipe, "reads": list(context.inputs), **parts})


def read_request(text: str, folder: Path, tell: Tell) -> tuple[AnyStage, StageContext[Any, Any], dict[str, Any]]:
    """Return the stage, its context in a folder, and its recipe."""
    request = json.loads(text)
    stage = STAGES[request["stage"]]

    def part(name: str, kind: Any) -> Any:
        return adapter(kind).validate_json(json.dumps(request[name]))  # where a list is a tuple, unlike in Python

    context = StageContext(
        cell=part("cell", Cell),
        settings=part("settings", _kind(stage.settings)),
        limits=part("limits", _kind(stage.limits)),
        inputs={source: folder / "in" / source for source in request["reads"]},
        out=folder / OUT,
        root=folder,
        tuning_log=folder / "tuning_log.jsonl",
        progress=lambda text, done, total: tell({"progress": [text, done, total]}),
    )
    return stage, context, request["recipe"]


def _kind(function: Callable[..., Any]) -> Any:
    """Return the type of what a function of a stage's row returns."""
    return get_type_hints(function)["return"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
