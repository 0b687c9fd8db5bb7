"""Test that .tflite, SavedModel and MXNet files, and the frameworks started for them, are read in a sandbox."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import tarfile
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tasks.import_model import ImportLimits, ImportSettings, allowed_outputs, import_model
from tests.conftest import REPOSITORY
from tests.fuzz.seeds import params_bytes, symbol_json
from tvmflow.frontends.source_model import SourceDescription, one_input
from tvmflow.pipeline.stage import StageContext
from tvmflow.sandbox.process import Policy, Sandbox
from tvmflow.sources.data.datasets import Samples
from tvmflow.support.errors import ModelFileError, TvmflowError
from tvmflow.support.files import digest_of
from tvmflow.toolchain.environments import TOOL_ENVIRONMENTS

pytestmark = pytest.mark.heavy

ALLOWED = {
    "write in its own folder",
    "write in the stage's folder",
    "make a temporary file",
    "start a child",
    "start a thread",
    "keep nothing open",
    "talk to itself",
    "see all of the system",
}
# What a framework that obeys a hostile model could try; its last words say what came of it.
POISON = """
import json, os, sys
arguments = {arguments!r}
replies = os.dup(1)
if sys.argv[1] != "convert":
    sys.stdin.readline()
done = " and ".join(name for name, came in attempt(**arguments).items() if came == "done")
os.write(replies, (json.dumps({{"error": done}}) if sys.argv[1] != "convert" else done).encode() + b"\\n")
sys.exit(1)
"""


def _import(folder: Path, framework: str, name: str, files: dict[str, bytes]) -> dict[str, Any]:
    """Run the stage on these files."""
    fetched, out = folder / "fetch", folder / "out"
    fetched.mkdir(), out.mkdir()
    for file, content in files.items():
        (fetched / file).parent.mkdir(parents=True, exist_ok=True)
        (fetched / file).write_bytes(content)
    x = np.zeros((2, 1, 8, 8), np.float32)
    for part in ("evaluation", "golden"):
        Samples((x,)).save(fetched / f"{part}.npz")
    (fetched / "labels.json").write_text("null")
    description = SourceDescription(framework, None, name, one_input("input", (1, 1, 8, 8)))
    (fetched / "source.json").write_text(json.dumps(asdict(description)))
    context = StageContext(
        cast(Any, None),
        ImportSettings(framework, None, 1e-3),
        ImportLimits(200.0),
        {"fetch": fetched},
        out,
        folder,
        folder / "log",
    )
    return import_model(context)


def _poison(tools: Path, name: str, arguments: dict[str, Any]) -> None:
    """Put a hostile program where the tool environment of a framework would be."""
    tool, version = TOOL_ENVIRONMENTS[name], f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = tools / f"{name}-{digest_of([*tool.packages, version])[:12]}" / "bin"
    folder.mkdir(parents=True)
    deeds = (REPOSITORY / "tests" / "sandbox" / "sandbox_deeds.py").read_text()
    deeds = deeds.replace(
        "from tvmflow.support.errors import ModelFileError", "ModelFileError = Exception"
    )  # tvmflow is not there
    (folder / "deeds.py").write_text(deeds + POISON.format(arguments=arguments))
    (folder / "python").write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {folder / "deeds.py"} "$@"\n')
    (folder / "python").chmod(0o755)


def _saved_model() -> dict[str, bytes]:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("model/saved_model.pb", b"hostile")
    return {"model.zip": content.getvalue()}


GRAPH = b"\x08\x01\x12\x00"  # of a SavedModel


def _hub_archive() -> dict[str, bytes]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name in ("./saved_model.pb", "./variables/variables.index"):
            entry = tarfile.TarInfo(name)
            entry.size = len(GRAPH)
            archive.addfile(entry, io.BytesIO(GRAPH))
    return {"model.tar.gz": content.getvalue()}


def _mxnet() -> dict[str, bytes]:
    nodes = [("null", "data", {}, []), ("null", "w", {}, []), ("FullyConnected", "f", {"num_hidden": "3"}, [0, 1])]
    return {
        "model-symbol.json": symbol_json(nodes, 2).encode(),
        "model-0000.params": params_bytes({"arg:w": np.ones((3, 64), np.float32)}, 2),
    }


@pytest.mark.parametrize(
    ("framework", "tool", "name", "files"),
    [
        ("tensorflow", "tensorflow", "model.zip", _saved_model()),
        ("tensorflow", "tensorflow", "model.tar.gz", _hub_archive()),
        ("tensorflow", "tensorflow", "model.pb", {"model.pb": GRAPH, "saved_model/variables/variables.index": b"x"}),
        ("tensorflow", "tensorflow", "model.pb", {"model.pb": b"a frozen graph"}),
        ("mxnet", "mxnet", "model-symbol.json", _mxnet()),
    ],
    ids=["SavedModel", "TF Hub", "SavedModel folder", "frozen graph", "MXNet"],
)
def test_a_framework_that_obeys_a_hostile_model_reaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str, tool: str, name: str, files: dict[str, bytes]
) -> None:
    with Sandbox("os:getpid", {}, Policy(60.0)) as sandbox:
        if not {"landlock", "seccomp"} <= set(sandbox.held):
            pytest.skip(f"needs Landlock and seccomp; this kernel gives {sandbox.held}")
    secret, victim = tmp_path / "secret", tmp_path / "victim"
    secret.write_text("secret"), victim.write_text("whole")
    monkeypatch.setenv("TVMFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = {
            "secret": str(secret),
            "victim": str(victim),
            "out": str(tmp_path / "out"),
            "parent": os.getpid(),
            "port": server.getsockname()[1],
        }
        _poison(tmp_path / "cache" / "tools", tool, arguments)
        with pytest.raises(TvmflowError, match="in its tool environment failed") as error:
            _import(tmp_path, framework, name, files)
    done = set(error.value.found.split("failed: ", 1)[1].split(" (")[0].split(" and "))
    assert {"write in its own folder", "write in the stage's folder", "start a child"} <= done <= ALLOWED
    assert victim.read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {"secret", "victim", "cache", "fetch", "out"}


@pytest.mark.parametrize("body", [b"\xff" * 400])
def test_another_process_opens_a_tflite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """And TensorFlow is not installed for it."""
    monkeypatch.setattr("tvmflow.toolchain.environments._make", lambda *_: pytest.fail("an environment is made"))
    monkeypatch.setattr("tvmflow.toolchain.environments.environments_folder", lambda: tmp_path / "tools")
    for module in ("ai_edge_litert", "ai_edge_litert.interpreter", "tflite"):
        monkeypatch.setitem(sys.modules, module, None)  # not to be had in this process
    with pytest.raises(ModelFileError, match=r"model.tflite is damaged|tflite"):
        _import(tmp_path, "tensorflow", "model.tflite", {"model.tflite": b"\x10\0\0\0TFL3" + body})


def test_only_external_data_of_onnx_may_be_copied() -> None:
    fetched = {"weights.bin": 40, "model.pt2": 50, "source.json": 3, "golden.npz": 4, ".hidden": 1, "model.json": 7}
    own = allowed_outputs("torch", fetched)
    for framework in ("keras", "mxnet", "tensorflow"):
        assert allowed_outputs(framework, fetched) == own
    assert not {"weights.bin", "model.pt2"} & own.keys()
    assert allowed_outputs("onnx", fetched).items() - own.items() == {("weights.bin", 40), ("model.pt2", 50)}
    assert allowed_outputs("onnx", fetched)["model.json"] == own["model.json"] > 7
