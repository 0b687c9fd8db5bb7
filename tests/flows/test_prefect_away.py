"""A Prefect server that goes away: progress blocks nothing, a signal ends a run, a run that died is marked."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
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
from tests.services import Gate, answers
from tvmflow.support.errors import StageError
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


# A flow whose work is done when its server is gone: it says so, and its result is printed.
_WORK = """
import logging, sys
from pathlib import Path
from flows.settings import configure_prefect
from tvmflow.config.workspace import Workspace

logging.raiseExceptions = False  # as the command line
configure_prefect(Workspace(Path(sys.argv[1])))
from prefect import flow
from flows import server_away
from flows.run_page import begin_run
from flows.stopping import leave

server_away._WAIT_S = 0.5

@flow(name="work")
@server_away.keeps_result
def work(fails: bool):
    begin_run(Workspace(Path(sys.argv[1])), ["a cell"])
    print("works", flush=True)
    sys.stdin.readline()
    if fails:
        raise RuntimeError("its own error")
    return [42]

try:
    print(server_away.run_flow(work, sys.argv[2] == "fails").result())
except RuntimeError as error:
    print(error)
leave(5)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path / "prefect")
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def test_a_database_of_a_newer_prefect_is_told_as_that(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "prefect.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('0123456789ab')")
    server = PrefectServer(tmp_path)
    try:
        with pytest.raises(StageError, match=r"prefect.db was written by a newer Prefect than \d[\s\S]* move .* away"):
            server.wait()
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


@pytest.mark.parametrize(
    ("what", "printed", "state"),
    [("ends", "[42]", "COMPLETED"), pytest.param("fails", "its own error", "FAILED", marks=pytest.mark.slow)],
)
def test_a_flow_ends_right_without_its_server_which_is_told_later(
    what: str, printed: str, state: str, prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.live_runs import mark_dead_runs
    from tvmflow.config.workspace import Workspace

    gate = Gate(int(prefect_server.split(":")[2].removesuffix("/api")))
    address = f"http://127.0.0.1:{gate.port}/api"
    monkeypatch.setenv("PREFECT_API_URL", address)
    command = [sys.executable, "-c", _WORK, str(tmp_path), what]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": str(CODE_ROOT)}, **pipes)  # type: ignore[call-overload]
    assert run.stdout.readline() == "works\n", run.communicate()
    gate.close()
    begin = time.monotonic()
    out, said = run.communicate("go on\n", timeout=60)
    assert run.returncode == 5 and out.strip() == printed and time.monotonic() - begin < 20, (out, said)
    line = f"Prefect's server at {address} does not answer (nothing listens there): the run went on without it"
    assert said.count("\n") == 1 and line in said, said
    gate.open()
    [known] = (tmp_path / ".prefect" / "live").glob("*/*")
    with temporary_settings({PREFECT_API_URL: address}):
        assert mark_dead_runs(Workspace(tmp_path)) == 1 and mark_dead_runs(Workspace(tmp_path)) == 0
    found = requests.get(f"{prefect_server}/flow_runs/{known.name}", timeout=60).json()
    assert found["state_type"] == state
    gate.close()


def test_what_is_wrong_with_a_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.server_away import _why_away

    replies = {"/ready": (503, b'{"message": "Database is not available"}')}
    with answers(lambda path: replies[path.removeprefix("/api")]) as address:
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        assert _why_away() == f"Prefect's server at {address}/api does not answer, since its database does not answer"
        replies["/ready"] = (500, b"")
        assert "(500 Internal Server Error)" in _why_away()
        replies["/ready"] = (200, b"")
        assert _why_away() == ""


def test_a_post_never_blocks_and_what_is_too_much_is_dropped() -> None:
    release, written = threading.Event(), []
    begin = time.monotonic()
    assert not post_within(lambda: release.wait(30), 0.05)  # as a server that does not answer
    assert not post_within(lambda: None, 30)  # nobody waits for it twice
    kept = [post(lambda at=at: written.append(at)) for at in range(prefect_posts._MOST + 4)]  # type: ignore[misc]
    assert time.monotonic() - begin < 5 and kept.count(None) == 5
    release.set()
    assert kept[prefect_posts._MOST - 2].wait(5)  # type: ignore[union-attr]
    assert post_within(lambda: 1 / 0)  # an error is nobody's
    assert written == list(range(prefect_posts._MOST - 1))
