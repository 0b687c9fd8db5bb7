"""Test the automation that sets runs without heartbeats to Crashed, on a real Prefect server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from flows.heartbeats import NAME, crash_automation, watch_runs
from tests.conftest import free_port
from tests.prefect_server import PrefectServer

SILENT_S = 12.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    server = PrefectServer(tmp_path / "prefect", free_port())
    try:
        server.start(200)
        monkeypatch.setenv("PREFECT_API_URL", server.address)
        with temporary_settings({PREFECT_API_URL: server.address}):
            yield server.address
    finally:
        server.kill()


class _Run:
    """A run of a flow that has begun, and had one heartbeat."""

    def __init__(self, server: str, flow: str) -> None:
        self.server = server
        flow_id = self._ask("flows/", {"name": flow})["id"]
        self.id = self._ask("flow_runs/", {"flow_id": flow_id, "state": {"type": "RUNNING"}})["id"]
        related = {"prefect.resource.id": f"prefect.flow.{flow_id}", "prefect.resource.role": "flow"}
        beat = {
            "id": str(uuid.uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": "prefect.flow-run.heartbeat",
            "resource": {"prefect.resource.id": f"prefect.flow-run.{self.id}"},
            "related": [related | {"prefect.resource.name": flow}],
        }
        requests.post(f"{server}/events", json=[beat], timeout=60).raise_for_status()

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        reply = requests.post(f"{self.server}/{path}", json=body, timeout=60)
        assert reply.ok, reply.text
        return reply.json()

    def complete(self) -> None:
        self._ask(f"flow_runs/{self.id}/set_state", {"state": {"type": "COMPLETED"}, "force": True})

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = requests.get(f"{self.server}/flow_runs/{self.id}", timeout=60).json()["state"]
        return found


@pytest.mark.slow
def test_a_run_without_heartbeats_is_crashed_and_no_other(server: str) -> None:
    watch_runs()
    watch_runs(SILENT_S)
    rows = requests.post(f"{server}/automations/filter", json={}, timeout=60).json()
    assert [(row["name"], row["trigger"]["within"]) for row in rows] == [(NAME, SILENT_S)], "one, brought up to date"
    time.sleep(3)  # until the server has read it
    ended, stranger, dead = (_Run(server, flow) for flow in ("sweep", "flow of others", "sweep"))
    ended.complete()
    deadline = time.monotonic() + 120
    while dead.state["type"] == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(1)
    time.sleep(3)
    assert dead.state["type"] == "CRASHED" and "no heartbeat" in dead.state["message"]
    assert ended.state["type"] == "COMPLETED" and stranger.state["type"] == "RUNNING"


def test_three_heartbeats_of_our_deployments_may_be_missed() -> None:
    import yaml

    from tests.conftest import REPOSITORY

    described = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    for deployment in described["deployments"]:
        beat_s = float(deployment["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])
        assert 3 * beat_s <= crash_automation().trigger.within.total_seconds()
