"""Use the services of a team as they are: an S3 server, and MLflow on PostgreSQL, each of which goes away.

What they need beside tvmflow's own packages is in an environment that is made for the session.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, free_port
from tests.services import PostgresServer, make_environment, wait_for
from tests.tracking.ledger_bench import LedgerBench
from tests.tracking.mlflow_server import MlflowServer
from tvmflow.tracking.mlflow.address import TRACKING
from tvmflow.tracking.mlflow.history import measurements
from tvmflow.tracking.mlflow.recorded import is_recorded, record_kept, record_or_keep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("services") / "environment")


def test_clones_share_an_s3_server_that_goes_away(environment: Path, tmp_path: Path) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([str(environment.parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)])

    def desks(what: str) -> None:
        command = [str(environment), "-m", "tests.tracking.s3_desks", str(tmp_path), address, what]
        variables = {"PYTHONPATH": str(REPOSITORY), "AWS_DEFAULT_REGION": "us-east-1"}
        done = subprocess.run(
            command, cwd=REPOSITORY, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        wait_for(address, server)
        desks("main")
    finally:
        server.kill()
        server.wait()
    desks("away")


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    PostgresServer.skip_without()
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_mlflow_on_postgresql_whose_database_goes_away(
    ledger: LedgerBench, postgres: PostgresServer, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured meanwhile is kept, and the reason is one line; the next command records it once."""
    root = tmp_path / "server"
    root.mkdir()
    server = MlflowServer(root, postgres.uri, str(environment))
    server.start()
    try:
        monkeypatch.setenv(TRACKING, server.uri)
        cell = ledger.cell("digits_torch")
        ledger.measure(cell, "first")
        assert is_recorded(ledger.workspace, cell)
        postgres.stop()
        ledger.day += 1
        ledger.make(cell, "second")
        started = time.monotonic()
        away = record_or_keep(ledger.workspace, cell)
        assert away and "\n" not in away and time.monotonic() - started < 60, away
        kept = record_kept(ledger.workspace)
        assert (kept.done, kept.left) == (0, 1) and "\n" not in kept.why
        postgres.start()
        assert record_kept(ledger.workspace).done == 1 and record_kept(ledger.workspace).done == 0
        assert len(measurements(ledger.workspace, cell)) == 2
        os.killpg(server.process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        server.process.wait()  # type: ignore[union-attr]
        server.start()
        assert len(measurements(ledger.workspace, cell)) == 2, "the server restarted"
    finally:
        server.stop()
    shutil.rmtree(root)
