"""Test inputs with a fixed value: validation in params.yaml, and each format against its framework."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from pydantic import ValidationError

from bench.conformance.tflite_models import FileWriter
from tvmflow.config.options import explain
from tvmflow.config.params import ModelEntry
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec, fixed_specs
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import ModelFileError
from tvmflow.support.json_values import from_json, to_json

X = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
SHAPED = {"x": {"shape": [2, 4]}}


def _entry(**inputs: Any) -> ModelEntry:
    block = {"framework": "onnx", "weights": {"file": "m.onnx"}, "inputs": SHAPED | inputs}
    return ModelEntry.model_validate(block)


def _describe(framework: str, file: str, network: str | None = None, **fixed: Any) -> SourceDescription:
    specs = fixed_specs(_entry(**{name: {"value": value} for name, value in fixed.items()}).fixed)
    described = SourceDescription(framework, network, file, (TensorSpec("x", (2, 4)),), fixed=specs)
    return from_json(SourceDescription, json.loads(json.dumps(to_json(described))))


def _differs(folder: Path, description: SourceDescription) -> tuple[float, Any]:
    """Return the largest difference of the import from the framework, and what the framework returns."""
    source = load_source(folder, description)
    graph = read_graph(canonicalize(source.to_relax()))
    assert [kind.shape for kind in graph.inputs.values()] == [(2, 4)]
    (wanted,), (made,) = source.run(X), run_all(graph, (X,))
    assert made.shape == wanted.shape and source.variants(X)[0].prepare().run is not None
    return float(np.abs(made - wanted).max()), wanted


@pytest.mark.parametrize(
    ("block", "shape", "dtype", "numbers"),
    [
        ({"value": 16000}, (), "int64", (16000,)),
        ({"value": True}, (), "bool", (1,)),
        ({"value": [[1, 2.5]]}, (1, 2), "float32", (1, 2.5)),
        ({"value": 3, "shape": [2], "dtype": "int32"}, (2,), "int32", (3, 3)),
    ],
)
def test_a_value_is_read(block: dict[str, Any], shape: Any, dtype: str, numbers: Any) -> None:
    entry = _entry(sr=block)
    (spec,) = fixed_specs(entry.fixed)
    assert (spec.shape, spec.dtype, spec.numbers) == (shape, dtype, numbers) and list(entry.tensors) == ["x"]
    assert spec.value.dtype == dtype and spec.value.shape == shape


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"sr": {"value": [[1], [2, 3]]}}, "lists of equal lengths"),
        ({"sr": {"value": "16k"}}, "a number, true, false"),
        ({"sr": {"value": 1.5, "dtype": "int32"}}, "a value of int32; found 1.5"),
        ({"sr": {"value": [1, 2], "shape": [3]}}, r"shape \[3\], as shape says; found \[2\]"),
        ({"sr": {"value": 1, "high": 3}}, "sr.high: unknown key; legal here: dtype, shape, value"),
        ({"x": {"value": 1}}, "all inputs are fixed"),
    ],
)
def test_a_wrong_value_is_one_error(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _entry(**inputs)
    (line,) = explain(caught.value, ModelEntry)
    assert re.search(message, line)


def _save_onnx(path: Path) -> None:
    """Write a network whose output has another shape where mode is 1."""
    values = [
        helper.make_tensor_value_info("mode", TensorProto.INT64, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    branches = []
    for node in (helper.make_node("Transpose", ["x"], ["a"]), helper.make_node("Add", ["x", "x"], ["a"])):
        branches.append(
            helper.make_graph([node], "b", [], [helper.make_tensor_value_info("a", TensorProto.FLOAT, None)])
        )
    nodes = [
        helper.make_node("Equal", ["mode", "one"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    one = helper.make_tensor("one", TensorProto.INT64, [], [1])
    graph = helper.make_graph(nodes, "g", values[:2], values[2:], [one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_onnx_follows_the_branch_of_a_value(tmp_path: Path) -> None:
    _save_onnx(tmp_path / "m.onnx")
    assert _differs(tmp_path, _describe("onnx", "m.onnx", mode=1))[0] == 0
    described = _describe("onnx", "m.onnx", mode=2)
    error, wanted = _differs(tmp_path, described)
    assert error == 0 and np.array_equal(wanted, X + X)
    load_source(tmp_path, described).to_onnx(tmp_path / "peer.onnx")
    (wanted,) = load_source(tmp_path, _describe("onnx", "peer.onnx")).run(X)  # the baseline needs no value
    assert np.array_equal(wanted, X + X)
    for fixed, message in (
        ({"mode": 1.5}, r"input mode of m.onnx is int64 \[\].*\n.*float32 \[\]"),
        ({"mode": [1]}, r"int64 \[\].*\n.*int64 \[1\]"),
        ({"mod": 1}, r"has the inputs mode, x.*\n.*mod, whose value"),
        ({}, "has the inputs mode, x"),
    ):
        with pytest.raises(ModelFileError, match=message):
            load_source(tmp_path, _describe("onnx", "m.onnx", **fixed))


def test_tflite_and_what_has_no_values(tmp_path: Path) -> None:
    writer = FileWriter()
    x, gain = writer.tensor("x", (2, 4), "FLOAT32"), writer.tensor("gain", (4,), "FLOAT32")
    product, out = writer.tensor("p", (2, 4), "FLOAT32"), writer.tensor("out", (2, 4), "FLOAT32")
    writer.operator("MUL", [gain, x], [product], "MulOptions")
    writer.operator("ADD", [product, gain], [out], "AddOptions")
    (tmp_path / "m.tflite").write_bytes(writer.content([gain, x], [out]))
    error, wanted = _differs(tmp_path, _describe("tensorflow", "m.tflite", gain=[1.0, 2, 3, 4]))
    assert error < 1e-6 and np.allclose(wanted, (X + 1) * [1, 2, 3, 4])
    for described in (_describe("tensorflow", "m.zip", gain=1), _describe("keras", "m.keras", gain=1)):
        with pytest.raises(
            ModelFileError, match=r"a value for input gain, which (a SavedModel|models of keras) cannot"
        ):
            load_source(tmp_path, described)


FACTORY = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)

    def forward(self, scale, x, flip: bool = False):
        y = self.dense(x) * scale
        return -y if flip else y

def make():
    return Scaled()
"""


def _factory(folder: Path) -> Callable[[], Any]:
    import torch

    from tvmflow.sources.networks.torch_zoo import build

    (folder / "network.py").write_text(FACTORY)
    made = build("network.py:make", folder=folder).eval()
    torch.save(made.state_dict(), folder / "m.pt")
    return lambda: made


def test_parameters_of_a_factory(tmp_path: Path) -> None:
    network = _factory(tmp_path)()
    described = _describe("torch", "m.pt", "network.py:make", scale=[1.0, 2, 3, 4], flip=True)
    error, wanted = _differs(tmp_path, described)
    import torch

    made = -network.dense(torch.from_numpy(X)) * torch.tensor([1.0, 2, 3, 4])
    assert error < 1e-5 and np.allclose(wanted, made.detach(), atol=1e-5)
    with pytest.raises(ModelFileError, match="has the inputs scale, x, flip"):
        load_source(tmp_path, _describe("torch", "m.pt", "network.py:make", scales=1.0))


def test_inputs_of_an_exported_program(tmp_path: Path) -> None:
    import torch

    program = torch.export.export(_factory(tmp_path)(), (torch.ones(4), torch.ones(2, 4)))
    torch.export.save(program, tmp_path / "m.pt2")
    assert _differs(tmp_path, _describe("torch", "m.pt2", scale=[1.0, 2, 3, 4]))[0] < 1e-5
    with pytest.raises(ModelFileError, match=r"input scale of m.pt2 is float32 \[4\]"):
        load_source(tmp_path, _describe("torch", "m.pt2", scale=[1.0, 2]))


def test_torchscript_with_a_value_and_without_gradients(tmp_path: Path) -> None:
    import torch

    from tests.frontends.scripted_networks import Switch

    torch.jit.script(Switch().eval()).save(str(tmp_path / "m.torchscript"))
    for rate, factor in ((16000, 2), (8000, 3)):
        error, wanted = _differs(tmp_path, _describe("torch", "m.torchscript", rate=rate))
        assert error == 0 and np.array_equal(wanted, X * factor)
    with pytest.raises(ModelFileError, match=r"parameter rate of .* is int"):
        load_source(tmp_path, _describe("torch", "m.torchscript", rate=0.5))
