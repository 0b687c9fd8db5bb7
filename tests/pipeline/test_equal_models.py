"""Test that a model with the files of another has its own name in everything that names a cell."""

from __future__ import annotations

from pathlib import Path

import yaml

from tasks.table import STAGES
from tvmflow.config.workspace import Workspace
from tvmflow.pipeline.record import RECORD_NAME
from tvmflow.pipeline.store import Plan, Store


def test_a_model_with_the_files_of_another_shares_only_what_names_neither(copy_of_finished: Path) -> None:
    params = yaml.safe_load((copy_of_finished / "params.yaml").read_text())
    own = params["cells"]["digits"]
    params["models"]["twin"] = params["models"][own["model"]]
    params["cells"]["twin"] = {**own, "model": "twin"}
    (copy_of_finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = Workspace(copy_of_finished)
    store, twin = Store(workspace, STAGES), workspace.params.cell("twin")
    plans = {plan.stage.name: plan for plan in store.foresee(twin)}
    shared = [name for name, plan in plans.items() if isinstance(plan, Plan) and plan.restorable is not None]
    assert {"fetch", "import_model", "quantize", "graph_pack", "tune"} == set(shared), plans
    digits = workspace.params.cell("digits")
    folders = {name: workspace.folder(name, digits) for name in STAGES}
    naming = {
        name
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD_NAME and str(digits).encode() in path.read_bytes()
    }
    assert naming >= {"build", "evaluate"} and not naming & set(shared), "the name of one cell, restored for another"
