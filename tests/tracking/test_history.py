"""Test the changes between two measurements of a cell, derived from MLflow's tags and parameters."""

from __future__ import annotations

import json
from typing import Any

from tests.tracking.ledger_bench import LedgerBench
from tvmflow.config.params import STAGE_NAMES
from tvmflow.tracking.mlflow.experiments import experiment_id
from tvmflow.tracking.mlflow.history import changes, measurements
from tvmflow.tracking.mlflow.store import open_mlflow
from tvmflow.tracking.mlflow.trend import EXPERIMENT


class _Data:
    def __init__(self, tags: dict[str, str], params: dict[str, Any]) -> None:
        self.tags = {"device.kind": "cpu-test-t2", **tags}
        self.params = {name: json.dumps(value) for name, value in params.items()}


def test_what_changed_is_named_once_for_all_stages_that_read_it() -> None:
    before = _Data({"toolchain.tvm": "0.26.0", "code.tune": "a"}, {"tune.target": {"mcpu": "znver4"}, "tune.trials": 8})
    now = _Data({"toolchain.tvm": "0.27.0", "code.tune": "b"}, {"tune.target": {"mcpu": "znver5"}, "tune.trials": 16})
    before.params["build.target"], now.params["build.target"] = before.params["tune.target"], now.params["tune.target"]
    assert changes(None, now) == []
    assert sorted(changes(before, now)) == [
        "code (tune)",
        "target.mcpu: znver4 -> znver5 (build, tune)",
        "trials: 8 -> 16 (tune)",
        "tvm: 0.26.0 -> 0.27.0",
    ]
    every = [_Data({f"code.{stage}": text for stage in STAGE_NAMES}, {}) for text in ("a", "b")]
    assert changes(*every) == ["code (all stages)"]
    assert changes(now, now) == ["nothing: measured again"]


def test_a_change_that_older_versions_did_not_note_is_said_to_be_in_the_recipe() -> None:
    assert changes(_Data({"recipe.tune": "a"}, {}), _Data({"recipe.tune": "b"}, {})) == ["inputs or code of tune"]


def test_a_parameter_that_was_cut_off_is_compared_as_text() -> None:
    before, now = _Data({"recipe.tune": "a"}, {}), _Data({"recipe.tune": "b"}, {})
    before.params, now.params = {"tune.target": '{"mcpu": "znv'}, {"tune.target": '{"mcpu": "zap'}
    assert changes(before, now) == ['target: {"mcpu": "znv -> {"mcpu": "zap (tune)']


def test_history_has_intervals_and_what_changed_at_each_step(ledger: LedgerBench) -> None:
    cell = ledger.cell("digits_torch")
    ledger.measure(cell, "old")
    ledger.toolchain = {"tvm": "0.28", "llvm": "20"}
    ledger.latency |= {"low_ms": 0.9, "high_ms": 1.1, "badges": ["others used 40%"]}
    ledger.tuned = {"kernels": {"re-measured": 4, "lost": 1}}
    ledger.measure(cell, "new")
    first, second = measurements(ledger.workspace, cell)
    assert (first["changed"], first["low_ms"], first["change"], first["badges"]) == ([], 0.99, None, "")
    assert second["badges"] == "others used 40%" and second["since"] == first["when"]
    assert second["change"]["verdict"] == "same" and second["round_trip_ns"] == 60.0
    assert second["changed"] == ["tvm: 0.27 -> 0.28"]
    assert (second["low_ms"], second["latency_ms"], second["high_ms"]) == (0.9, 1.0, 1.1)
    run = open_mlflow(ledger.workspace).get_run(second["run_id"])
    kernels = {name: value for name, value in run.data.metrics.items() if name.startswith("tuning.kernels.")}
    assert kernels == {"tuning.kernels.re-measured": 4.0, "tuning.kernels.lost": 1.0}
    assert run.info.experiment_id == second["experiment_id"] and run.data.tags["code.tune"]


def test_units_of_one_kind_are_told_apart(ledger: LedgerBench) -> None:
    """In the rows, in what changed, and in the history runs: a chart has a line for each unit."""
    cell, client = ledger.cell("digits_torch"), open_mlflow(ledger.workspace)
    for unit, build in (("phone-a", "15/1"), ("phone-b", "15/1"), ("phone-b", "15/2"), ("phone-a", "15/1")):
        ledger.unit, ledger.build = unit, build
        ledger.measure(cell, "library")
    rows = measurements(ledger.workspace, cell)
    assert [(row["unit"], row["build"]) for row in rows][:3] == [
        ("phone-a", "15/1"),
        ("phone-b", "15/1"),
        ("phone-b", "15/2"),
    ]
    assert rows[1]["changed"] == ["unit: phone-a -> phone-b"] and rows[2]["changed"] == ["build: 15/1 -> 15/2"]
    runs = client.search_runs([experiment_id(client, ledger.workspace, EXPERIMENT)])
    points = {
        run.data.tags["device.unit"]: len(client.get_metric_history(run.info.run_id, "latency_ms.median"))
        for run in runs
    }
    assert points == {"phone-a": 2, "phone-b": 2}
    noted, before = _Data({"device.unit": "phone-a", "device.build": "15/1"}, {}), _Data({}, {})
    assert changes(before, noted) == ["nothing: measured again"], "an older version did not note it"
