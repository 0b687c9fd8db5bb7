"""Run broken models through the real stages: one clear error, exit code 1, nothing stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import stage, tvmflow

MINE = "mine@local-cpu:float32"


def _model(**entry: Any) -> Callable[[dict[str, Any]], None]:
    def change(params: dict[str, Any]) -> None:
        base = {
            "framework": "torch",
            "network": "digits_cnn",
            "weights": {"seeded": 1},
            "input": {"shape": [1, 1, 8, 8]},
        }
        params["models"]["mine"] = base | entry

    return change


@pytest.mark.parametrize(
    ("entry", "stages", "says"),
    [
        ({"weights": {"file": "w.pt", "sha256": "0" * 64}}, ["fetch"], "has sha256"),
        ({"weights": {"file": "gone.pt"}}, ["fetch"], "no weights file"),
        ({"weights": {"url": "http://127.0.0.1:9/w.pt", "sha256": "0" * 64}}, ["fetch"], "could not be downloaded"),
        ({"weights": {"url": "http://example.com/w.pt", "sha256": "0" * 64}}, ["fetch"], "protocol http"),
        ({"network": "nope"}, ["fetch"], "no torch network 'nope'"),
        ({"dataset": "gone.npz"}, ["fetch"], "no dataset file"),
        ({"dataset": "digits", "input": {"shape": [1, 1, 9, 9]}}, ["fetch"], "samples of shape (1, 8, 8)"),
        ({"labels": "labels.txt"}, ["fetch", "import_model"], "2 labels for a model with 10 outputs"),
        ({"input": {"shape": [1, 3, 8, 8]}}, ["fetch", "import_model"], "rejects inputs of float32 [1, 3, 8, 8]"),
        ({"weights": {"file": "w.pt"}}, ["fetch", "import_model"], "damaged or not only tensors"),
        (
            {"framework": "onnx", "network": None, "weights": {"file": "torn.onnx"}},
            ["fetch", "import_model"],
            "not a whole, valid ONNX",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_one_clear_error(
    make_workspace: Callable[..., Path], entry: dict[str, Any], stages: list[str], says: str
) -> None:
    root = make_workspace(_model(**entry))
    (root / "w.pt").write_bytes(b"not a model")
    (root / "torn.onnx").write_bytes(b"\x08\x07\x12\x04torn")
    (root / "labels.txt").write_text("a\nb\n")
    for name in stages[:-1]:
        stage(root, name, MINE)
    done = stage(root, stages[-1], MINE, code=None)
    assert done.returncode == (2 if says.startswith("no torch network") else 1)
    assert says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (root / "artifacts" / stages[-1] / "mine.local-cpu.float32").exists()


def test_a_precision_that_does_not_exist_is_a_usage_error(make_workspace: Callable[..., Path]) -> None:
    root = make_workspace()
    done = tvmflow(root, "why", "digits_torch@local-cpu:int7", code=2)
    assert "int7" in done.stderr and "vta_int8" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "digitz"], 2, "no cell 'digitz'"),
        (["run", "digits_torch@moon:float32"], 2, "rk3399"),
        (["why"], 2, "Missing argument"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_typing_errors(make_workspace: Callable[..., Path], arguments: list[str], code: int, says: str) -> None:
    done = tvmflow(make_workspace(), *arguments, code=code)
    assert says in done.stderr and "Traceback" not in done.stderr


def test_no_workspace_and_a_traceback_only_with_debug(tmp_path: Path) -> None:
    done = tvmflow(tmp_path, "status", code=2)
    assert "no params.yaml" in done.stderr and "Traceback" not in done.stderr
    assert "Traceback" in tvmflow(tmp_path, "--debug", "status", code=1).stderr


def test_a_model_of_ones_own_in_five_lines(make_workspace: Callable[..., Path]) -> None:
    """An ONNX file, as the README's recipe has it, all the way to a library."""
    import torch

    root = make_workspace(_model(framework="onnx", network=None, weights={"file": "mine.onnx"}))
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 5))
    torch.onnx.export(
        net.eval(), (torch.zeros(1, 1, 8, 8),), root / "mine.onnx", dynamo=True, external_data=False, verbose=False
    )
    for name in ("fetch", "import_model", "quantize", "graph_pack", "tune", "build", "deploy"):
        stage(root, name, MINE)
    assert (root / "artifacts" / "build" / "mine.local-cpu.float32" / "library.so").stat().st_size > 10_000
