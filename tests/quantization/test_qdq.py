"""Quantized models whose integers leave the network, or are read by operators that compute on integers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.layers import group_layers
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.qdq import strip_qdq

_DRAW = np.random.default_rng(0)


def test_integers_that_are_outputs_or_are_sliced_stay_those_of_the_model() -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "taps"], ["sums"]),
        node("QuantizeLinear", ["sums", "scale", "zero"], ["integers"]),
        node("Slice", ["integers", "two", "five", "one"], ["part"]),
        node("DequantizeLinear", ["part", "scale", "zero"], ["values"]),
        node("BitShift", ["unsigned", "ones"], ["shifted"], direction="RIGHT"),
        node("Cast", ["integers"], ["unsigned"], to=TensorProto.UINT8),
    ]
    nodes[4], nodes[5] = nodes[5], nodes[4]
    weights = {
        "taps": _DRAW.standard_normal((4, 3, 3, 3), np.float32),
        "scale": np.float32(0.1),
        "zero": np.int8(3),
        "two": np.array([2]),
        "five": np.array([5]),
        "one": np.array([2]),
        "ones": np.array([1], np.uint8),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [
            helper.make_tensor_value_info("integers", TensorProto.INT8, (1, 4, 6, 6)),
            helper.make_tensor_value_info("values", TensorProto.FLOAT, (1, 4, 3, 6)),
            helper.make_tensor_value_info("shifted", TensorProto.UINT8, (1, 4, 6, 6)),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    imported = read_graph(canonicalize(import_model(model, (TensorSpec("x", (1, 3, 8, 8)),))))
    stripped, scales = strip_qdq(imported)
    assert scales and len(group_layers(stripped).outputs) == 3
    x = _DRAW.standard_normal((1, 3, 8, 8), np.float32)
    found, wanted = run_all(stripped, (x,)), run_all(imported, (x,))
    assert found[0].dtype == np.int8 and found[0].std() > 20
    assert np.array_equal(found[0], wanted[0]) and np.array_equal(found[2], wanted[2])
    assert np.abs(found[1] - wanted[1]).max() <= 0.051  # not rounded in the float network
