"""A Prefect server of a test's own, and the wait for a server that starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import requests


def wait_for_health(address: str, seconds: float, said: Callable[[], str] = lambda: "") -> None:
    """Wait until a server says that it is healthy. said: what it wrote, for the error."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if requests.get(f"{address}/health", timeout=2).ok:
                return
        except requests.RequestException:
            assert time.monotonic() < deadline, f"no server at {address} in {seconds:.0f} s {said()}"
            time.sleep(0.3)


class PrefectServer:
    """A server with a database in `home`, which keeps its address when it is started again."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def start(self, seconds: float) -> None:
        """Start the server, and wait so long for it."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)],
            env={**os.environ, "PREFECT_HOME": str(self.home), "PREFECT_API_URL": self.address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for_health(self.address, seconds)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
