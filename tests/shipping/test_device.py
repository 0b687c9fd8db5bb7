"""Run the golden inputs of a bundle on a device, through the agent and through TVM's RPC server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bundle_parts import CELL
from tests.conftest import REPOSITORY, tvmflow
from tests.devices.agents import secret_file
from tvmflow import api
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.programs import build_agent
from tvmflow.shipping.bundle.signing import KeyPair
from tvmflow.support.errors import DeviceLostError, UnknownNameError, UsageError


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return a workspace whose targets are this machine, an agent on it, and a board of another architecture."""
    root = tmp_path / "workspace"
    root.mkdir()
    targets: dict[str, Any] = yaml.safe_load((REPOSITORY / "params.yaml").read_text())["targets"]
    here = targets["local-cpu"]
    agent = {"transport": "agent", "key": "bench", "port": 1, "secret_file": str(tmp_path / "secret")}
    chosen = {"local-cpu": here, "agent-here": {**here, "device": agent}, "board": targets["raspberry-pi-5"]}
    model = {"framework": "onnx", "weights": {"file": "x.onnx"}, "input": {"shape": [1, 4]}}
    (root / "params.yaml").write_text(yaml.safe_dump({"models": {"m": model}, "targets": chosen}))
    return root


def _ran(bundle: Path, keys: KeyPair, workspace: Path, device: str) -> str:
    [library] = api.verify_bundle(bundle, keys.public, device=device, workspace=workspace).libraries
    assert library.cell == CELL and "golden inputs" in library.ran
    return library.ran_on_device


def test_through_an_agent(bundle: Path, keys: KeyPair, workspace: Path, tmp_path: Path) -> None:
    program = build_agent(tmp_path / "tvmflow-agent", ["g++"])
    with start_agent([str(program)], str(tmp_path / "store")) as agent:
        secret_file(tmp_path, agent.secret)
        path = workspace / "params.yaml"
        path.write_text(path.read_text().replace("port: 1\n", f"port: {agent.port}\n"))
        said = _ran(bundle, keys, workspace, "bench")  # by the device's own key
        assert said.startswith("on agent-here (host-") and "golden inputs" in said
        shown = tvmflow(workspace, "verify", str(bundle), "--key", str(keys.public), "--device", "agent-here", "--json")
        assert json.loads(shown.stdout)["libraries"][0]["ran_on_device"] == said
    with pytest.raises(DeviceLostError, match="bench"):
        _ran(bundle, keys, workspace, "agent-here")


def test_through_a_server_of_tvm(bundle: Path, keys: KeyPair, workspace: Path) -> None:
    assert _ran(bundle, keys, workspace, "local-cpu").startswith("on local-cpu")


def test_what_is_not_run(bundle: Path, keys: KeyPair, workspace: Path) -> None:
    assert "not run on board: it is for x86_64-linux-gnu" in _ran(bundle, keys, workspace, "board")
    with pytest.raises(UnknownNameError, match="no device 'bord'") as error:
        _ran(bundle, keys, workspace, "bord")
    assert "'board'" in error.value.hint
    with pytest.raises(UsageError, match="without a required signature"):
        api.verify_bundle(bundle, unsigned=True, device="board", workspace=workspace)
