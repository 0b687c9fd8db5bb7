"""Test that a model file which cannot be imported is refused by its header before anything runs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.numpy import save_file

from tvmflow.config.params import ModelEntry
from tvmflow.config.workspace import Workspace
from tvmflow.frontends.file_headers import read_header
from tvmflow.setup.preflight import MAX_BYTES, _compare, check_model
from tvmflow.support.errors import ModelFileError, TvmflowError

SHAPE = (1, 3, 8, 8)


def _onnx(path: Path, inputs: list[tuple[str, int, list[Any]]]) -> Path:
    nodes = [helper.make_node("Identity", [inputs[0][0]], ["y"])]
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    out = helper.make_tensor_value_info("y", inputs[0][1], inputs[0][2])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", values, [out])), path)
    return path


class _Two(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class _One(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a * 2


def _pt2(path: Path, module: torch.nn.Module, *inputs: torch.Tensor) -> Path:
    torch.export.save(torch.export.export(module, inputs), path)
    return path


def _keras(path: Path, *layers: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        config = [{"class_name": "InputLayer", "config": layer} for layer in layers]
        archive.writestr("config.json", json.dumps({"class_name": "Functional", "config": {"layers": config}}))
    return path


def _make(kind: str, folder: Path) -> Path:
    one: dict[str, Any] = {"name": "a", "batch_shape": [None, 8, 8, 3], "dtype": "float32"}
    float32, int64 = TensorProto.FLOAT, TensorProto.INT64
    x = torch.zeros(SHAPE)
    made = {
        "onnx": lambda: _onnx(folder / "m.onnx", [("x", float32, list(SHAPE))]),
        "onnx open batch": lambda: _onnx(folder / "m.onnx", [("x", float32, ["n", 3, 8, 8])]),
        "onnx two": lambda: _onnx(folder / "m.onnx", [("x", float32, list(SHAPE)), ("z", float32, [1])]),
        "onnx integer": lambda: _onnx(folder / "m.onnx", [("x", int64, list(SHAPE))]),
        "onnx shape": lambda: _onnx(folder / "m.onnx", [("x", float32, [1, 3, 9, 8])]),
        "onnx rank": lambda: _onnx(folder / "m.onnx", [("x", float32, [1, 3])]),
        "pt2": lambda: _pt2(folder / "m.pt2", _One(), x),
        "pt2 two": lambda: _pt2(folder / "m.pt2", _Two(), x, x),
        "pt2 integer": lambda: _pt2(folder / "m.pt2", _One(), x.to(torch.int64)),
        "pt2 shape": lambda: _pt2(folder / "m.pt2", _One(), torch.zeros(1, 3, 9, 8)),
        "keras": lambda: _keras(folder / "m.keras", one),
        "keras two": lambda: _keras(folder / "m.keras", one, one | {"name": "b"}),
        "keras integer": lambda: _keras(folder / "m.keras", one | {"dtype": "int32"}),
    }
    return made[kind]()


def _entry(framework: str, **inputs: Any) -> ModelEntry:
    shown = {"inputs": inputs} if inputs else {"input": {"shape": SHAPE}}
    return ModelEntry.model_validate({"framework": framework, "weights": {"file": "m.onnx"}, **shown})


def _check(path: Path, framework: str) -> None:
    header = read_header(str(path), MAX_BYTES)
    assert header is not None, "the format is not recognized"
    _compare("mine", path, header, _entry(framework))


@pytest.mark.parametrize(
    ("kind", "framework"),
    [("onnx", "onnx"), ("onnx open batch", "onnx"), ("pt2", "torch"), ("keras", "keras")],
)
def test_a_model_that_fits_passes(tmp_path: Path, kind: str, framework: str) -> None:
    _check(_make(kind, tmp_path), framework)


@pytest.mark.parametrize(
    ("kind", "framework", "says"),
    [
        ("onnx", "torch", "is an ONNX model"),
        ("onnx two", "onnx", "2 inputs: x, z"),
        ("onnx integer", "onnx", "input x of m.onnx is int64"),
        ("onnx shape", "onnx", r"has shape \[1, 3, 9, 8\]"),
        ("onnx rank", "onnx", r"has shape \[1, 3\]"),
        ("pt2", "keras", "an exported PyTorch program"),
        ("pt2 two", "torch", "2 inputs: a, b"),
        ("pt2 integer", "torch", "is int64"),
        ("pt2 shape", "torch", r"has shape \[1, 3, 9, 8\]"),
        ("keras", "onnx", "is a Keras model"),
        ("keras two", "keras", "2 inputs: a, b"),
        ("keras integer", "keras", "is int32"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path: Path, kind: str, framework: str, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        _check(_make(kind, tmp_path), framework)


@pytest.mark.parametrize(
    ("name", "framework"), [("weights.safetensors", "torch"), ("m.h5", "keras"), ("s.pt", "torch"), ("t.pt", "torch")]
)
def test_weights_alone_tell_their_framework(tmp_path: Path, name: str, framework: str) -> None:
    path = tmp_path / name
    if name == "weights.safetensors":
        save_file({"w": np.zeros(3, "float32")}, path)
    elif name == "m.h5":
        with h5py.File(path, "w") as file:
            file["w"] = np.zeros(3)
    elif name == "s.pt":
        torch.save({"w": torch.zeros(3)}, path)
    else:
        torch.jit.save(torch.jit.trace(_One(), torch.zeros(SHAPE)), path)
    _check(path, framework)
    with pytest.raises(ModelFileError, match="framework"):
        _check(path, "mxnet")


@pytest.mark.parametrize("kind", ["onnx", "pt2", "keras"])
def test_no_damage_of_a_header_is_more_than_an_error(tmp_path: Path, kind: str) -> None:
    path = _make(kind, tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 8):
            damaged[at] = rng.integers(256)
        path.write_bytes(bytes(damaged[: rng.integers(1, len(whole) + 1)]))
        try:
            header = read_header(str(path), MAX_BYTES)
            if header is not None:
                _compare("mine", path, header, _entry("onnx"))
        except TvmflowError as error:
            assert len(str(error)) < 2000


def test_a_header_is_read_once_per_content(make_workspace: Callable[..., Path]) -> None:
    """What is remembered is used, and never for another file."""

    def change(params: dict[str, Any]) -> None:
        entry = {"framework": "onnx", "weights": {"file": "m.onnx"}, "input": {"shape": list(SHAPE)}}
        params["models"] = {"m": entry}
        params["cells"] = {"m": {"model": "m", "target": "local-cpu", "precision": "float32"}}

    root = make_workspace(change)
    _make("onnx", root)
    check_model(Workspace(root), "m")
    [known] = (root / "artifacts" / ".index" / "headers").iterdir()
    text = known.read_text()
    known.write_text(text.replace("8, 8", "9, 8"))
    with pytest.raises(ModelFileError, match="9, 8"):
        check_model(Workspace(root), "m")
    for damaged in ("", "{}", "[]", "null"):
        known.write_text(damaged)
        check_model(Workspace(root), "m")
        assert known.read_text() == text
    _make("onnx shape", root)
    with pytest.raises(ModelFileError, match="9, 8"):
        check_model(Workspace(root), "m")
    assert known.read_text() == text
