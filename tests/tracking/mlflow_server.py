"""Start a real `mlflow server` on loopback that proxies artifacts, as teams run it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import free_port
from tests.prefect_server import wait_for_health


class MlflowServer:
    """database, python: of the server; by default sqlite, and this Python."""

    def __init__(self, root: Path, database: str = "", python: str = sys.executable) -> None:
        self.root, self.port, self.python = root, free_port(), python
        self.database = database or f"sqlite:///{root}/server.db"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    def start(self) -> None:
        options = [
            "--backend-store-uri",
            self.database,
            "--artifacts-destination",
            str(self.artifacts),
        ]
        options += ["--serve-artifacts", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        rest = {name: text for name, text in os.environ.items() if not name.startswith("MLFLOW_TRACKING")}
        self.process = subprocess.Popen(
            [self.python, "-m", "mlflow", "server", *options],
            cwd=self.root,
            env={**rest, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # eight processes that no test asks for
            stdout=(self.root / "log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_for_health(self.uri, 120, (self.root / "log").read_text)

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def lose(self, empty: Path) -> None:
        """Replace what the server has by an empty database; it must be stopped."""
        for path in self.root.glob("server.db*"):
            path.unlink()
        shutil.copyfile(empty, self.root / "server.db")
        shutil.rmtree(self.artifacts, ignore_errors=True)
