"""Run all stages of cells through the agent: on phones that the real adb reaches, and by address."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tasks.table import STAGES
from tests.conftest import CELL, SLUG
from tests.devices.agents import secret_file
from tests.devices.fake_phone import FakePhone
from tvmflow.api import predict
from tvmflow.config.workspace import find_workspace
from tvmflow.devices.agent.process import AgentProcess, start_agent
from tvmflow.pipeline.store import Store
from tvmflow.support.files import load_arrays
from tvmflow.support.progress import silent

BUILD = "fake/fake/7:15/1"
UPSTREAM = ["fetch", "import_model", "quantize"]


def _walk(root: Path, device: dict[str, Any], sessions: int, trials: int) -> dict[str, Any]:
    """Run every stage in this process, which spares a minute of imports; returns the scorecard.

    threads: 1 makes another kind of device than the workspace has records of.
    """
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["targets"]["local-cpu"] |= {"threads": 1, "device": device}
    params["tune"] |= {
        "trials_per_workload": trials,
        "measure_min_ms": 1.0,
        "devices": sessions,
        "give_up_s": 60.0,
    }
    params["evaluate"] |= {"turns": 6, "turn_ms": 1.0, "warmup_runs": 1}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    workspace = find_workspace(root)
    store, cell = Store(workspace, STAGES), workspace.params.cell(CELL)
    outcomes = {name: store.ensure(name, cell, progress=silent, again=False)[1] for name in STAGES}
    assert {outcomes[name] for name in UPSTREAM} == {"hit"} and outcomes["evaluate"] == "made"
    card: dict[str, Any] = json.loads((root / "artifacts" / "evaluate" / SLUG / "scorecard.json").read_text())
    deployed = json.loads((root / "artifacts" / "deploy" / SLUG / "deployed.json").read_text())
    assert (deployed["unit"], deployed["build"]) == (card["device"]["unit"], card["device"]["build"])
    assert deployed["sha256"] == deployed["remote_path"], "an agent knows files by their digests"
    assert card["accuracy"]["built"] >= 0.9 and card["coverage"] == 1.0 and card["latency"]["compute"]["runs"] > 0
    assert card["machine"] is None and card["peers"] == {} and card["first_run_ms"][0] > 0
    return card


def _records(root: Path) -> list[dict[str, Any]]:
    log = root / "artifacts" / "tuning_log" / f"{SLUG}.jsonl"
    return [one for line in log.read_text().splitlines() if (one := json.loads(line))["device_kind"].endswith("-t1")]


class _Killer(threading.Thread):
    """Unplugs the phone that is the first to have measured something."""

    def __init__(self, root: Path, phones: list[FakePhone]) -> None:
        super().__init__()
        self.root, self.phones, self.over, self.gone = root, phones, threading.Event(), ""

    def run(self) -> None:
        while not self.gone and not self.over.wait(0.02):
            for phone in self.phones:
                if not self.gone and any(one["unit"] == phone.serial for one in _records(self.root)):
                    self.gone = phone.serial
                    phone.unplug()


@pytest.fixture
def phones(adb: str, tmp_path: Path) -> Iterator[list[FakePhone]]:
    with FakePhone(tmp_path / "one") as one, FakePhone(tmp_path / "two") as two:
        yield [one, two]
        for phone in (one, two):
            subprocess.run([adb, "disconnect", phone.serial], capture_output=True, check=False)


def test_a_cell_on_two_phones_one_of_which_dies_while_it_is_tuned(
    copy_of_finished: Path, phones: list[FakePhone], program: Path
) -> None:
    root, serials = copy_of_finished, [phone.serial for phone in phones]
    killer = _Killer(root, phones)
    killer.start()
    try:
        card = _walk(root, {"transport": "adb", "key": "phones", "serials": serials, "agent": str(program)}, 2, 2)
    finally:
        killer.over.set()
        killer.join()
    records, [left] = _records(root), set(serials) - {killer.gone}
    assert {record["unit"] for record in records} == set(serials), "both measured"
    assert {(record["build"], record["status"]) for record in records} == {(BUILD, "ok")}
    tuned = json.loads((root / "artifacts" / "tune" / SLUG / "record.json").read_text())["facts"]
    assert tuned["devices_lost"] >= 1 and tuned["given_up"] == 0 and set(tuned["units"]) == set(serials)
    assert any(killer.gone in note for note in tuned["notes"]), tuned["notes"]
    assert (card["device"]["unit"], card["device"]["build"]) == (left, BUILD)


@pytest.mark.slow
def test_a_cell_through_an_agent(copy_of_finished: Path, program: Path, tmp_path: Path) -> None:
    with start_agent([str(program)], str(tmp_path / "store")) as agent:
        card = _walk(copy_of_finished, _agent_device(agent, tmp_path), 1, 1)
        folder = copy_of_finished / "artifacts"
        [x] = load_arrays(folder / "fetch" / SLUG / "golden.npz", "x")
        found = predict(CELL, x[:3], copy_of_finished)
        [expected] = load_arrays(folder / "quantize" / SLUG / "reference.npz", "golden")
    np.testing.assert_allclose(found, expected[:3], atol=1e-4)
    assert card["device"]["unit"].startswith("host-") and card["device"]["build"]
    assert {record["unit"] for record in _records(copy_of_finished)} == {card["device"]["unit"]}


def _agent_device(agent: AgentProcess, folder: Path) -> dict[str, Any]:
    secret = secret_file(folder, agent.secret)
    return {"transport": "agent", "key": "local-cpu", "port": agent.port, "secret_file": str(secret), "cpu_mask": 3}
