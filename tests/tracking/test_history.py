"""Test the changes between two measurements of a cell, derived from MLflow's tags and parameters."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import Any

import pytest

from tests.tracking.ledger_bench import LedgerBench
from tvmflow.config.params import STAGE_NAMES
from tvmflow.tracking.costs import METRICS, NOTES, costs_of
from tvmflow.tracking.mlflow import history, releases, sqlite_reads
from tvmflow.tracking.mlflow.experiments import experiment_id
from tvmflow.tracking.mlflow.history import changes, measurements, newest_measurements, overview
from tvmflow.tracking.mlflow.notes import is_of_notes, notes_of
from tvmflow.tracking.mlflow.registry import SUPERSEDED, all_aliases, registry_name, version_by_sha256
from tvmflow.tracking.mlflow.releases import all_releases, promote
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
    assert run.info.experiment_id == second["experiment_id"] and notes_of(run.data)["code.tune"]


def _as_an_older_version(ledger: LedgerBench) -> None:
    """Make all notes of the runs tags."""
    with sqlite3.connect(ledger.root / "mlruns" / "mlflow.db") as database:
        for run_id, key, value in database.execute("SELECT run_uuid, key, value FROM params").fetchall():
            if not is_of_notes(key):
                continue
            group = json.loads(value) if value.startswith("{") else {}
            notes = {f"{key}.{one}": text for one, text in group.items()} if group else {key: value}
            for name, text in notes.items():
                database.execute("INSERT INTO tags VALUES (?, ?, ?)", (name, text, run_id))
            database.execute("DELETE FROM params WHERE key = ? AND run_uuid = ?", (key, run_id))


def test_the_tags_of_a_run_are_what_one_filters_by(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What older versions made tags too is read as before: from the file, and as from a server."""
    cell = ledger.cell("digits_torch")
    for llvm in ("20", "21", "21"):
        ledger.toolchain = {"tvm": "0.27", "llvm": llvm, "cc:g++": "14"}
        ledger.measure(cell, "library")
    workspace, client = ledger.workspace, open_mlflow(ledger.workspace)

    def read() -> Any:
        costs = costs_of(history.runs_with(workspace, None, NOTES, METRICS))
        return measurements(workspace, cell), overview(workspace, newest=2), costs

    rows, newest, costs = before = read()
    assert rows[1]["changed"] == ["llvm: 20 -> 21"] and rows[1]["build"] == "debian 13"
    assert [row["tools"] for row in newest] == [{"tvm": "0.27", "llvm": "21", "cc:g++": "14"}] * 2
    run = client.get_run(rows[0]["run_id"])
    assert {name for name in run.data.tags if not name.startswith(("tvmflow.", "mlflow."))} == {
        *("cell", "model", "target", "precision", "device.kind", "device.unit", "latency.badges"),
        *("library.sha256", "network.sha256", "git.commit", "toolchain.tvm"),
    }
    forms = client.get_metric_history(run.info.run_id, "accuracy.by_form")
    assert [(one.step, one.value) for one in forms] == [(step, 0.9) for step in range(4)]
    [cost] = costs.values()
    assert cost.saved_by_cache_hours > 0, "of stages with the same recipe key"
    _as_an_older_version(ledger)
    assert read() == before
    monkeypatch.setattr(history, "is_readable", lambda _: False)
    assert read() == before


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


def test_what_is_read_from_the_file_is_what_mlflow_says(ledger: LedgerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [ledger.cell("digits_torch"), ledger.cell("digits_keras")]
    for cell, library in ((cells[0], "a"), (cells[1], "b"), (cells[0], "c"), (cells[0], "d")):
        ledger.measure(cell, library)
    sha256 = hashlib.sha256(b"a").hexdigest()
    version = version_by_sha256(ledger.workspace, cells[0], sha256)
    assert version is not None
    promote(ledger.workspace, version, "first")
    client = open_mlflow(ledger.workspace)
    for run in sqlite_reads.measured_runs(ledger.workspace, None, None, set())[0]:
        known = client.get_run(run.info.run_id)
        assert vars(run.data) == {name: getattr(known.data, name) for name in ("tags", "params", "metrics")}
        assert (run.info.experiment_id, run.info.start_time) == (known.info.experiment_id, known.info.start_time)
    assert sqlite_reads.read_aliases(ledger.workspace) == all_aliases(ledger.workspace)
    assert sqlite_reads.read_versions(ledger.workspace) == {
        (one.name, one.tags["library_sha256"], one.tags["network_sha256"]): str(one.version)
        for one in client.search_model_versions()
    }
    names = {model.name: model.tags for model in client.search_registered_models() if model.tags}
    assert sqlite_reads.read_model_tags(ledger.workspace) == names
    [(name, [release])] = all_releases(ledger.workspace).items()
    assert (name, release.why) == (registry_name(cells[0]), "first")
    newest, counts = newest_measurements(ledger.workspace, 1)
    rows = measurements(ledger.workspace, cells[0])
    assert counts == {str(cells[0]): 3, str(cells[1]): 1}
    assert [row["when"] for row in newest[str(cells[0])]] == [rows[at]["when"] for at in (0, 2)]
    assert newest[str(cells[0])][0]["roles"] == ["champion"], "a released library is always shown"
    every, few = overview(ledger.workspace), overview(ledger.workspace, newest=2)
    assert [row["cell"] for row in every].count(str(cells[0])) == 3
    assert few == [row for row in every if row["run_id"] != rows[0]["run_id"]] and len(few) == 3
    assert overview(ledger.workspace, "digits_keras", newest=2) == [few[0]]
    client.set_model_version_tag(version.name, version.version, SUPERSEDED, "2")
    read = all_releases(ledger.workspace), measurements(ledger.workspace, cells[0])
    assert (rows[0]["version_number"], read[1][0]["version_number"]) == (version.version, "")
    for module in (history, releases):
        monkeypatch.setattr(module, "is_readable", lambda _: False)
    assert (all_releases(ledger.workspace), measurements(ledger.workspace, cells[0])) == read, "as from a server"
    assert overview(ledger.workspace, newest=2) == few
