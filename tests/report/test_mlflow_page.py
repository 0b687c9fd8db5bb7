"""Test what people see on the page of a measurement in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.report.report_data import HOSTILE
from tests.tracking.ledger_bench import LedgerBench
from tvmflow.report.mlflow_page import NOTE, bars_svg, describe_run
from tvmflow.tracking.mlflow.recorded import ensure_recorded, recorded_run
from tvmflow.tracking.mlflow.registry import registry_name
from tvmflow.tracking.mlflow.store import open_mlflow


def _text(client: Any, run_id: str, name: str, folder: Path) -> str:
    return Path(client.download_artifacts(run_id, name, str(folder))).read_text()


def test_the_run_of_a_measurement_is_described_once(ledger: LedgerBench, tmp_path: Path) -> None:
    cell = ledger.cell("digits_torch")
    turns = [{"median_ms": 1.0 + at / 10, "counts": at != 2, "why": None} for at in range(4)]
    ledger.latency |= {"by_turn": turns}
    ledger.measure(cell, "library")
    describe_run(ledger.workspace, cell)
    client, run_id = open_mlflow(ledger.workspace), recorded_run(ledger.workspace, cell)
    assert run_id is not None
    note = client.get_run(run_id).data.tags[NOTE]
    assert note.startswith(f"**{cell}**") and "| latency |" in note
    [version] = client.search_model_versions(f"run_id = '{run_id}'")
    first, _, rest = version.description.partition("\n\n")
    assert rest == note and first == "1 ms (0.99 to 1.01); on cpu-test-t2"
    model = client.get_registered_model(registry_name(cell)).description
    assert model.startswith("digits_torch compiled for local-cpu in float32") and "torch, network digits_cnn" in model
    assert client.get_run(run_id).data.tags["mlflow.source.name"] == "tvmflow"
    page = _text(client, run_id, "report.html", tmp_path)
    assert str(cell) in page and "Content-Security-Policy" in page and len(page) < 1_000_000
    series = client.get_metric_history(run_id, "latency_ms.turn")
    assert [(one.step, one.value) for one in series] == [(0, 1.0), (1, 1.1), (3, pytest.approx(1.3))]
    client.set_tag(run_id, NOTE, "mine")
    client.update_registered_model(registry_name(cell), "mine")
    describe_run(ledger.workspace, cell)
    ensure_recorded(ledger.workspace, cell)
    assert client.get_run(run_id).data.tags[NOTE] == "mine"
    ledger.measure(cell, "another library")
    describe_run(ledger.workspace, cell)
    assert client.get_registered_model(registry_name(cell)).description == "mine"


def test_a_picture_is_an_image_whatever_names_hold() -> None:
    root = ElementTree.fromstring(bars_svg(HOSTILE, [(HOSTILE, 2.0), ("none", 0.0)]))  # noqa: S314
    space = {"s": "http://www.w3.org/2000/svg"}
    texts = [one.text or "" for one in root.findall("s:text", space)]
    assert texts[0] == HOSTILE and "2" in texts and "0" in texts and not root.findall(".//s:img", space)
    widths = [float(one.attrib["width"]) for one in root.findall("s:rect", space)[1:]]
    assert widths == [450.0, 1.0]
