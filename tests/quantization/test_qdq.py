"""Quantized models whose integers leave the network, or are read by operators that compute on integers."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvmflow.config.stage_params import Int8Params
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.layers import group_layers
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8
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


def _stream(dtype: str) -> onnx.ModelProto:
    """Return a step of a stream: a window of integers, joined with the input, is convolved with a bias along time."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["state", "scale", "zero"], ["past"]),
        node("QuantizeLinear", ["x", "scale", "zero"], ["x_q"]),
        node("DequantizeLinear", ["x_q", "scale", "zero"], ["now"]),
        node("Concat", ["past", "now"], ["joined"], axis=2),
        node("QuantizeLinear", ["joined", "scale", "zero"], ["joined_q"]),
        node("DequantizeLinear", ["joined_q", "scale", "zero"], ["window"]),
        node("DequantizeLinear", ["taps", "scale_of_taps", "zero_of_taps"], ["filter"]),
        node("Conv", ["window", "filter", "bias"], ["sums"]),
        node("Relu", ["sums"], ["positive"]),
        node("QuantizeLinear", ["positive", "scale_of_y", "zero"], ["y"]),
        node("Slice", ["joined_q", "one", "end", "two"], ["next"]),
    ]
    weights = {
        "scale": np.float32(0.07),
        "scale_of_y": np.float32(0.05),
        "zero": np.array(-5 if dtype == "int8" else 123, dtype),
        "taps": _DRAW.integers(-127, 128, (8, 4, 5, 1)).astype(np.int8),
        "scale_of_taps": np.float32(0.004),
        "zero_of_taps": np.int8(0),
        "bias": _DRAW.integers(-900, 900, 8).astype(np.float32) * np.float32(0.07 * 0.004),
        "one": np.array([2]),
        "end": np.array([9]),
        "two": np.array([2]),
    }
    ends = {"state": (4, element), "x": (2, TensorProto.FLOAT), "next": (4, element)}
    values = {name: helper.make_tensor_value_info(name, kind, (1, 4, n, 1)) for name, (n, kind) in ends.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [values["x"], values["state"]],
        [helper.make_tensor_value_info("y", element, (1, 8, 2, 1)), values["next"]],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("activations", ["int8", "uint8"])
def test_a_stream_of_integers_keeps_its_scales(dtype: str, activations: Literal["int8", "uint8"]) -> None:
    """Layers compute in the dtype that the processor multiplies, states and outputs are those of the file."""
    model, limits = _stream(dtype), np.iinfo(dtype)
    specs = (TensorSpec("x", (1, 4, 2, 1)), TensorSpec("state", (1, 4, 4, 1), dtype))
    samples = (
        _DRAW.standard_normal((6, 4, 2, 1), np.float32) * 3,
        _DRAW.integers(limits.min, limits.max + 1, (6, 4, 4, 1)).astype(dtype),
    )
    options = Int8Params(activations=activations)
    module, _ = quantize_int8(canonicalize(import_model(model, specs)), samples, None, options)
    graph, reference = read_graph(module), ReferenceEvaluator(model)
    assert all(step.dtype != "float32" for step in graph.steps if step.op in ("relax.concat", "relax.strided_slice"))
    (convolution,) = (step for step in graph.steps if step.op == "relax.nn.conv2d")
    assert graph.kind(convolution.refs[0]).dtype == activations
    for x, state in zip(*samples, strict=True):
        found = run_all(graph, (x[None], state[None]))
        wanted = reference.run(None, {"x": x[None], "state": state[None]})
        assert found[0].std() > 10 and np.array_equal(found[1], wanted[1])
        assert np.abs(found[0].astype(int) - wanted[0]).max() <= 1 and np.mean(found[0] != wanted[0]) <= 0.02
