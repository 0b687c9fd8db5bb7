"""Test that the report of a team of 600 cells stays small, and shows the details of some."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.report.report_data import cell, history, report_data
from tvmflow.report.page import write_page


def test_six_hundred_cells_take_less_than_five_megabytes_and_few_seconds(tmp_path: Path) -> None:
    cells = []
    for number in range(600):
        name = f"model_{number // 12}@board-{number % 4}:float32"
        rows = history(name, 1.0 + number)[-3:]
        cells.append(cell(f"model_{number // 12}", f"board-{number % 4}", "float32", 1.0 + number, history=rows))
    started = time.process_time()
    write_page(report_data() | {"cells": cells}, tmp_path / "page.html")
    assert time.process_time() - started < 60
    text = (tmp_path / "page.html").read_text()
    assert len(text.encode()) < 5_000_000
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    shown = json.loads(found[1])["cells"]
    assert len(shown) == 600 and shown[0]["workloads"] and not shown[-1]["workloads"]
    assert all(one["card"]["latency"]["compute"]["median_ms"] == 1.0 + at for at, one in enumerate(shown))
