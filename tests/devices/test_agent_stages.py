"""deploy, evaluate and promote through an agent: the stages as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from flows.release_model import decide
from tests.conftest import SLUG, stage
from tests.devices.agents import secret_file
from tvmflow.artifacts import RECORD_NAME, describe_file
from tvmflow.devices.agent_program import RunningAgent
from tvmflow.ledger.registry import CHAMPION, Version, open_registry, register_version, version_by_alias
from tvmflow.ledger.releases import promote
from tvmflow.params import Cell
from tvmflow.release.candidate import Candidate
from tvmflow.workspace import Workspace


def test_a_cell_is_deployed_and_evaluated_through_an_agent(
    copy_of_finished: Path, agent: RunningAgent, tmp_path: Path
) -> None:
    root = copy_of_finished
    _reach(root, agent, tmp_path)
    stage(root, "deploy")
    deployed = json.loads((root / "artifacts" / "deploy" / SLUG / "deployed.json").read_text())
    assert deployed["unit"].startswith("host-") and deployed["sha256"] == deployed["remote_path"]
    stage(root, "evaluate")
    card = json.loads((root / "artifacts" / "evaluate" / SLUG / "scorecard.json").read_text())
    assert card["device"]["unit"] == deployed["unit"] and card["device"]["build"] == deployed["build"]
    assert card["latency"]["compute"]["runs"] > 0 and card["first_run_ms"][0] > 0 and card["machine"] is None
    assert card["peers"] == {} and card["accuracy"]["built"] >= 0.9


def test_what_ships_is_compared_with_the_champion_through_an_agent(
    copy_of_finished: Path, agent: RunningAgent, tmp_path: Path
) -> None:
    workspace = Workspace(copy_of_finished)
    cell = workspace.params.cell("digits")
    old = Candidate(workspace, cell)
    promote(workspace, old.version, "the first")
    _reach(workspace.root, agent, tmp_path)
    _build_another_network(workspace, cell, old.version)
    new = Candidate(Workspace(workspace.root), cell)
    assert new.version.sha256 == old.version.sha256 and new.version.network_sha256 != old.version.network_sha256
    assert new.version.version != old.version.version and not new.is_champion, "what ships now was not judged"
    verdict = decide(new.workspace, cell, dry_run=True)
    assert verdict["comparison"] and verdict["comparison"]["rounds"] > 1, verdict["text"]
    champion = version_by_alias(workspace, cell, CHAMPION)
    assert champion is not None and champion.version == old.version.version


def _build_another_network(workspace: Workspace, cell: Cell, old: Version) -> None:
    """Let the cell's library be the same kernels in another network.so, measured later."""
    folder = workspace.folder("build", cell)
    with (folder / "network.so").open("ab") as file:
        file.write(b"\0")
    made = describe_file(folder / "network.so")
    record = json.loads((folder / RECORD_NAME).read_text())
    record["outputs"]["network.so"] |= {"sha256": made.sha256, "md5": made.md5, "size": made.size}
    (folder / RECORD_NAME).write_text(json.dumps(record))
    tags = old.tags | {"network_sha256": made.sha256, "network_dvc_md5": made.md5, "measured": "9999"}
    client = open_registry(workspace)
    model = client.get_model_version(old.name, old.version).source.removeprefix("models:/")
    register_version(client, cell, model, old.run_id, tags)


def _reach(root: Path, agent: RunningAgent, folder: Path) -> None:
    """Let the cell's device be an agent."""
    path = root / "params.yaml"
    params = yaml.safe_load(path.read_text())
    secret = secret_file(folder, agent.secret)
    device = {"transport": "agent", "key": "local-cpu", "port": agent.port, "secret_file": str(secret), "cpu_mask": 3}
    params["targets"]["local-cpu"]["device"] = device
    path.write_text(yaml.safe_dump(params))
