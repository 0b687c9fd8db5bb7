"""Test dense layers over more than two axes: flattened with their biases, and recognized by quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.onnx import frontend
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.layers import DENSE, Layer, group_layers
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8

Array = np.ndarray[Any, Any]
DEPTH, MIDDLE, COLUMNS = 20, 24, 12
# how the bias of the second layer is written: its shape, and whether it comes first
BIASES = {
    "none": None,
    "vector": ((COLUMNS,), False),
    "first": ((COLUMNS,), True),
    "all axes": ((1, 1, COLUMNS), False),
    "number": ((), False),
    "of rows": ((7, 1), False),
}


def _model(lead: tuple[int, ...], bias: str, read_twice: bool) -> tuple[onnx.ModelProto, Any]:
    """Return two dense layers over (*lead, 7, DEPTH) with a ReLU between them, and their function in float64."""
    draw = np.random.default_rng(len(lead))
    first, second = (draw.standard_normal(shape, np.float32) for shape in ((DEPTH, MIDDLE), (MIDDLE, COLUMNS)))
    written = BIASES[bias]
    added = draw.standard_normal(written[0]).astype(np.float32) if written else None
    weights = {"first": first, "second": second} | ({"bias": np.asarray(added)} if added is not None else {})
    last = "product" if added is None else "sum"
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["product"]),
    ]
    if written is not None:
        nodes.append(helper.make_node("Add", ["bias", "product"] if written[1] else ["product", "bias"], ["sum"]))
    nodes.append(helper.make_node("Mul", [last, "product"] if read_twice else [last, last], ["y"]))
    shape = (*lead, 7)
    graph = helper.make_graph(
        nodes,
        "rows",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (*shape, DEPTH))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (*shape, COLUMNS))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )

    def exact(x: Array) -> Array:
        product = np.maximum(x.astype(np.float64) @ first, 0) @ second
        total = product if added is None else product + added
        return np.asarray(total * (product if read_twice else total))

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), exact


@pytest.mark.parametrize("read_twice", [False, True])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("lead", [(1,), (3,), (2, 3)])
def test_dense_layers_are_over_rows(lead: tuple[int, ...], bias: str, read_twice: bool, tmp_path: Path) -> None:
    model, exact = _model(lead, bias, read_twice)
    onnx.save(model, tmp_path / "model.onnx")
    specs = (TensorSpec("x", (*lead, 7, DEPTH)),)
    module = canonicalize(frontend.load(tmp_path, SourceDescription("onnx", None, "model.onnx", specs)).to_relax())
    graph = read_graph(module)
    layers = [item for item in group_layers(graph).items if isinstance(item, Layer) and item.kind == DENSE]
    assert len(layers) == 2 == [step.op for step in graph.steps].count("relax.matmul")
    has_bias = bias not in ("none", "of rows") and not read_twice
    assert [layer.bias is not None for layer in layers] == [False, has_bias]
    x = np.random.default_rng(9).standard_normal(specs[0].shape, np.float32)
    [ours] = LocalRunner(host_backend().pack(module, None)[0], host_backend()).run(x)
    assert np.abs(ours - exact(x)).max() < 1e-5 * np.abs(exact(x)).max()


def test_they_are_computed_in_int8(tmp_path: Path) -> None:
    model, _ = _model((1,), "vector", False)
    onnx.save(model, tmp_path / "model.onnx")
    specs = (TensorSpec("x", (1, 7, DEPTH)),)
    module = canonicalize(frontend.load(tmp_path, SourceDescription("onnx", None, "model.onnx", specs)).to_relax())
    x = np.random.default_rng(9).standard_normal((8, 7, DEPTH), np.float32)
    _, report = quantize_int8(module, x, None, Int8Params(keep_float=(), max_drop=None))
    assert [layer.dtype != "float32" for layer in report.layers if layer.kind == DENSE] == [True, True]
