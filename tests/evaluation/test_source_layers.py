"""Test the names of a source's layers in later forms of the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

from tvmflow.evaluation.source_layers import locate_layers, plain_name, read_layers, write_layers
from tvmflow.frontends.onnx.frontend import OnnxModel
from tvmflow.frontends.pytorch.exported_program import ExportedModel
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize

INPUT = TensorSpec("x", (1, 3, 8, 8), "float32")


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.factor = nn.Sequential(_Block(), nn.MaxPool2d(2)), nn.Parameter(torch.randn(4, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).mean((2, 3)) @ self.factor


def _imported() -> tuple[ExportedModel, object]:
    torch.manual_seed(3)
    model = ExportedModel(_Own().eval(), (INPUT,))
    return model, canonicalize(model.to_relax())


def test_layers_have_the_names_of_their_modules_and_others_follow_them(tmp_path: Path) -> None:
    model, module = _imported()
    graph = read_graph(module)  # type: ignore[arg-type]
    found = locate_layers(graph, model.weighted_layers())
    by_op = {step.op: found.steps.get(plain_name(step.name)) for step in graph.steps}
    assert by_op["relax.nn.conv2d"] == "body.0.conv" and by_op["relax.matmul"] == "factor"
    [pool] = [step.name for step in graph.steps if step.op == "relax.nn.max_pool2d"]
    assert found.after[plain_name(pool)] == "body.0.conv" and not found.steps.keys() & found.after.keys()
    assert [layer.weights for layer in found.layers] == [108, 28]
    write_layers(tmp_path, found)
    assert read_layers(tmp_path) == found


def test_a_network_with_other_layers_gets_no_names() -> None:
    model, module = _imported()
    graph, layers = read_graph(module), model.weighted_layers()  # type: ignore[arg-type]
    for others in (layers[:1], layers[::-1], [*layers, layers[0]], [layers[0], replace(layers[1], weights=27)]):
        found = locate_layers(graph, others)
        assert found.layers == tuple(others) and not found.steps and not found.after


def test_layers_of_onnx_files_are_nodes_with_stored_weights(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 3, 3, 3), np.float32), "v": np.ones((4, 5), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["y"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["z"]),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (1, 3, 8, 8)), ("z", (1, 5)))]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], stored), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.save(model, tmp_path / "model.onnx")
    source = OnnxModel(tmp_path / "model.onnx", model, _description())
    layers = source.weighted_layers()
    assert [(one.name, one.operator, one.weights, one.node) for one in layers] == [
        ("stem/conv", "Conv", 108, "y"),
        ("z", "MatMul", 20, "z"),
    ]
    steps = locate_layers(read_graph(canonicalize(source.to_relax())), layers).steps
    assert list(steps.values()) == ["stem/conv", "z"]


def _description() -> SourceDescription:
    return SourceDescription(framework="onnx", network=None, weights_file="model.onnx", inputs=(INPUT,))
