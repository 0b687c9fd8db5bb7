"""A Prefect server that is killed while a cell runs, and is back a minute later: the cell is measured and recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from tests.conftest import CELL, free_port
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.history import measurements

AWAY_S = 60.0


class _Server:
    """A server of the user, whose database outlives it."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PREFECT_HOME": str(self.home), "PREFECT_API_URL": self.address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 200
        while True:
            try:
                if requests.get(f"{self.address}/health", timeout=2).ok:
                    return
            except requests.RequestException:
                assert time.monotonic() < deadline
                time.sleep(0.3)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.mark.slow
def test_a_server_that_is_away_for_a_minute_costs_no_cell(copy_of_finished: Path, tmp_path: Path) -> None:
    workspace = Workspace(copy_of_finished)
    cell, server, said = workspace.params.cell(CELL), _Server(tmp_path / "prefect"), list[str]()
    before = len(measurements(workspace, cell))
    server.start()
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
        server.start()
        rest, _ = run.communicate(timeout=400)
    finally:
        server.kill()
    text = "".join(said) + rest
    assert run.returncode == 0 and "Traceback" not in text, text
    assert f"{CELL} evaluate: done" in text, text
    assert len(measurements(workspace, cell)) == before + 1
