"""Test common mistakes: each is reported before anything runs, with the mistake and its remedy.

docs/get_started.md has the same list with the messages; a test keeps the two lists equal.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tests.conftest import REPOSITORY, free_port
from tvmflow.cli import app
from tvmflow.support.errors import TvmflowError

Change = Callable[[Path, dict[str, Any]], object]


@dataclass(frozen=True)
class Mistake:
    """what: as docs/get_started.md calls it. change: (root, params) -> made in the workspace first. says: what must
    be told.
    """

    what: str
    command: str
    says: tuple[str, ...]
    change: Change = field(default=lambda root, params: None)
    code: int = 2


def _onnx(path: Path, shape: list[Any], dtype: int = TensorProto.FLOAT) -> None:
    value = [helper.make_tensor_value_info("x", dtype, shape)]
    out = [helper.make_tensor_value_info("y", dtype, shape)]
    onnx.save(helper.make_model(helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value, out)), path)


def _model(**changes: Any) -> Change:
    return lambda root, params: params["models"]["small"].update(changes)


def _target(**changes: Any) -> Change:
    def change(root: Path, params: dict[str, Any]) -> None:
        local = {"kind": "llvm", "mcpu": "host", "threads": 2, "device": {"transport": "local", "key": "local-cpu"}}
        params["targets"] = {"mine": local | changes}

    return change


def _block(**blocks: Any) -> Change:
    return lambda root, params: params.update(blocks)


def _text(text: str) -> Change:
    return lambda root, params: (root / "params.yaml").write_text(text)


def _tracker(root: Path, params: dict[str, Any]) -> None:
    port = free_port()
    _target(device={"transport": "tracker", "key": "board", "host": "127.0.0.1", "port": port})(root, params)


ON_MINE = "run small@mine:float32 --dry-run"
MISTAKES = [
    Mistake("a command misspelled", "rnu small", ("No such command 'rnu'", "Did you mean 'run'")),
    Mistake("an option misspelled", "run small --dryrun", ("--dryrun", "--dry-run")),
    Mistake("no cell named", "run", ("Missing argument", "--help")),
    Mistake("outside a workspace", "OUTSIDE status", ("no params.yaml", "tvmflow new DIR")),
    Mistake(
        "a workspace without models", "run small", ("has no models yet", "tvmflow add MODEL_FILE"), _text("models:\n")
    ),
    Mistake("a cell misspelled", "run smal", ("no cell 'smal'", "did you mean 'small'?")),
    Mistake(
        "a model in place of a cell",
        "run second",
        ("write second@local-cpu:float32",),
        lambda root, params: (
            params["models"].update(second=params["models"]["small"]),
            params.update(cells={"small": _cell("small")}),
        ),
    ),
    Mistake("a cell without its precision", "run small@local-cpu", ("did you mean 'small@local-cpu:float32'?",)),
    Mistake("a file in place of a cell", "run m.onnx", ("no cell 'm.onnx'", "tvmflow add m.onnx")),
    Mistake("a model misspelled", "run smal@local-cpu:float32", ("unknown model 'smal'", "did you mean 'small'?")),
    Mistake("a target misspelled", "run small@localcpu:float32", ("unknown target", "did you mean 'local-cpu'?")),
    Mistake(
        "a precision by another name", "run small@local-cpu:fp16", ("unknown precision", "did you mean 'float16'?")
    ),
    Mistake(
        "a precision by another name in params.yaml",
        "status",
        ("cells.small.precision", "did you mean 'bfloat16'?"),
        _block(cells={"small": {"model": "small", "target": "local-cpu", "precision": "bf16"}}),
    ),
    Mistake(
        "a cell of an unknown model",
        "status",
        ("unknown model 'smol'", "did you mean 'small'?"),
        _block(cells={"small": {"model": "smol", "target": "local-cpu", "precision": "float32"}}),
    ),
    Mistake(
        "a key misspelled",
        "status",
        ("tune.trials: unknown key", "did you mean 'total_trials'?"),
        _block(tune={"trials": 8}),
    ),
    Mistake("a block misspelled", "status", ("quantise: unknown key", "did you mean 'quantize'?"), _block(quantise={})),
    Mistake(
        "a framework by another name", "status", ("no 'pytorch'", "did you mean 'torch'?"), _model(framework="pytorch")
    ),
    Mistake("a tab in params.yaml", "status", ("params.yaml is not YAML", "line 2"), _text("models:\n\tsmall: {}\n")),
    Mistake("a key written twice", "status", ("duplicate key 'models'",), _text("models: {}\nmodels: {}\n")),
    Mistake(
        "weights: only a file's name",
        "status",
        ("models.small.weights: expected a block", "{file: m.onnx}"),
        _model(weights="m.onnx"),
    ),
    Mistake(
        "a shape as text",
        "status",
        ("models.small.input.shape: expected a list", "[1, 3, 224, 224]"),
        _model(input={"shape": "1,3,8,8"}),
    ),
    Mistake(
        "a url without its digest", "status", ("a url needs its sha256",), _model(weights={"url": "https://x/m.onnx"})
    ),
    Mistake(
        "a model file that does not exist",
        "run small --dry-run",
        ("no weights file", "gone.onnx"),
        _model(weights={"file": "gone.onnx"}),
        1,
    ),
    Mistake(
        "a shape that differs from the file",
        "run small --dry-run",
        ("has shape [1, 3, 8, 8]", "models.small.input.shape"),
        _model(input={"shape": [1, 3, 9, 9]}),
        1,
    ),
    Mistake(
        "a framework that differs from the file",
        "run small --dry-run",
        ("is an ONNX model", "set models.small.framework to onnx"),
        _model(framework="torch"),
        1,
    ),
    Mistake(
        "a data set that does not exist",
        "run small --dry-run",
        ("no dataset file", "correct dataset: in params.yaml"),
        _model(dataset="gone.npz"),
        1,
    ),
    Mistake(
        "a framework that is not installed",
        "run small --dry-run",
        ("not installed", "pip install 'tvmflow[keras]'"),
        lambda root, params: _model(framework="keras", weights={"file": "m.keras"})(root, params),
    ),
    Mistake(
        "no compiler for the target",
        ON_MINE,
        ("no compiler 'arm-none-g++'", "targets.mine.cc"),
        _target(cc="arm-none-g++"),
        1,
    ),
    Mistake(
        "a tracker that does not run",
        ON_MINE,
        ("would be built, not measured", "no RPC tracker", "tvm.exec.rpc_tracker"),
        _tracker,
        4,
    ),
    Mistake(
        "a board that is not registered",
        ON_MINE,
        ("no device with key 'board'", "--key board"),
        _target(device={"transport": "tracker", "key": "board", "host": "127.0.0.1", "port": 1}),
        4,
    ),
    Mistake("a full disk", "run small --dry-run", ("MiB are free", "at least 1024 MiB"), code=1),
    Mistake(
        "adding weights without the network",
        "add state.pt",
        ("weights without the network", "torch.export.save"),
        lambda root, params: torch.save({"w": torch.zeros(2)}, root / "state.pt"),
        1,
    ),
    Mistake(
        "adding a model with open sizes",
        "add open.onnx",
        ("leaves sizes open", "--shape 1,3,224,224"),
        lambda root, params: _onnx(root / "open.onnx", ["n", 3, "h", "w"]),
        1,
    ),
    Mistake("adding a file that does not exist", "add gone.onnx", ("no file", "gone.onnx"), code=1),
    Mistake(
        "adding a model twice", "add m.onnx --name small", ("cell small@local-cpu:float32 already exists", "--name")
    ),
    Mistake("a new workspace over another", "new .", ("already has a params.yaml", "tvmflow add")),
    Mistake(
        "releasing a cell that was never run",
        "promote small",
        ("small@local-cpu:float32 was never built", "run 'tvmflow run small"),
        code=1,
    ),
    Mistake("a report without measurements", "report", ("nothing has been measured", "tvmflow run small"), code=1),
    Mistake("a schedule without a server", "serve", ("no Prefect server", "prefect server start")),
]


def _cell(model: str) -> dict[str, str]:
    return {"model": model, "target": "local-cpu", "precision": "float32"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "mine"
    root.mkdir()
    _onnx(root / "m.onnx", [1, 3, 8, 8])
    (root / "m.keras").write_bytes(b"PK\x03\x04")
    return root


@pytest.fixture
def empty_tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the tracker's address lead to one that knows no device."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(connection.recv(4))
                connection.recv(4096)
                reply = json.dumps([0, {"server_info": [], "queue_info": {}}]).encode()
                connection.sendall(struct.pack("<i", len(reply)) + reply)

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("TVM_TRACKER_PORT", str(listener.getsockname()[1]))
        yield


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_is_told_with_the_way_out(
    mistake: Mistake, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "not registered" in mistake.what:
        request.getfixturevalue("empty_tracker")
    if "full disk" in mistake.what:
        monkeypatch.setattr(
            "tvmflow.setup.preflight.shutil.disk_usage", lambda _path: type("Usage", (), {"free": 5 << 20})
        )
    if "not installed" in mistake.what:
        monkeypatch.setattr("tvmflow.setup.preflight.version", lambda tool: "absent")
    params: dict[str, Any] = {
        "models": {"small": {"framework": "onnx", "weights": {"file": "m.onnx"}, "input": {"shape": [1, 3, 8, 8]}}}
    }
    path = root / "params.yaml"
    mistake.change(root, params)
    if not path.exists():
        path.write_text(yaml.safe_dump(params, sort_keys=False))
    monkeypatch.chdir(tmp_path if mistake.command.startswith("OUTSIDE") else root)
    done = CliRunner().invoke(app, mistake.command.removeprefix("OUTSIDE ").split())
    expected = isinstance(done.exception, TvmflowError)
    text = str(done.exception) if expected else done.output
    assert expected or isinstance(done.exception, SystemExit), done.exception
    assert (done.exception.exit_code if isinstance(done.exception, TvmflowError) else done.exit_code) == mistake.code, (
        text
    )
    plain = re.sub(r"[\s│]+", " ", text)
    assert [says for says in mistake.says if says not in plain] == [], text
    assert len(text) < 2500
    assert not (root / "artifacts").exists() or not list((root / "artifacts").glob("fetch/*"))


def test_the_page_lists_the_same_mistakes() -> None:
    rows = re.findall(r"^\| \d+ \| ([^|]+) \|", (REPOSITORY / "docs" / "get_started.md").read_text(), re.M)
    assert [row.strip() for row in rows] == [mistake.what for mistake in MISTAKES]
