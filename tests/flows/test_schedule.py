"""Test the scheduled re-tune with a real cron: runs with a failing cell, and missing servers."""

from __future__ import annotations

import json
import os
import shutil
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
from tvmflow.config.workspace import Workspace
from tvmflow.tracking.mlflow.registry import CHAMPION, register_version, version_by_alias, version_by_sha256
from tvmflow.tracking.mlflow.releases import promote
from tvmflow.tracking.mlflow.store import open_mlflow

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
    target, which becomes a champion only where first ones are wanted.
    """
    root = copy_of_finished
    _with_broken_cell(root)
    waits = json.loads(tvmflow(root, "retune", OTHER, "broken", "--json").stdout)
    assert all(row["outcomes"] == {} and "it has no champion" in row["verdict"] for row in waits)
    _edit_params(root, retune={"promote": "all"})
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


def _edit_params(root: Path, **blocks: Any) -> None:
    path = root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    for name, block in blocks.items():
        params[name] = {**params.get(name, {}), **block}
    path.write_text(yaml.safe_dump(params, sort_keys=False))


def _release(root: Path, *cells: str) -> None:
    """Make a library a champion of each cell that nobody measured here, as of another machine."""
    workspace = Workspace(root)
    client = open_mlflow(workspace)
    experiment = client.create_experiment("elsewhere")
    run, model = client.create_run(experiment), client.create_logged_model(experiment, name="library")
    for number, cell in enumerate(map(workspace.params.cell, cells)):
        tags = {"library_sha256": f"{number:064}", "library_dvc_md5": "0" * 32, "network_sha256": ""}
        tags |= {"measured": "2026", "toolchain_tvm": "0.25.0", "cell": str(cell), "device_unit": f"board-{number}"}
        register_version(client, cell, model.model_id, run.info.run_id, tags)
        version = version_by_sha256(workspace, cell, tags["library_sha256"])
        assert version is not None
        promote(workspace, version, "released elsewhere")


def _upgrade_compiler(folder: Path) -> dict[str, str]:
    """Return the environment of a machine whose C++ compiler is newer and links other bytes: all else is as it was."""
    folder.mkdir()
    real = shutil.which("g++")
    program = folder / "g++"
    program.write_text(
        f'#!/bin/sh\n[ "$*" = --version ] && echo "g++ 99.1" && exit\nexec {real} "$@" -Wl,--build-id=0x99\n'
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def _add_board(root: Path) -> None:
    """Add a cell on a board of another kind whose tracker does not answer, and rules that change no champion."""
    device = {"transport": "tracker", "key": "board", "host": "127.0.0.1", "port": free_port()}
    _edit_params(
        root,
        flows={"retune_cron": "* * * * *", "notify": "custom-webhook/retune", "device_retries": 0},
        retune={"promote": "never", "commit_branch": "retune"},
        targets={"board": {"kind": "llvm", "mcpu": "x86-64-v3", "threads": 1, "device": device}},
        cells={"dead": {"model": "digits_torch", "target": "board", "precision": "float32"}},
        deploy={"device_wait_s": 1.0},
    )


def _scheduled_run(root: Path, server: str, environment: dict[str, str]) -> tuple[dict[str, Any], list[Any]]:
    """Serve the schedule until a run that it started has ended. Returns the run and its table."""
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
            mine = [run for run in _runs(server, "retune") if run["parameters"].get("root") == str(root)]
            ended = [run for run in mine if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
        assert ended and ended[0]["auto_scheduled"], "no scheduled run came to an end"
        body = {"artifacts": {"flow_run_id": {"any_": [ended[0]["id"]]}, "key": {"any_": ["retune"]}}}
        [table] = requests.post(f"{server}/artifacts/filter", json=body, timeout=120).json()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ended[0], json.loads(table["data"])


def test_an_upgrade_by_night_proposes_notifies_commits_and_is_accepted(
    copy_of_finished: Path, with_prefect_server: str, webhook: Webhook, tmp_path: Path
) -> None:
    """Three units of two kinds: one has a library to propose, one died, one has a champion that nobody lists.

    With a wrong SQLAlchemy everything looks well and no run is ever scheduled; so wait for one that is done.
    """
    root, dead, unlisted = copy_of_finished, "digits_torch@board:float32", "digits_torch@board:int8"
    _add_board(root)
    tvmflow(root, "promote", "digits")
    _release(root, dead, unlisted)
    _save_block(webhook.address)
    environment = {**_upgrade_compiler(tmp_path / "newer"), "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    plans = json.loads(_with(environment, root, "retune", "--plan", "--json"))
    assert [plan["cell"] for plan in plans] == [CELL, dead, unlisted]
    assert "g++ 99.1" in plans[0]["changes"]["build"][0] and plans[0]["device"].startswith("this machine (")
    assert (plans[0]["remeasured"], plans[0]["retuned"]) == (0, 0) and 0 < plans[0]["minutes"][0] < 10
    assert "not known" in plans[1]["changes"]["build"][0] and "(board-0)" in plans[1]["device"]
    assert "version 1, built with TVM 0.25.0, stays: not under cells:" in plans[2]["verdict"]
    assert plans[2]["verdict"].endswith(f"'tvmflow retune {unlisted}'")
    run, table = _scheduled_run(root, with_prefect_server, environment)
    assert run["name"] == "retune all cells" and set(run["tags"]) >= {CELL, dead} and "cells" not in run["parameters"]
    assert run["state_type"] == "FAILED" and run["state"]["message"] == f"1 of 3 cells failed: {dead}"
    rows, [told] = {row["cell"]: row for row in table}, webhook.received[:1]
    assert "passes the gate" in rows[CELL]["verdict"] and int(rows[CELL]["reused"]) >= 5
    assert rows[dead]["verdict"].startswith("failed, the champion stays: ") and "stays" in rows[unlisted]["verdict"]
    assert told["subject"].startswith("tvmflow re-tune: 3 cells, 0 promoted, 1 proposed, 1 failed")
    assert " got worse from champion to now; units: " in told["body"]
    header, _, *_, waits, commit = told["body"].splitlines()
    assert header.startswith("| cell | TVM | reused | re-measured | re-tuned | lost | ")
    assert waits == f"{CELL} waits for 'tvmflow promote {CELL} --proposal'"
    assert "DVC files are committed to branch retune" in commit
    committed = subprocess.run(
        ["git", "show", "--format=%s", "--name-only", "retune"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "dvc.lock" in committed

    assert f"accept: tvmflow promote {CELL} --proposal" in tvmflow(root, "status").stdout
    [again] = json.loads(_with(environment, root, "retune", CELL, "--json"))
    assert again["proposed"] and again["verdict"].startswith("proposed on ") and again["comparison"] is None
    assert json.loads(tvmflow(root, "promote", CELL, "--proposal", "--json").stdout)["promoted"]
    champion = version_by_alias(Workspace(root), Workspace(root).params.cell(CELL), CHAMPION)
    assert champion is not None and champion.version == "2"
    [last] = json.loads(_with(environment, root, "retune", CELL, "--json"))
    assert last["verdict"].startswith("version 2 was made by this recipe") and last["outcomes"] == {}
    assert "has no proposal" in tvmflow(root, "promote", CELL, "--proposal", code=1).stderr


def _with(environment: dict[str, str], root: Path, *arguments: str) -> str:
    """Run the command line in another environment. Returns its output."""
    command = [sys.executable, "-m", "tvmflow", "--root", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
