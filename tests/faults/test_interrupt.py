"""Test Ctrl-C, SIGTERM and kill -9: the end is reported once, no process remains, Prefect has the final state."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.conftest import CELL, REPOSITORY

SLUG = CELL.replace("@", ".").replace(":", ".")
MOMENTS = {  # what is there when it happens
    "starting Prefect": ".prefect/server.log",
    "a stage that runs": f"artifacts/.tmp/tune.{SLUG}.new-*",
}


class Command:
    """`tvmflow run` in a terminal of its own, whose Ctrl-C reaches the whole process group."""

    def __init__(self, root: Path) -> None:
        leader, follower = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tvmflow", "--root", str(root), "run", CELL],
            cwd=REPOSITORY,
            env=environment,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C there reaches the group
        )
        os.close(follower)
        self.leader, self.root = leader, root
        self.family: list[psutil.Process] = []
        self.pieces: list[bytes] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + 200
        while not list(self.root.glob(pattern)):
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, f"no {pattern}: {self.text()}"
            time.sleep(0.02)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def _read(self) -> None:
        """Read as a terminal does; it goes on until the last process that has the terminal ends."""
        while True:
            try:
                piece = os.read(self.leader, 65536)
            except OSError:
                return
            self.pieces.append(piece)

    def text(self) -> str:
        """Return all that it printed."""
        return b"".join(self.pieces).decode(errors="replace")

    def alive(self, seconds: float = 30) -> list[list[str]]:
        """Return the command lines of the processes that stay."""
        _, alive = psutil.wait_procs(self.family, timeout=seconds)
        return [process.cmdline() for process in alive if process.is_running()]


@pytest.fixture
def command(copy_of_finished: Path) -> Iterator[Command]:
    params = yaml.safe_load((copy_of_finished / "params.yaml").read_text())
    params["tune"] |= {"trials_per_workload": 64, "max_seconds": 600}  # long enough to be interrupted
    (copy_of_finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    (copy_of_finished / ".prefect" / "server.log").unlink(missing_ok=True)
    running = Command(copy_of_finished)
    yield running
    for process in [*running.family, psutil.Process(running.process.pid)] if running.process.poll() is None else []:
        process.kill()
    running.process.wait()
    running.reader.join(30)
    os.close(running.leader)


def _states(root: Path) -> list[str]:
    with sqlite3.connect(root / ".prefect" / "prefect.db") as store:
        return [row[0] for row in store.execute("SELECT state_type FROM flow_run ORDER BY created")]


@pytest.mark.parametrize(
    ("moment", "number"),
    [("starting Prefect", signal.SIGINT), ("a stage that runs", signal.SIGINT), ("a stage that runs", signal.SIGTERM)],
)
def test_a_signal_to_the_group_ends_it_once_and_for_all(command: Command, moment: str, number: signal.Signals) -> None:
    command.wait_for(MOMENTS[moment])
    if number == signal.SIGINT:
        os.write(command.leader, b"\x03")
    else:
        os.killpg(command.process.pid, number)
    assert command.process.wait(timeout=200) == 128 + number
    command.reader.join(30)
    text = command.text()
    assert text.count("interrupted; run the same command again to resume") == 1
    assert "Traceback" not in text and "Error" not in text, text
    assert not command.alive()
    if moment != "starting Prefect":
        assert _states(command.root)[-1] == "CANCELLED"


def test_nothing_outlives_a_command_that_was_killed(command: Command) -> None:
    command.wait_for(MOMENTS["a stage that runs"])
    assert any("flows.prefect_server" in " ".join(process.cmdline()) for process in command.family)
    command.process.kill()
    command.process.wait()
    assert not command.alive()


def test_a_second_signal_ends_at_once(command: Command) -> None:
    command.wait_for(MOMENTS["a stage that runs"])
    for _ in range(2):
        os.killpg(command.process.pid, signal.SIGINT)
        time.sleep(0.05)
    assert command.process.wait(timeout=200) == 128 + signal.SIGINT
    assert "Traceback" not in command.text()
    assert not command.alive()
