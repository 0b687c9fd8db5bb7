"""Run the notebook of the documentation and compare its outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.api.notebook import NOTEBOOK
from tests.conftest import REPOSITORY


def _code(text: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]


def _kinds(cell: dict[str, Any]) -> list[str]:
    return [str(output.get("name", output["output_type"])) for output in cell["outputs"]]


def test_the_notebook_runs_and_was_run(finished: Path) -> None:
    """In a process of its own, as a kernel is: TVM's pool of threads is that of its first import."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"}
    for name in ("TVMFLOW_MLFLOW_UI", "TVM_NUM_THREADS"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.notebook"],
        cwd=finished,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shown, run = _code(NOTEBOOK.read_text()), _code(done.stdout)
    assert len(shown) >= 7 and [cell["execution_count"] for cell in shown] == list(range(1, len(shown) + 1))
    assert [_kinds(cell) for cell in shown] == [_kinds(cell) for cell in run], "what is shown is what comes out"
    assert "threads=2" in done.stdout, "the pool is as large as the target says"
    assert "Traceback" not in NOTEBOOK.read_text() and str(Path.home()) not in NOTEBOOK.read_text()
