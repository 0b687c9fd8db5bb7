"""Measure the cells of a sweep on all units of their devices: three of two kinds, one of which dies meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY
from tests.devices.agents import secret_file
from tests.flows.test_shared_board import QUICK, _write_model
from tvmflow import api
from tvmflow.config.workspace import Workspace
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.devices.agent.registration import Offer, offer_agent
from tvmflow.devices.programs import build_agent
from tvmflow.devices.rpc.tracker import queue_of
from tvmflow.devices.tracker_protocol import TrackerAddress
from tvmflow.support.errors import TvmflowError
from tvmflow.tracking.mlflow.history import measurements

UNITS = {"board1": "board", "board2": "board", "phone1": "phone"}  # unit -> key
DIES = "board2"
SECRET = b"one secret of all devices"


@pytest.fixture
def tracker() -> Iterator[TrackerAddress]:
    from tvm.rpc.tracker import Tracker

    made = Tracker("127.0.0.1", 9290, 9390, silent=True)
    yield TrackerAddress("127.0.0.1", made.port)
    made.terminate()


@pytest.fixture
def agents(tracker: TrackerAddress, tmp_path: Path) -> Iterator[dict[str, AgentProcess]]:
    """Return unit -> an agent that is offered to the tracker."""
    over = threading.Event()
    program = build_agent(tmp_path / "tvmflow-agent", ["g++", "-g"])

    def offer(unit: str, agent: AgentProcess) -> None:
        with contextlib.suppress(TvmflowError):  # the one that dies
            offer_agent(tracker, Offer(UNITS[unit], "127.0.0.1", agent.port, SECRET, unit, "debian"), over)

    with contextlib.ExitStack() as stack:
        made = {}
        for unit in UNITS:
            made[unit] = stack.enter_context(start_agent([str(program)], str(tmp_path / unit), secret=SECRET))
            thread = threading.Thread(target=offer, args=(unit, made[unit]))
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        deadline = time.monotonic() + 60
        while sum(one["total"] for one in queue_of(tracker).values()) < len(UNITS):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield made


def write_workspace(root: Path, tracker: TrackerAddress) -> Workspace:
    """Write two models on both kinds of devices."""
    root.mkdir()
    secret = secret_file(root.parent, SECRET)
    for number in range(2):
        _write_model(root / f"m{number}.onnx", number)
    device = {"transport": "tracker", "host": tracker.host, "port": tracker.port, "secret_file": str(secret)}
    target = {"kind": "llvm", "mcpu": "host", "threads": 1}
    entry = {"framework": "onnx", "input": {"shape": [1, 64]}}
    params = {
        "models": {f"m{number}": {**entry, "weights": {"file": f"m{number}.onnx"}} for number in range(2)},
        "targets": {key: {**target, "device": {**device, "key": key}} for key in ("board", "phone")},
        "cells": {
            f"m{number}-{key}": {"model": f"m{number}", "target": key, "precision": "float32"}
            for number in range(2)
            for key in ("board", "phone")
        },
        **QUICK,
        "tune": {**QUICK["tune"], "trials_per_workload": 0},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    return Workspace(root)


def sweep(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tvmflow", "sweep", "--unit", "all", "--json"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_sweep_measures_on_all_units_and_one_that_dies_costs_its_own_measurements_only(
    tracker: TrackerAddress, agents: dict[str, AgentProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = write_workspace(tmp_path / "workspace", tracker)
    subprocess.run([sys.executable, "-m", "tvmflow", "init"], cwd=workspace.root, check=True, capture_output=True)

    first = sweep(workspace.root)
    out, err = first.communicate(timeout=400)
    assert first.returncode == 0, err
    assert _measured(workspace) == {
        f"m{number}@{key}:float32": sorted(unit for unit, of in UNITS.items() if of == key)
        for number in range(2)
        for key in ("board", "phone")
    }

    second = sweep(workspace.root)
    logs = [workspace.log_path("deploy", workspace.params.cell(f"m{number}-board")) for number in range(2)]
    for log in logs:
        log.unlink()
    while not all(log.exists() for log in logs):  # each cell chose its units
        assert second.poll() is None, second.communicate()
        time.sleep(0.02)
    agents[DIES].process.kill()
    out, err = second.communicate(timeout=400)
    assert second.returncode == 1 and "Traceback" not in err, err
    errors = {one["cell"]: one["error"]["found"] for one in json.loads(out)["results"] if one["error"]}
    assert errors and all("@board" in cell and text.startswith(f"{DIES}: ") for cell, text in errors.items()), errors
    for cell in workspace.params.cells.values():
        counts = {unit: 0 for unit, key in UNITS.items() if key == cell.target}
        for one in measurements(workspace, cell):
            counts[one["unit"]] += 1
        lost = {DIES: 1} if str(cell) in errors else {}  # what it measured before stays
        assert counts == dict.fromkeys(counts, 2) | lost, (cell, counts)
    rows = api.compare("m0", workspace.root)
    assert {row["unit"] for row in rows} == set(UNITS), rows


def _measured(workspace: Workspace) -> dict[str, list[str]]:
    """Return cell -> the units that it was measured on."""
    return {
        str(cell): sorted(one["unit"] for one in measurements(workspace, cell))
        for cell in workspace.params.cells.values()
    }
