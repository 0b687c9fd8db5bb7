"""Take each service of a team away during each stage: the cell is made and recorded, or one line names the service."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.conftest import CELL, SLUG
from tests.services import SERVICES, PostgresServer, TeamServices, make_environment, team_services
from tvmflow.config.params import STAGE_NAMES
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.dvc.repository import is_published
from tvmflow.tracking.mlflow.history import measurements
from tvmflow.tracking.mlflow.recorded import is_recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
AWAY_IN = ("evaluate", "deploy", "build", "tune", "quantize", "import_model", "fetch")
AWAY_S = {"restarts": 3.0, "for a minute": 60.0}  # else until the run is over
CASES = [(stage, away, service) for stage in AWAY_IN for away in AWAY_S for service in SERVICES]
CASES = [*(("evaluate", "until the run is over", service) for service in SERVICES), *CASES]
SAID = {
    "mlflow": "the MLflow server http.* does not answer",
    "prefect": "Prefect's server at http.* does not answer",
    "postgres": "Prefect's server at http.* its database|the MLflow server http.* database",
    "s3": "the DVC remote s3 .*http",
}
LONGEST_S = 280.0  # of a run, on a busy machine: without a service it takes a minute more than with it


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServices]:
    PostgresServer.skip_without()
    root = tmp_path_factory.mktemp("services")
    with team_services(root, make_environment(root / "environment")) as found:
        yield found


@pytest.fixture
def team(
    services: TeamServices, copy_of_finished: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Return a workspace that uses the services, with a remote of its own."""
    for name, text in services.environment.items():
        monkeypatch.setenv(name, text)
    for name in (".dvc/cache", "dvc_storage", "artifacts/.index", "artifacts/.recorded", "mlruns"):
        shutil.rmtree(copy_of_finished / name)
    remote = services.remote(re.sub(r"\W+", "-", request.node.callspec.id))
    config = copy_of_finished / ".dvc" / "config"
    config.write_text(f"[core]\n    remote = s3\n['remote \"s3\"']\n{remote}")
    yield copy_of_finished
    for gate in services.gates.values():
        gate.open()


class Run:
    """A run of the cell; `said` is what it wrote."""

    def __init__(self, services: TeamServices, root: Path) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            [str(services.python), "-m", "tvmflow", "--root", str(root), "run", CELL],
            cwd=root,
            env={**os.environ, "PATH": f"{services.python.parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, float]:
        """Wait until it ends. Returns its exit code and how long this took in seconds."""
        assert self.process.stdout is not None
        began = time.monotonic()
        watch = threading.Timer(2 * LONGEST_S, self.process.kill)
        watch.daemon = True
        watch.start()
        self.said += self.process.stdout.read()
        watch.cancel()
        return self.process.wait(), time.monotonic() - began


def lose(root: Path, stage: str) -> None:
    """Remove the outputs of a stage and of all after it."""
    for name in STAGE_NAMES[STAGE_NAMES.index(stage) :]:
        shutil.rmtree(root / "artifacts" / name)
        if name == "tune":
            shutil.rmtree(root / "artifacts" / "tuning_log")
    shutil.rmtree(root / "artifacts" / ".logs", ignore_errors=True)


def starts(root: Path, stage: str, run: Run) -> bool:
    """Wait until the log of a stage is there, or the run ended."""
    log = root / "artifacts" / ".logs" / f"{stage}.{SLUG}.log"
    ended = threading.Event()
    while not log.exists():
        if run.process.poll() is not None:
            return False
        ended.wait(0.05)
    return True


def test_each_service_answers_through_its_gate_only(services: TeamServices) -> None:
    """And is ready before the first case: what a test may take in all holds for its fixtures too."""
    for gate in services.gates.values():
        socket.create_connection(("127.0.0.1", gate.port), timeout=10).close()
        gate.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", gate.port), timeout=10)
        gate.open()
    for name, path in (("MLFLOW_TRACKING_URI", "health"), ("PREFECT_API_URL", "ready")):
        requests.get(f"{services.environment[name]}/{path}", timeout=60).raise_for_status()


def test_the_workspace_of_the_cases_is_recorded(finished: Path) -> None:
    assert is_recorded(Workspace(finished), Workspace(finished).params.cell(CELL))


@pytest.mark.parametrize(("stage", "away", "service"), CASES)
def test_a_service_that_goes_away_in_a_stage_loses_nothing(
    stage: str, away: str, service: str, services: TeamServices, team: Path
) -> None:
    workspace = Workspace(team)
    cell = workspace.params.cell(CELL)
    before = {run["run_id"] for run in measurements(workspace, cell)}
    lose(team, stage)
    run, gate = Run(services, team), services.gates[service]
    assert starts(team, stage, run), run.said + str(run.end())
    gate.close()
    back = threading.Timer(AWAY_S.get(away, LONGEST_S), gate.open)
    back.start()
    code, lasted_s = run.end()
    is_back = not back.is_alive()
    back.cancel()
    gate.open()
    assert code in (0, 1) and "Traceback" not in run.said, (code, run.said)
    told = [line for line in run.said.splitlines() if re.search(SAID[service], line)]
    assert told or (code == 0 and is_back), f"no line names what is away:\n{run.said}"
    assert code == 0 or service == "s3", f"only files that others do not get fail a run:\n{run.said}"
    assert lasted_s < LONGEST_S, run.said
    if code or told or not is_recorded(workspace, cell):
        again = Run(services, team)
        assert again.end()[0] == 0, f"{run.said}\n{again.said}"
    assert is_recorded(workspace, cell) and is_published(workspace, cell), run.said
    assert len({one["run_id"] for one in measurements(workspace, cell)} - before) == 1, run.said
    assert _is_in_the_remote(services, team), run.said
    assert _states(services, team) == {"FAILED" if code else "COMPLETED", "COMPLETED"}, run.said


def _states(services: TeamServices, root: Path) -> set[str]:
    """Return the states of the workspace's runs on Prefect's server."""
    url = services.environment["PREFECT_API_URL"]
    found = requests.post(f"{url}/flow_runs/filter", json={"sort": "START_TIME_DESC"}, timeout=60).json()
    return {one["state_type"] for one in found if one["parameters"].get("root") == str(root)}


def _is_in_the_remote(services: TeamServices, root: Path) -> bool:
    """Return whether the remote has all that dvc.lock names of the cell."""
    command = [str(services.python), "-m", "dvc", "status", "--cloud", "evaluate@digits", "build@digits", "tune@digits"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return "Cache and remote 's3' are in sync" in done.stdout
