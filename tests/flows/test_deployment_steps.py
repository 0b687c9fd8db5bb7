"""Deployments of several workspaces on one Prefect server, and how a worker finds the workspace of its run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from flows.deployment_steps import describe_workspace, enter_workspace
from flows.prefect_server import PrefectServer
from tvmflow.config.workspace import Workspace
from tvmflow.setup.new_project import make_workspace
from tvmflow.support.errors import SourceError
from tvmflow.support.paths import CODE_ROOT


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def _commit(root: Path, cron: str) -> None:
    (root / "params.yaml").write_text(f'models: {{}}\nflows: {{workers: 2, retune_cron: "{cron}"}}\n')
    _git(root, "add", "--all")
    _git(root, "commit", "--quiet", "-m", "change")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace in a folder of a repository, pushed to a remote."""
    top, remote = tmp_path / "top", tmp_path / "remote.git"
    _git(tmp_path, "init", "--quiet", "--bare", "--initial-branch", "main", str(remote))
    _git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(top))
    _git(top, "remote", "add", "origin", str(remote))
    root = make_workspace(top / "phones")
    _commit(root, "5 4 * * 1")
    _git(top, "push", "--quiet", "--set-upstream", "origin", "main")
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(root)
    return root


def test_a_worker_uses_the_workspace_or_a_clone_of_it(workspace: Path, tmp_path: Path) -> None:
    told = describe_workspace()
    assert told.pop("retune_cron") == "5 4 * * 1" and told["folder"] == "phones" and told["branch"] == "main"
    assert Path(enter_workspace(**told)["directory"]) == workspace == Path.cwd()

    elsewhere = {**told, "root": str(tmp_path / "of another machine")}
    clone = Path(enter_workspace(**elsewhere)["directory"])
    assert clone == Path.cwd() and clone.name == "phones" and tmp_path / "cache" in clone.parents
    (clone / "artifacts").mkdir()
    _commit(workspace, "6 4 * * 1")
    _git(workspace, "push", "--quiet")
    assert Path(enter_workspace(**elsewhere)["directory"]) == clone and (clone / "artifacts").is_dir()
    assert Workspace(clone).params.flows.retune_cron == "6 4 * * 1"


def test_what_a_worker_lacks_is_said(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the worker on .* has no workspace /nowhere") as error:
        enter_workspace("/nowhere")
    assert "git remote 'origin'" in str(error.value)
    with pytest.raises(SourceError, match=r"git clone failed in .*does not exist"):
        enter_workspace("/nowhere", str(tmp_path / "missing.git"), "main")
    _git(workspace, "remote", "set-url", "origin", "https://me:secret@example.org/models.git")
    assert describe_workspace()["repository"] == "https://example.org/models.git"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path / "prefect")
    try:
        server.wait()
        monkeypatch.setenv("PREFECT_API_URL", server.url)
        yield server
    finally:
        server.stop()


@pytest.mark.slow
def test_deployments_of_two_workspaces_and_a_sweep_that_obeys_its_params(
    workspace: Path, server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_workspace(tmp_path / "boards")
    for root in (workspace, other):
        for command in (["work-pool", "create", "tvmflow", "--type", "process", "--overwrite"], ["deploy", "--all"]):
            done = subprocess.run(
                [sys.executable, "-m", "prefect", "--no-prompt", *command],
                cwd=root,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(CODE_ROOT)},
            )
            assert done.returncode == 0, done.stdout + done.stderr
    rows = requests.post(f"{server.url}/deployments/filter", json={"limit": 50}, timeout=60).json()
    found = {(row["name"], row["entrypoint"].split(".")[1]): row for row in rows}
    flows = ("sweep", "release_model", "retune")
    assert set(found) == {(name, flow) for name in ("phones", "boards") for flow in flows}
    retune = found["phones", "retune"]
    assert [one["schedule"]["cron"] for one in retune["schedules"]] == ["5 4 * * 1"]
    assert [one["schedule"]["cron"] for one in found["boards", "retune"]["schedules"]] == ["0 3 * * 6"]
    (step,) = retune["pull_steps"]
    assert step["flows.deployment_steps.enter_workspace"]["root"] == str(workspace)
    _obeys(workspace, server, monkeypatch)


def _obeys(root: Path, server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep as a worker runs it, with five cells of which two may run at a time."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows import sweep as flow

    running, most, lock = [0], [0], threading.Lock()

    def walk(*_given: Any) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.2)
        with lock:
            running[0] -= 1

    monkeypatch.setattr(flow, "walk_units", walk)
    monkeypatch.setattr(flow, "record", lambda *_given: {})
    monkeypatch.setattr(flow, "preflight", lambda *_given, **_named: ({}, {}))  # no file a.onnx is there
    monkeypatch.setattr(flow, "show_cell", lambda *_given: None)
    (root / "params.yaml").write_text(
        "models: {m: {weights: {file: a.onnx}, framework: onnx, input: {shape: [1, 4]}}}\nflows: {workers: 2}\n"
    )
    cells = [f"m@local-cpu:{precision}" for precision in ("float32", "float16", "bfloat16", "int8", "float16_acc32")]
    with temporary_settings({PREFECT_API_URL: server.url}):
        results = flow.sweep(cells, str(root))
    assert [one["cell"] for one in results] == cells and most[0] == 2
