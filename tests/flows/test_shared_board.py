"""Sweeps of two workspaces with two homes share one board: all cells end, and who waits is told for whom."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import REPOSITORY
from tests.devices.agents import secret_file
from tvmflow.config.workspace import Workspace
from tvmflow.devices.agent.process import start_agent
from tvmflow.devices.programs import build_agent

PLACES = {"anna/phones": 5, "ben/boards": 2}  # folder of a home -> cells of its workspace
QUICK = {
    "tune": {"trials_per_workload": 2, "measure_min_ms": 20.0, "measure_repeats": 2, "max_drift": 1e9},
    "evaluate": {"turns": 6, "turn_ms": 1.0, "max_seconds": 2.0, "cold_starts": 1, "warmup_runs": 1, "peers": []},
    "flows": {"workers": 5, "device_retries": 0},
}


def _write_model(path: Path, seed: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((64, 8 + seed)).astype(np.float32)
    sizes = (("x", 64), ("y", 8 + seed))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in sizes)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def _workspace(root: Path, cells: int, port: int, secret: Path) -> Path:
    """Write a workspace of small models on the board."""
    root.mkdir(parents=True)
    for number in range(cells):
        _write_model(root / f"m{number}.onnx", number)
    device = {"transport": "agent", "key": "board", "port": port, "secret_file": str(secret)}
    entry = {"framework": "onnx", "input": {"shape": [1, 64]}}
    params = {
        "models": {f"m{number}": {**entry, "weights": {"file": f"m{number}.onnx"}} for number in range(cells)},
        "targets": {"board": {"kind": "llvm", "mcpu": "host", "threads": 1, "device": device}},
        "cells": {f"m{n}": {"model": f"m{n}", "target": "board", "precision": "float32"} for n in range(cells)},
        **QUICK,
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    return root


def _start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    home = {"HOME": str(root.parent), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-m", "tvmflow", *arguments],
        cwd=root,
        env={**os.environ, **home},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_two_sweeps_share_one_board(tmp_path: Path) -> None:
    program = build_agent(tmp_path / "tvmflow-agent", ["g++", "-g"])
    with start_agent([str(program)], str(tmp_path / "store")) as agent:
        secret = secret_file(tmp_path, agent.secret)
        roots = [_workspace(tmp_path / name, cells, agent.port, secret) for name, cells in PLACES.items()]
        for root in roots:
            process = _start(root, "init")
            assert process.wait(timeout=120) == 0, process.communicate()[0]
        sweeps = [_start(root, "sweep") for root in roots]
        said = [sweep.communicate(timeout=500)[0] for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], said
    holders = set()
    for root, text in zip(roots, said, strict=True):
        assert "failed" not in text, text
        workspace = Workspace(root)
        for cell in workspace.params.cells.values():
            assert re.search(rf"{re.escape(str(cell))} evaluate: done", text), text
            card = json.loads((workspace.folder("evaluate", cell) / "scorecard.json").read_text())
            assert card["device"]["key"] == "board" and card["device"]["unit"]
        waits = re.findall(r"m\d@board:float32 \w+: waits for .*board.*, held by \S+: ~/(\w+) m\d\.", text)
        assert len(waits) >= len(workspace.params.cells) - 1, "all but the first waited"
        holders |= set(waits)
    assert holders == {"phones", "boards"}, "for cells of both workspaces"
