"""Test prefect.yaml: deploy the flows to a process work pool, and run one by a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.conftest import CELL


def _prefect(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_deployments_of_prefect_yaml_run_in_a_work_pool(copy_of_finished: Path, with_prefect_server: str) -> None:
    root, address = copy_of_finished, with_prefect_server
    _prefect(root, "work-pool", "create", "tvmflow", "--type", "process")
    _prefect(root, "deploy", "--all")
    found = requests.post(f"{address}/deployments/filter", json={"limit": 50}, timeout=120).json()
    deployed = {row["entrypoint"]: row for row in found if row["name"] == "tvmflow"}
    assert set(deployed) == {"flows.sweep.sweep", "flows.release_model.release_model", "flows.retune.retune"}
    retune = deployed["flows.retune.retune"]
    assert [row["schedule"]["cron"] for row in retune["schedules"]] == ["0 3 * * 6"]
    assert deployed["flows.sweep.sweep"]["parameters"] == {"cells": []}

    release = deployed["flows.release_model.release_model"]
    body = {"parameters": {"cell": "digits", "dry_run": True}, "state": {"type": "SCHEDULED"}}
    run = requests.post(f"{address}/deployments/{release['id']}/create_flow_run", json=body, timeout=120).json()
    _prefect(root, "worker", "start", "--pool", "tvmflow", "--run-once")
    ended: dict[str, Any] = requests.get(f"{address}/flow_runs/{run['id']}", timeout=120).json()
    assert ended["state_type"] == "COMPLETED", ended["state"]
    assert ended["name"] == "release_model digits" and CELL in ended["tags"]
    where = {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    artifacts = requests.post(f"{address}/artifacts/filter", json=where, timeout=120).json()
    assert "would be the champion" in {row["key"]: row["data"] for row in artifacts}["release"]
