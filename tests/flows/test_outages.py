"""Take each service of a team away during each stage: the cell is made and recorded, or one line names the service.

The service is away until the stage is over, however long it takes; or, from the last stage on, until the run is over.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import CELL, SLUG
from tests.services import SERVICES, PostgresServer, TeamServices, make_environment, team_services
from tvmflow.config.params import STAGE_NAMES
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.dvc.repository import is_published
from tvmflow.tracking.mlflow.history import measurements
from tvmflow.tracking.mlflow.recorded import is_recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
AWAY_IN = ("fetch", "import_model", "quantize", "tune", "build", "deploy", "evaluate")
NAMES = {"mlflow": "MLflow", "prefect": "Prefect", "postgres": "MLflow|Prefect", "s3": "DVC"}


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
    remote = services.remote(f"{request.node.callspec.id}")
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

    def wait_for(self, *texts: str) -> None:
        """Read until a line contains one of the texts, or the run ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if any(text in line for text in texts):
                return

    def end(self) -> int:
        assert self.process.stdout is not None
        watch = threading.Timer(1200, self.process.kill)  # Prefect tries for minutes
        watch.daemon = True
        watch.start()
        self.said += self.process.stdout.read()
        watch.cancel()
        return self.process.wait()


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


@pytest.mark.parametrize("until", ["the stage is over", "the run is over"])
@pytest.mark.parametrize("stage", AWAY_IN)
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_goes_away_in_a_stage_loses_nothing(
    service: str, stage: str, until: str, services: TeamServices, team: Path
) -> None:
    if until == "the run is over" and stage != "evaluate":
        pytest.skip("the same as from evaluate on")
    workspace = Workspace(team)
    cell = workspace.params.cell(CELL)
    before = {run["run_id"] for run in measurements(workspace, cell)}
    lose(team, stage)
    run, gate = Run(services, team), services.gates[service]
    assert starts(team, stage, run), run.said + str(run.end())
    gate.close()
    if until == "the stage is over":
        run.wait_for(f"{CELL} {stage}: done", f"{CELL} {stage}: failed")
        gate.open()
    code = run.end()
    gate.open()
    assert code in (0, 1) and "Traceback" not in run.said, (code, run.said)
    if code or until == "the run is over":
        told = [line for line in run.said.splitlines() if any(name in line for name in NAMES[service].split("|"))]
        assert told, f"no line names what is away:\n{run.said}"
    again = Run(services, team)
    assert again.end() == 0, f"{run.said}\n{again.said}"
    assert is_recorded(workspace, cell) and is_published(workspace, cell)
    assert len({one["run_id"] for one in measurements(workspace, cell)} - before) == 1, run.said
    assert _is_in_the_remote(services, team)


def _is_in_the_remote(services: TeamServices, root: Path) -> bool:
    """Return whether the remote has all that dvc.lock names of the cell."""
    command = [str(services.python), "-m", "dvc", "status", "--cloud", "evaluate@digits", "build@digits", "tune@digits"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return "Cache and remote 's3' are in sync" in done.stdout
