"""A Prefect server that goes away: progress blocks nothing, a signal ends a run, a run that died is marked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from flows import prefect_posts
from flows.prefect_posts import post, post_within
from flows.prefect_server import PrefectServer
from tvmflow.support.paths import CODE_ROOT

# A flow of a workspace, told what to do: its cell kills the process or waits; the flow's id is printed.
_FLOW = """
import os, signal, sys, time
from pathlib import Path
from prefect import flow
from prefect.runtime import flow_run
from flows.run_page import begin_run
from flows.settings import has_users_server
from flows.stopping import cancels_flow, stops_on_signals
from tvmflow.config.workspace import Workspace

@flow
def run_it():
    with stops_on_signals():
        begin_run(Workspace(Path(sys.argv[1])), ["a cell"])
        print(flow_run.id, flush=True)
        if sys.argv[2] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(120)

assert has_users_server()
with stops_on_signals(), cancels_flow(Path(sys.argv[1])):
    run_it()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path / "prefect")
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _start(root: Path, what: str, address: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _FLOW, str(root), what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CODE_ROOT), "PREFECT_API_URL": address},
    )
    assert process.stdout is not None
    run = process.stdout.readline().strip()
    assert run, process.communicate()[1]
    return process, run


@pytest.mark.slow
def test_a_run_that_was_killed_is_crashed_and_a_signal_ends_one_without_its_server(
    server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.live_runs import mark_dead_runs
    from tvmflow.config.workspace import Workspace

    (tmp_path / "params.yaml").write_text("models: {}\n")
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    dead, run = _start(tmp_path, "die", server.url)
    assert dead.wait(60) == -signal.SIGKILL
    lives, other = _start(tmp_path, "wait", server.url)

    def state(of: str) -> str:
        return str(requests.get(f"{server.url}/flow_runs/{of}", timeout=60).json()["state_type"])

    assert (state(run), state(other)) == ("RUNNING", "RUNNING")
    with temporary_settings({PREFECT_API_URL: server.url}):
        assert mark_dead_runs(Workspace(tmp_path)) == 1 and mark_dead_runs(Workspace(tmp_path)) == 0
    assert (state(run), state(other)) == ("CRASHED", "RUNNING")

    server.process.kill()
    server.process.wait()
    begin = time.monotonic()
    lives.send_signal(signal.SIGTERM)
    _, said = lives.communicate(timeout=30)
    assert lives.returncode == 128 + signal.SIGTERM and time.monotonic() - begin < 25
    assert f"Prefect's server at {server.url} does not respond: the run ends without telling it" in said
    assert "Traceback" not in said


def test_a_post_never_blocks_and_what_is_too_much_is_dropped() -> None:
    release, written = threading.Event(), []
    begin = time.monotonic()
    assert not post_within(lambda: release.wait(30), 0.05)  # as a server that does not answer
    kept = [post(lambda at=at: written.append(at)) for at in range(prefect_posts._MOST + 5)]  # type: ignore[misc]
    assert time.monotonic() - begin < 5 and kept.count(None) == 5
    release.set()
    assert kept[prefect_posts._MOST - 1].wait(5)  # type: ignore[union-attr]
    assert post_within(lambda: 1 / 0)  # an error is nobody's
    assert written == list(range(prefect_posts._MOST))
