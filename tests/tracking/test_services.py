"""Use the services of a team as they are: an S3 server, and MLflow on PostgreSQL, each of which goes away.

What they need beside tvmflow's own packages is in an environment that is made for the session.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.conftest import REPOSITORY, free_port
from tests.tracking.ledger_bench import LedgerBench
from tests.tracking.mlflow_server import MlflowServer
from tvmflow.tracking.mlflow.address import TRACKING
from tvmflow.tracking.mlflow.history import measurements
from tvmflow.tracking.mlflow.recorded import is_recorded, record_kept, record_or_keep

pytestmark = pytest.mark.slow
PACKAGES = ("dvc-s3", "moto[server]", "psycopg2-binary")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with the packages, which also sees those of this one."""
    root = tmp_path_factory.mktemp("services") / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
    [packages] = root.glob("lib/python*/site-packages")
    own = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "own.pth").write_text("\n".join(own))
    command = [str(root / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package registry: {done.stderr[-200:]}")
    return root / "bin" / "python"


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            requests.get(address, timeout=2)
            return
        except requests.RequestException:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)


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
        _wait_for(address, server)
        desks("main")
    finally:
        server.kill()
        server.wait()
    desks("away")


class PostgresServer:
    """A database of Debian's PostgreSQL on loopback, as the user nobody where this one is root."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.data = root / "data"
        root.chmod(0o777)
        for folder in root.parents:
            if folder.stat().st_uid == os.getuid() and folder != Path("/"):
                folder.chmod(folder.stat().st_mode | 0o011)
        self._run("initdb", "--pgdata", str(self.data), "--username", "mlflow", "--auth", "trust")

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://mlflow@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        [folder] = [path for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))][-1:]
        user = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
        subprocess.run([str(folder / program), *arguments], check=True, cwd="/", stdout=subprocess.DEVNULL, **user)  # type: ignore[call-overload]

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.root}"
        self._run("pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self.root / "log"), "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", str(self.data))


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    if not any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("needs Debian's postgresql")
    folder = tmp_path / "postgres"
    folder.mkdir()
    server = PostgresServer(folder)
    server.start()
    yield server
    if (folder / "data" / "postmaster.pid").exists():
        server.stop()


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
