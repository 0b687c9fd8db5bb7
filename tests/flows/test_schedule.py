"""Test the scheduled re-tune with a real cron: runs with a failing cell, and missing servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.conftest import CELL, free_port, tvmflow

BROKEN = "broken@local-cpu:float32"
OTHER = "digits_torch@local-cpu:float16"


class Webhook:
    """A service on loopback that takes notifications. received: the JSON of each."""

    def __init__(self) -> None:
        self.received: list[dict[str, str]] = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    found = Webhook()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()


def _save_block(address: str) -> None:
    """Save a notification block as a user does, in a process of its own."""
    code = (
        "import sys; from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block\n"
        "Block(name='retune', url=sys.argv[1], json_data={'subject': '{{subject}}', 'body': "
        "'{{body}}'}).save('retune', overwrite=True)"
    )
    subprocess.run([sys.executable, "-c", code, address], check=True, timeout=120)


def _with_broken_cell(root: Path, **flows: Any) -> None:
    """Add a cell whose weights file is missing, and one that was never made, before and after the good one."""
    path = root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params["models"]["broken"] = params["models"]["digits_torch"] | {"weights": {"file": "gone.safetensors"}}
    params["cells"] = {
        "broken": {"model": "broken", "target": "local-cpu", "precision": "float32"},
        **params["cells"],
    }
    params["flows"] |= flows
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def _runs(address: str, flow: str) -> list[dict[str, Any]]:
    body = {"flows": {"name": {"any_": [flow]}}, "sort": "START_TIME_DESC"}
    found: list[dict[str, Any]] = requests.post(f"{address}/flow_runs/filter", json=body, timeout=120).json()
    return found


@pytest.mark.slow
def test_a_cell_whose_weights_are_gone_hides_no_other(copy_of_finished: Path, with_prefect_server: str) -> None:
    root = copy_of_finished
    _with_broken_cell(root)
    rows = {row["cell"]: row for row in json.loads(tvmflow(root, "status", "--json").stdout)["cells"]}
    assert rows[CELL]["todo"] == [] and rows[CELL]["measured"] and "gone.safetensors" in rows[BROKEN]["error"]
    assert "up to date" in tvmflow(root, "status").stdout
    for command in (["sweep", "--dry-run"], ["run", "digits", "broken", "--dry-run"]):
        done = tvmflow(root, *command, code=1)
        assert done.stdout.count("hit") >= 7 and "refused" in done.stdout and "gone.safetensors" in done.stderr
    done = tvmflow(root, "sweep", code=1)
    assert CELL in done.stdout and "gone.safetensors" in done.stderr and "Traceback" not in done.stderr
    failed = [
        run["state"]["message"] or "" for run in _runs(with_prefect_server, "sweep") if run["state_type"] == "FAILED"
    ]
    assert any(BROKEN in message for message in failed), "Prefect knows that it failed"
    done = tvmflow(root, "sweep", "--json", code=1)
    errors = {row["cell"]: row["error"] for row in json.loads(done.stdout)["results"]}
    assert errors[CELL] is None and errors[BROKEN] is not None, "the results of the others are kept"


@pytest.mark.slow
def test_retune_of_several_cells_each_by_its_own_champion(copy_of_finished: Path, with_prefect_server: str) -> None:
    """float32 is released: it has nothing to do, which says nothing of the other precision of the same model and
    target.
    """
    root = copy_of_finished
    _with_broken_cell(root)
    tvmflow(root, "promote", "digits")
    done = tvmflow(root, "retune", CELL, OTHER, "broken", "--json", code=1)
    first, second, third = json.loads(done.stdout)
    assert "nothing to do" in first["verdict"] and first["outcomes"] == {} and first["error"] is None
    assert second["before"] is None and second["outcomes"]["build"] == "made", "never released: not nothing to do"
    assert third["error"] is not None and "gone.safetensors" in third["verdict"]
    assert "Traceback" not in done.stderr
    run = _runs(with_prefect_server, "retune")[0]
    assert run["state_type"] == "FAILED" and BROKEN in run["state"]["message"]
    history = json.loads(tvmflow(root, "history", CELL, "--json").stdout)
    assert [row["version"] for row in history] == ["1 champion"]
    if second["promoted"]:  # how fast this machine is does not belong here
        assert "digits_torch.local-cpu.float16 has no previous" in tvmflow(root, "rollback", OTHER, code=1).stderr
    assert "digits_torch.local-cpu.float32 has no previous" in tvmflow(root, "rollback", CELL, code=1).stderr


def test_the_scheduled_retune_fires_runs_and_notifies(
    copy_of_finished: Path, with_prefect_server: str, webhook: Webhook
) -> None:
    """With a wrong SQLAlchemy everything looks well and no run is ever scheduled; so wait for one that is done."""
    root = copy_of_finished
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["flows"] |= {"retune_cron": "* * * * *", "notify": "custom-webhook/retune"}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    tvmflow(root, "promote", "digits")
    _save_block(webhook.address)
    environment = {**os.environ, "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    with (root / "serve.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tvmflow", "--root", str(root), "serve"],
            start_new_session=True,
            stdout=log,
            stderr=log,
            cwd=root,
            env=environment,
        )
    try:
        ended: list[dict[str, Any]] = []
        deadline = time.monotonic() + 300
        while not ended and time.monotonic() < deadline:
            assert process.poll() is None, (root / "serve.log").read_text()
            time.sleep(1)
            mine = [run for run in _runs(with_prefect_server, "retune") if run["parameters"].get("root") == str(root)]
            ended = [run for run in mine if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
        assert ended, "no scheduled run came to an end"
        assert ended[0]["auto_scheduled"] and ended[0]["parameters"]["cells"] == [CELL]
        assert ended[0]["state_type"] == "COMPLETED", ended[0]["state"]["message"]
        body = {"artifacts": {"flow_run_id": {"any_": [ended[0]["id"]]}}}
        [table] = requests.post(f"{with_prefect_server}/artifacts/filter", json=body, timeout=120).json()
        assert CELL in table["data"] and "nothing to do" in table["data"]
        assert ended[0]["name"] == f"retune {CELL}" and CELL in ended[0]["tags"]
        [told] = webhook.received[:1]
        assert told["subject"] == "tvmflow re-tune: 1 cells, 0 promoted, 0 failed"
        header, _, row = told["body"].splitlines()
        assert header.startswith("| cell | TVM | reused | re-measured | re-tuned | lost | ")
        assert row.startswith(f"| {CELL} | ") and "nothing to do" in row
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_serve_refuses_a_block_that_is_not_there(make_workspace: Callable[..., Path], with_prefect_server: str) -> None:
    root = make_workspace(lambda params: params["flows"].update(notify="custom-webhook/none"))
    done = tvmflow(root, "serve", code=2)
    assert (
        "flows.notify is 'custom-webhook/none'" in done.stderr
        and "under Blocks" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_serve_without_a_server_says_what_to_start(make_workspace: Callable[..., Path]) -> None:
    assert "prefect server start" in tvmflow(make_workspace(), "serve", code=2).stderr


@pytest.mark.parametrize("command", [["serve"], ["run", "digits"], ["retune", "digits"]])
def test_a_server_that_does_not_answer_is_one_error(
    make_workspace: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    root = make_workspace()
    for address in (f"http://127.0.0.1:{free_port()}/api", "nonsense"):
        monkeypatch.setenv("PREFECT_API_URL", address)
        done = tvmflow(root, *command, code=1)
        assert address in done.stderr and "prefect server start" in done.stderr
        assert "Traceback" not in done.stderr and len(done.stderr) < 800
