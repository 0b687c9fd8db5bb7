"""Run every stage of a cell on an emulated arm64 board, with instruction counts in place of times."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from tasks.table import STAGES
from tvmflow.config.workspace import find_workspace
from tvmflow.devices.emulation.system import EmulatedSystem
from tvmflow.devices.session import Executed
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.pipeline.store import Store
from tvmflow.report.tables import shown_compute
from tvmflow.shipping.gates.cell import judge
from tvmflow.support.errors import DeviceError
from tvmflow.support.progress import silent

CELL = "digits_torch@arm64-emulated:float32"
pytestmark = pytest.mark.heavy


def _walk(root: Path) -> list[str]:
    """Run every stage in this process, which spares a minute of imports; returns what was said of each."""
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["tune"] |= {"trials_per_workload": 1, "total_trials": 2, "measure_min_ms": 1.0}
    params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1}
    params["release"] |= {"min_coverage": 0.0}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = find_workspace(root)
    store, cell = Store(workspace, STAGES), workspace.params.cell(CELL)
    return [store.ensure(name, cell, progress=silent, again=False)[1] for name in STAGES]


def test_a_cell_goes_all_the_way(emulated: EmulatedSystem, copy_of_finished: Path) -> None:
    root = copy_of_finished
    try:
        emulated.packages()
    except DeviceError as error:
        pytest.skip(str(error))
    _walk(root)
    folder = root / "artifacts" / "evaluate" / "digits_torch.arm64-emulated.float32"
    card = json.loads((folder / "scorecard.json").read_text())
    metrics = json.loads((folder / "metrics.json").read_text())
    assert card["device"] | {"key": ""} == {
        "key": "",
        "kind": "cpu-cortex-a76-t1-emulated",
        "unit": "emulated-cortex-a76",
        "threads": 1,
    }
    assert (
        tuple(card["executed"]) == tuple(sorted(one.name for one in fields(Executed)))
        and metrics["instructions"] == card["executed"]["instructions"]
    )
    assert card["executed"]["instructions"] > card["executed"]["multiply_add_instructions"] > 0
    read = Scorecard.from_json(card)
    assert not read.has_time and "latency_ms" not in metrics and not card["peers"] and card["memory_bytes"] is None
    assert {tuple(latency["badges"]) for latency in card["latency"].values()} == {("emulated: not a time",)}
    assert "M instructions" in shown_compute(read) and "emulated: not a time" in shown_compute(read)
    assert not judge(read, None, None, find_workspace(root).params.release), "a latency that is none is no reason"
    log = next((root / "artifacts" / "tuning_log").glob("*")).read_text().splitlines()
    kinds = {json.loads(line)["device_kind"] for line in log if "device_kind" in line}
    assert kinds == {"cpu-cortex-a76-t1-emulated"}, "what is no time serves no real board"
    assert (folder / "latency.csv").read_text().split() == ["what,median_ms"]
