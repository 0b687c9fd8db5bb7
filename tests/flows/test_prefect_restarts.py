"""A Prefect server that is killed while a cell runs, and is back a minute later: the cell is measured and recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import CELL, free_port
from tests.prefect_server import PrefectServer
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.history import measurements

AWAY_S = 60.0


@pytest.mark.slow
def test_a_server_that_is_away_for_a_minute_costs_no_cell(copy_of_finished: Path, tmp_path: Path) -> None:
    workspace = Workspace(copy_of_finished)
    cell, server, said = workspace.params.cell(CELL), PrefectServer(tmp_path / "prefect", free_port()), list[str]()
    before = len(measurements(workspace, cell))
    server.start(200)
    try:
        run = subprocess.Popen(
            [sys.executable, "-m", "tvmflow", "--root", str(copy_of_finished), "run", CELL, "--again"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PREFECT_API_URL": server.address},
        )
        assert run.stdout is not None
        for line in run.stdout:
            said.append(line)
            if " build: hit" in line:  # the stages that measure come next
                break
        server.kill()
        time.sleep(AWAY_S)
        server.start(200)
        rest, _ = run.communicate(timeout=400)
    finally:
        server.kill()
    text = "".join(said) + rest
    assert run.returncode == 0 and "Traceback" not in text, text
    assert f"{CELL} evaluate: done" in text, text
    assert len(measurements(workspace, cell)) == before + 1
