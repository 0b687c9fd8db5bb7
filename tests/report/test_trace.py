"""Test traces and node data: what other programs read of a cell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.ledger_bench import LedgerBench
from tvmflow.backends.plan_summary import PLAN_NAME, PlannedCall, PlanSummary
from tvmflow.config.params import Cell
from tvmflow.evaluation.source_layers import LAYERS_NAME, SourceLayers
from tvmflow.frontends.source_model import WeightedLayer
from tvmflow.pipeline.record import RECORD_NAME, describe_folder, read_record, record_text
from tvmflow.report.layers import layers_of, name_noisy_layers
from tvmflow.report.tables import scorecard
from tvmflow.report.trace import node_data_of, trace_of
from tvmflow.support.errors import StoreError, UsageError
from tvmflow.support.json_values import write_json

LAYERS = (WeightedLayer("stem", "conv2d", 9, "node_1"), WeightedLayer("head", "linear", 20, "node_2"))
PLAN = PlanSummary(
    4096,
    116,
    (
        PlannedCall("conv", ("c", "relu"), 1024, 512),
        PlannedCall("max_pool2d", ("p",), 768, 256),
        PlannedCall("conv", ("h",), 512, 20),
    ),
)
STEPS = SourceLayers(LAYERS, {"c": "stem", "h": "head"}, {"p": "stem", "relu": "stem"})


def _rewrite(bench: LedgerBench, cell: Cell, stage: str, name: str, value: Any, **changed: Any) -> None:
    """Give a stage's folder another file, and a record that lists it."""
    folder = bench.workspace.folder(stage, cell)
    record = read_record(folder / RECORD_NAME)
    (folder / RECORD_NAME).unlink()
    write_json(folder / name, value)
    parts = {**vars(record), "outputs": describe_folder(folder), **changed}
    (folder / RECORD_NAME).write_text(record_text(type(record)(**parts)))


@pytest.fixture
def made(ledger: LedgerBench) -> tuple[LedgerBench, Cell]:
    cell = ledger.cell("digits_torch")
    ledger.make(cell, "library")
    _rewrite(ledger, cell, "build", PLAN_NAME, PLAN, steps=(("building: lower", 0.25), ("building: network.so", 0.5)))
    _rewrite(ledger, cell, "quantize", LAYERS_NAME, STEPS)
    card = json.loads((ledger.workspace.folder("evaluate", cell) / "scorecard.json").read_text())
    _rewrite(ledger, cell, "evaluate", "scorecard.json", card | {"kernels_ms": {"conv": 0.6, "max_pool2d": 0.1}})
    return ledger, cell


def test_a_trace_has_the_stages_with_their_steps_and_the_kernels_of_a_run(made: tuple[LedgerBench, Cell]) -> None:
    bench, cell = made
    trace = trace_of(bench.workspace, cell)
    events = json.loads(json.dumps(trace.to_json()))["traceEvents"]
    spans = {event["name"]: (event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    assert (trace.stages, trace.kernels) == (8, 3)
    build = spans["build"]
    assert build[1] == 1e6 and spans["building: lower"] == (build[0] + 0.25e6, 0.25e6)
    assert spans["building: network.so"] == (build[0] + 0.5e6, 0.5e6)
    kernels = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert [(event["name"], event["ts"], event["dur"]) for event in kernels] == [
        ("stem", 0, 300),
        ("pool after stem", 300, 100),
        ("head", 400, 300),
    ]
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"] == [1024, 768, 512]
    assert {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"} == {
        1: f"stages of {cell}",
        2: f"one run of {cell}",
    }


def test_node_data_has_the_time_of_each_layer_by_its_node(made: tuple[LedgerBench, Cell]) -> None:
    bench, cell = made
    data = node_data_of(bench.workspace, cell)
    assert data["results"] == {"node_1": {"value": pytest.approx(0.3)}, "node_2": {"value": pytest.approx(0.3)}}
    assert [stop["stop"] for stop in data["gradient"]] == [0.0, 0.5, 1.0]


def test_without_times_there_is_no_node_data_and_a_trace_of_stages_only(made: tuple[LedgerBench, Cell]) -> None:
    bench, cell = made
    folder = bench.workspace.folder("build", cell)
    (folder / PLAN_NAME).write_text("[" * 10_000)  # not what the record lists
    assert layers_of(bench.workspace, cell, scorecard(bench.workspace, cell)).calls == ()
    assert trace_of(bench.workspace, cell).kernels == 0
    with pytest.raises(UsageError, match="no times of the layers"):
        node_data_of(bench.workspace, cell)
    shutil.rmtree(bench.workspace.artifacts)
    with pytest.raises(StoreError, match="no stage of digits_torch"):
        trace_of(bench.workspace, cell)


def test_noisy_layers_have_the_names_of_the_source_where_these_agree() -> None:
    rows = [{"name": name, "kind": kind} for name, kind in (("conv0", "conv"), ("add0", "add"), ("dense0", "dense"))]
    assert name_noisy_layers({"layers": rows}, LAYERS) == ["stem", "add0, after stem", "head"]
    assert name_noisy_layers({"layers": rows[:2]}, LAYERS) == ["conv0", "add0"]
    assert name_noisy_layers({}, LAYERS) == []


def test_the_command_writes_both_files(made: tuple[LedgerBench, Cell], tmp_path: Path) -> None:
    from tvmflow import api

    bench, cell = made
    trace, overlay = tmp_path / "a.trace.json", tmp_path / "a.nodes.json"
    assert api.write_trace(str(cell), trace, bench.workspace).kernels == 3
    assert api.write_node_data(str(cell), overlay, bench.workspace) == 2
    assert json.loads(trace.read_text())["displayTimeUnit"] == "ms" and "results" in json.loads(overlay.read_text())
