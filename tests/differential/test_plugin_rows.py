"""Test that a new backend, transport, frontend and tuner need one registry entry each and no other change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tasks.import_model import read_model
from tasks.table import STAGES
from tests.conftest import REPOSITORY, small_params
from tests.differential.made_up_rows import NUMBERS, BackwardsTuner, InsideTransport, PretendBackend
from tvmflow.backends.cpu import CpuBackend
from tvmflow.backends.registry import BACKENDS
from tvmflow.codegen.lower import lower
from tvmflow.config.params import DeviceEntry
from tvmflow.config.workspace import Workspace
from tvmflow.devices.registry import TRANSPORTS, open_session, transport_of
from tvmflow.devices.session import SessionLimits
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.frontends.registry import FRONTENDS
from tvmflow.ir.tir.workloads import extract_workloads
from tvmflow.pipeline.check_params import check_rows
from tvmflow.pipeline.stage import StageContext
from tvmflow.report.tables import shown_compute
from tvmflow.support.errors import ParamsError, UsageError
from tvmflow.support.progress import silent
from tvmflow.targets.resolve import host_target
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.search import TuningLog, tune
from tvmflow.tuning.search.tuners import TUNERS

INSIDE = {"transport": "inside", "key": "here", "room": "12"}
CELL = "numbers@pretend:float32"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Return a workspace whose cell is made of new rows."""
    tables: Any = (
        (BACKENDS, "pretend", PretendBackend),
        (TRANSPORTS, "inside", InsideTransport()),
        (FRONTENDS, "numbers", NUMBERS),
        (TUNERS, "backwards", BackwardsTuner),
    )
    for table, name, row in tables:
        monkeypatch.setitem(table, name, row)
    params = small_params()
    params["models"]["numbers"] = {
        "framework": "numbers",
        "weights": {"file": "mine.numbers"},
        "input": {"shape": [1, 48]},
    }
    params["targets"]["pretend"] = {
        "kind": "pretend",
        "mcpu": "host",
        "threads": 1,
        "pretend": {"level": 3},
        "device": INSIDE,
    }
    params["tune"] |= {"trials_per_workload": 0, "tuner": "backwards"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    weights = np.random.default_rng(0).standard_normal((48, 32))
    (tmp_path / "mine.numbers").write_text(json.dumps(weights.tolist()))
    return Workspace(tmp_path)


def _run(workspace: Workspace, name: str) -> dict[str, Any]:
    """Run a stage as the store does, but all of it in this process: others would not know the rows."""
    cell, stage = workspace.params.cell(CELL), STAGES[name]
    out = workspace.folder(name, cell)
    out.mkdir(parents=True)
    inputs = {source: workspace.folder(source, cell) for source in stage.inputs}
    settings, limits = stage.settings(workspace, cell), stage.limits(workspace, cell)
    if name == "import_model":  # what runs in the sandbox
        return read_model(str(inputs["fetch"]), str(out), settings.max_relative_error, silent)
    return stage.run(
        StageContext(cell, settings, limits, inputs, out, workspace.root, workspace.tuning_log(cell), silent)
    )


def test_a_cell_of_new_rows_goes_all_the_way(workspace: Workspace) -> None:
    check_rows(workspace.params)
    facts = {name: _run(workspace, name) for name in STAGES}
    cell = workspace.params.cell(CELL)
    best = json.loads((workspace.folder("tune", cell) / "best.json").read_text())
    assert facts["graph_pack"]["pretended"] and best["part"] == [{"program": "first"}, {"program": "second"}]
    build = workspace.folder("build", cell)
    assert sorted(path.name for path in (build / "pretend").iterdir()) == ["first", "second"]
    assert facts["build"]["part"] == {"pretend.programs": 2}
    assert [path.name for path in build.glob("ir/*_pretend.txt")]
    deployed = json.loads((workspace.folder("deploy", cell) / "deployed.json").read_text())
    assert (deployed["device_kind"], deployed["unit"]) == ("pretend-3", "inside-12")
    card = json.loads((workspace.folder("evaluate", cell) / "scorecard.json").read_text())
    assert card["device"] == {"key": "here", "kind": "pretend-3", "unit": "inside-12", "threads": 1}
    assert (
        card["part"]["threads"] >= 1
        and card["peers"] == {}
        and "2.5 ms, simulated" in shown_compute(Scorecard.from_json(card))
    )
    metrics = json.loads((workspace.folder("evaluate", cell) / "metrics.json").read_text())
    assert metrics["pretend.programs"] == 2 and "latency_ms" not in metrics
    assert card["agreement"]["max_relative_error"] < 1e-5


def test_new_rows_check_what_is_said_to_them(workspace: Workspace) -> None:
    text = (workspace.root / "params.yaml").read_text()
    for before, after, says in (
        ("level: 3", "height: 3", "targets.pretend.pretend.height: unknown key; legal here: level"),
        ("room: '12'", "floor: 1", "targets.pretend.device.floor: unknown key; legal here: key, room, transport"),
        ("file: mine.numbers", "seeded: 1", "needs network|need network|comes from {file"),
    ):
        (workspace.root / "params.yaml").write_text(text.replace(before, after))
        with pytest.raises(ParamsError) as error:
            check_rows(Workspace(workspace.root).params)
        assert any(word in str(error.value) for word in says.split("|")), says
    (workspace.root / "params.yaml").write_text(text)
    with pytest.raises(UsageError, match="precision int8 in numbers@pretend:int8: a target of kind pretend"):
        STAGES["graph_pack"].settings(Workspace(workspace.root), workspace.params.cell("numbers@pretend:int8"))


def test_a_new_tuner_decides_the_order_and_a_new_transport_measures(workspace: Workspace, tmp_path: Path) -> None:
    one_thread = replace(host_target(), threads=1)  # the device is this process, whatever ran in it before
    backend, device = CpuBackend(one_thread), DeviceEntry.model_validate(INSIDE)
    module = NUMBERS.load(tmp_path, _description()).to_relax()
    workloads = extract_workloads(lower(module, backend))[:1]
    params = workspace.params.tune.model_copy(update={"trials_per_workload": 2})
    rules = SearchRules(params, params, transport_of(device).is_this_host)
    tuning_log = TuningLog(tmp_path / "log.jsonl", backend.kernel_kind, {"test": "1"})
    limits = SessionLimits(60.0, 10.0)
    report = tune(
        workloads, lambda: open_session(device, backend, limits), backend, rules, tuning_log, tmp_path, silent
    )
    match = backend.template_for(workloads[0].function)
    assert match is not None and len(match[1]) > 1
    assert report.measured and tuning_log.known()[0].knobs == match[1][-1] != match[1][0]


def _description() -> Any:
    from tvmflow.frontends.source_model import SourceDescription, one_input

    return SourceDescription("numbers", None, "mine.numbers", one_input("x", (1, 48)))


def test_the_shipped_rows_are_documented() -> None:
    text = (REPOSITORY / "docs" / "params.md").read_text()
    for table in (BACKENDS, TRANSPORTS, FRONTENDS, TUNERS):
        assert [name for name in table if f"`{name}`" not in text] == []
