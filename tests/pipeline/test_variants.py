"""Test variants: outputs of their own, shared stages, and what the workspace finds of them by its recipe keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.table import STAGES as REAL
from tests.conftest import small_params
from tests.pipeline.fake_stages import STAGES
from tvmflow.config.overrides import CellOverrides
from tvmflow.config.params import Params
from tvmflow.config.workspace import VARIANT_FILE, Variant, Workspace, find_workspace, make_variant
from tvmflow.pipeline.stage import settings_json
from tvmflow.pipeline.store import Store
from tvmflow.support.errors import StoreError

FEW = CellOverrides.model_validate({"tune": {"trials_per_workload": 7}})


def test_a_workspace_restores_what_a_variant_made(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace()
    workspace = Workspace(root)
    cell = workspace.params.cell("digits")
    made = make_variant(workspace, cell, FEW, ("fetch",))
    found = find_workspace(made.address)
    assert isinstance(found, Variant) and found.root == root and found.params.tune_of(cell).trials_per_workload == 7
    assert make_variant(workspace, cell, FEW, ("fetch",)).place == made.place
    assert make_variant(workspace, cell, CellOverrides(), ("fetch",)).place != made.place
    mine, main = Store(found, STAGES), Store(workspace, STAGES)
    assert [mine.ensure(stage, cell)[1] for stage in ("fetch", "import_model")] == ["made", "made"]
    assert mine.plan("import_model", cell).is_hit and not (root / "artifacts" / "import_model").exists()
    assert [main.ensure(stage, cell)[1] for stage in ("fetch", "import_model")] == ["hit", "restored"]
    assert (root / "calls.txt").read_text().count("import_model") == 1
    (made.place / VARIANT_FILE).write_text(json.dumps({"cell": str(cell)}))
    find_workspace.__globals__["workspace_at"].cache_clear()
    with pytest.raises(StoreError, match="is damaged"):
        find_workspace(made.address)


def test_overrides_change_the_settings_of_their_cell_only(make_workspace: Callable[..., Path]) -> None:
    own = {"int8": {"max_float_layers": 2}, "tune": {"trials_per_workload": 7}}
    plain = Workspace(make_workspace(name="plain"))
    other = Workspace(
        make_workspace(lambda params: params.update(overrides={"digits_torch@local-cpu:int8": own}), "other")
    )
    for text, expected in (("digits_torch@local-cpu:int8", {"quantize", "tune"}), ("digits", set())):
        cell = plain.params.cell(text)
        settings = [
            {name: settings_json(REAL[name].settings(at, cell)) for name in ("quantize", "graph_pack", "tune")}
            for at in (plain, other)
        ]
        assert {name for name in settings[0] if settings[0][name] != settings[1][name]} == expected


@pytest.mark.parametrize(
    ("text", "own", "says"),
    [
        ("digits", {}, "the name of a cell; write digits_torch@local-cpu:float32"),
        ("digits_torch@local-cpu:float32", {"int8": {"max_drop": 0.1}}, "of a cell in float32, which it cannot change"),
        ("nothing@local-cpu:int8", {}, "unknown model 'nothing'"),
    ],
)
def test_overrides_that_mean_nothing_are_refused(text: str, own: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Params.model_validate(small_params() | {"overrides": {text: own}})
