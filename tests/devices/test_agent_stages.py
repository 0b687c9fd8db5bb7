"""deploy and evaluate through an agent: the stages as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.conftest import SLUG, stage
from tests.devices.agents import secret_file
from tvmflow.devices.agent_program import RunningAgent


def test_a_cell_is_deployed_and_evaluated_through_an_agent(
    copy_of_finished: Path, agent: RunningAgent, tmp_path: Path
) -> None:
    root, path = copy_of_finished, copy_of_finished / "params.yaml"
    params = yaml.safe_load(path.read_text())
    secret = secret_file(tmp_path, agent.secret)
    device = {"transport": "agent", "key": "local-cpu", "port": agent.port, "secret_file": str(secret), "cpu_mask": 3}
    params["targets"]["local-cpu"]["device"] = device
    path.write_text(yaml.safe_dump(params))
    stage(root, "deploy")
    deployed = json.loads((root / "artifacts" / "deploy" / SLUG / "deployed.json").read_text())
    assert deployed["unit"].startswith("host-") and deployed["sha256"] == deployed["remote_path"]
    stage(root, "evaluate")
    card = json.loads((root / "artifacts" / "evaluate" / SLUG / "scorecard.json").read_text())
    assert card["device"]["unit"] == deployed["unit"] and card["device"]["build"] == deployed["build"]
    assert card["latency"]["compute"]["runs"] > 0 and card["first_run_ms"][0] > 0 and card["machine"] is None
    assert card["peers"] == {} and card["accuracy"]["built"] >= 0.9
