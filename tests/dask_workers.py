"""A Dask cluster on loopback whose workers cannot see a folder of the client, with another home and another folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import free_port

# A mount namespace of its own, in which the client's folder is empty.
_HIDE = 'mount -t tmpfs -o size=16k none "$1" && shift && exec "$@"'


class DaskWorkers:
    """A scheduler and its workers. hidden: the folder that no worker sees; place: where each has a folder."""

    def __init__(self, hidden: Path, place: Path) -> None:
        self.hidden, self.place = hidden, place
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._scheduler = self._start(
            "scheduler", "distributed.cli.dask_scheduler", "--host", self.address, "--no-dashboard"
        )

    def start_worker(self, name: str) -> None:
        """Start a worker with one thread."""
        arguments = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--name", name)
        self.workers[name] = self._start(name, "distributed.cli.dask_worker", self.address, *arguments)

    def kill_worker(self, name: str) -> None:
        os.killpg(self.workers[name].pid, signal.SIGKILL)
        self.workers.pop(name).wait()

    def log(self, name: str) -> str:
        return (self.place / name / "log.txt").read_text(encoding="utf-8", errors="replace")

    def client(self) -> Any:
        """Return a client of the cluster; waits for the scheduler."""
        from distributed import Client

        return Client(self.address, timeout=60, set_as_default=False)

    def close(self) -> None:
        for process in (*self.workers.values(), self._scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = self.place / name
        home.mkdir(parents=True, exist_ok=True)
        own = {"HOME": str(home), "TMPDIR": str(home), "DASK_TEMPORARY_DIRECTORY": str(home)}
        kept = {key: os.environ[key] for key in ("PATH", "TVMFLOW_LOCKS", "OMP_WAIT_POLICY") if key in os.environ}
        with (home / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [
                    "unshare",
                    "-Urm",
                    "sh",
                    "-c",
                    _HIDE,
                    "sh",
                    str(self.hidden),
                    sys.executable,
                    "-m",
                    module,
                    *arguments,
                ],
                cwd=home,
                env={**kept, **own, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


LONGEST_S = 400.0  # on a busy machine, where the stages before a task take minutes


def works_at(client: Any, prefix: str) -> str:
    """Wait until a worker runs a task of this prefix, and return the worker's name."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        names = {address: about["name"] for address, about in client.scheduler_info(n_workers=-1)["workers"].items()}
        for address, keys in client.processing().items():
            if any(str(key).startswith(prefix) for key in keys) and address in names:
                return str(names[address])
        time.sleep(0.02)
    raise AssertionError(f"no worker ran a task {prefix}... in {LONGEST_S:.0f} s")


def ran(client: Any) -> dict[str, set[str]]:
    """Return which workers ran which kinds of tasks: prefix of the key -> addresses of workers."""
    found: dict[str, set[str]] = {}

    def finished(dask_scheduler: Any) -> list[tuple[str, str]]:
        return [
            (str(one[0]), str(one[-3].get(one[0], "")) if isinstance(one[-3], dict) else "")
            for one in dask_scheduler.transition_log
            if one[1:3] == ("processing", "memory")
        ]

    for key, where in client.run_on_scheduler(finished):
        found.setdefault(key.rpartition("-")[0], set()).add(where)
    return found


@contextlib.contextmanager
def dask_workers(hidden: Path, place: Path, *names: str) -> Iterator[DaskWorkers]:
    """Start a scheduler and workers within this context."""
    cluster = DaskWorkers(hidden, place)
    try:
        for name in names:
            cluster.start_worker(name)
        yield cluster
    finally:
        cluster.close()
