"""Compare operators of com.microsoft with ONNX Runtime, one small model each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.onnx.converters import CONTRIB_DOMAIN, CONVERTERS
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize

Array = np.ndarray[Any, Any]
_RANDOM = np.random.default_rng(7)
_BYTE, _CHAR = np.uint8, np.int8


def _x(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _bytes(*shape: int) -> Array:
    return _RANDOM.integers(0, 256, shape).astype(np.uint8)


def _scale(value: float) -> Array:
    return np.asarray(value, np.float32)


_QUANTIZED = {"a": _bytes(2, 6), "sa": _scale(0.02), "za": _BYTE(120)}
_OUT = {"sy": _scale(0.05), "zy": _BYTE(110)}
_IMAGE = {"a": _bytes(1, 2, 4, 4), "sa": _scale(0.02), "za": _BYTE(120)}
_HALF_ANGLES = np.outer(np.arange(8), [1.0, 0.1]).astype(np.float32)
# Small weights: without VNNI ONNX Runtime adds pairs of products in 16 bits, which saturate.
_PACKED = {"w": (_bytes(8, 24) // 8).astype(_CHAR), "b": _x(24), "sx": _scale(0.02), "sw": _scale(0.04)}
_LEFT = np.asarray([[0, 1, 1, 1], [1, 1, 0, 0]], np.int32)  # kept tokens: padded on the left, and on the right
# Operator, or operator and variant -> inputs in order (the first, and those named x..., are inputs of the model; None
# is left out), attributes.
CASES: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {
    "Gelu": ({"x": _x(2, 5)}, {}),
    "BiasGelu": ({"x": _x(2, 5), "b": _x(5)}, {}),
    "FastGelu": ({"x": _x(2, 5), "b": _x(5)}, {}),
    "QuickGelu": ({"x": _x(2, 5)}, {}),
    "FusedMatMul": ({"x": _x(2, 4, 3), "b": _x(2, 4, 5)}, {"transA": 1, "alpha": 0.5}),
    "FusedGemm": ({"x": _x(3, 4), "b": _x(4, 5), "c": _x(5)}, {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
    "FusedConv": ({"x": _x(1, 2, 5, 5), "w": _x(3, 2, 3, 3), "b": _x(3)}, {"activation": "Relu"}),
    "FusedConv, hard sigmoid": (
        {"x": _x(1, 2, 5, 5), "w": _x(3, 2, 3, 3), "b": _x(3)},
        {"activation": "HardSigmoid", "activation_params": [0.2, 0.5]},
    ),
    "SimplifiedLayerNormalization": ({"x": _x(2, 5), "g": _x(5)}, {"axis": -1}),
    "SkipLayerNormalization": ({"x": _x(2, 3, 8), "xs": _x(2, 3, 8), "g": _x(8)}, {}),
    "SkipSimplifiedLayerNormalization": ({"x": _x(2, 3, 8), "xs": _x(2, 3, 8), "g": _x(8)}, {}),
    "MatMulNBits": (
        {"x": _x(2, 32), "w": _bytes(6, 2, 8), "s": np.abs(_x(12)), "z": _bytes(6)},
        {"K": 32, "N": 6, "bits": 4, "block_size": 16},
    ),
    "Attention": (
        {"x": _x(2, 4, 8), "w": _x(8, 24), "b": _x(24), "xm": np.asarray([4, 2], np.int32)},
        {"num_heads": 2},
    ),
    "Attention, causal": (
        {"x": _x(2, 4, 8), "w": _x(8, 24), "b": _x(24), "xm": _LEFT},
        {"num_heads": 2, "unidirectional": 1},
    ),
    "QAttention": (
        {"xx": _bytes(2, 4, 8), **_PACKED, "xm": _LEFT, "zx": _BYTE(120), "zw": _CHAR(0)},
        {"num_heads": 2},
    ),
    "QAttention, causal": (
        {"xx": _bytes(2, 4, 8), **(_PACKED | {"sw": np.abs(_x(24)) / 16}), "xm": None, "zx": _BYTE(120)},
        {"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention, causal": (
        {"x": _x(2, 4, 8), "xk": _x(2, 4, 8), "xv": _x(2, 4, 8), "b": _x(24)},
        {"num_heads": 2, "unidirectional": 1},
    ),
    "MultiHeadAttention, keys by heads": (
        {"x": _x(2, 4, 8), "xk": _x(2, 2, 6, 4), "xv": _x(2, 2, 6, 4)},
        {"num_heads": 2},
    ),
    "MultiHeadAttention": ({"x": _x(2, 4, 8), "xk": _x(2, 6, 8), "xv": _x(2, 6, 8)}, {"num_heads": 2}),
    "RotaryEmbedding": (
        {"x": _x(1, 2, 3, 4), "p": np.asarray([[0, 1, 2]]), "c": np.cos(_HALF_ANGLES), "s": np.sin(_HALF_ANGLES)},
        {},
    ),
    "EmbedLayerNormalization": (
        {
            "x": np.asarray([[1, 2, 0]], np.int32),
            "xs": np.asarray([[0, 1, 1]], np.int32),
            "w": _x(4, 8),
            "p": _x(5, 8),
            "t": _x(2, 8),
            "g": _x(8),
            "b": _x(8),
        },
        {},
    ),
    "QuantizeLinear": ({"x": _x(2, 6), "s": _scale(0.02), "z": _BYTE(120)}, {}),
    "DequantizeLinear": ({"x": _bytes(2, 6), "s": _scale(0.02), "z": _BYTE(120)}, {}),
    "QGemm": (
        {**_QUANTIZED, "b": (_bytes(6, 3) // 4).astype(_CHAR), "sb": _scale(0.01), "zb": _CHAR(0)}
        | {"c": np.asarray([10, -300, 5], np.int32), "sy": _scale(0.05), "zy": _BYTE(110)},
        {},
    ),
    "QLinearAdd": ({**_QUANTIZED, "b": _bytes(2, 6), "sb": _scale(0.01), "zb": _BYTE(3), **_OUT}, {}),
    "QLinearMul": ({**_QUANTIZED, "b": _bytes(2, 6), "sb": _scale(0.01), "zb": _BYTE(3), **_OUT}, {}),
    "QLinearSigmoid": ({**_QUANTIZED, "sy": _scale(1 / 256), "zy": _BYTE(0)}, {}),
    "QLinearLeakyRelu": ({**_QUANTIZED, **_OUT}, {"alpha": 0.2}),
    "QLinearGlobalAveragePool": ({**_IMAGE, **_OUT}, {}),
    "QLinearAveragePool": ({**_IMAGE, **_OUT}, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "QLinearGlobalAveragePool, channels last": ({**_IMAGE, **_OUT}, {"channels_last": 1}),
    "QLinearAveragePool, channels last": (
        {**_IMAGE, **_OUT},
        {"kernel_shape": [2, 2], "strides": [2, 2], "channels_last": 1},
    ),
    "NhwcMaxPool": ({"x": _bytes(1, 5, 6, 3)}, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    "NhwcMaxPool, int8": (
        {"x": (_bytes(1, 5, 6, 3) - 128).astype(_CHAR)},
        {"kernel_shape": [2, 2], "pads": [0, 1, 1, 0]},
    ),
    "QLinearSoftmax": ({**_QUANTIZED, "sy": _scale(1 / 256), "zy": _BYTE(0)}, {"axis": -1, "opset": 13}),
    "QLinearConcat": (
        {"sy": _scale(0.05), "zy": _BYTE(110), "x": _bytes(2, 3), "sa": _scale(0.02), "za": _BYTE(9)},
        {"axis": 1},
    ),
    "DynamicQuantizeMatMul": ({"x": _x(2, 6), "b": _bytes(6, 3), "sb": _scale(0.01), "zb": _BYTE(128)}, {}),
    "MatMulIntegerToFloat": (
        {
            "x": _bytes(2, 6),
            "b": _bytes(6, 3),
            "sa": _scale(0.02),
            "sb": _scale(0.01),
            "za": _BYTE(99),
            "zb": _BYTE(128),
        },
        {},
    ),
}
# Results on integers may be one step from ONNX Runtime's, which rounds a product of scales first.
_STEPS = {"QGemm", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearGlobalAveragePool"}
_STEPS |= {"QLinearAveragePool", "QLinearSoftmax", "QLinearConcat"}


def _domain(op: str) -> str:
    return "" if ("", op) in CONVERTERS else CONTRIB_DOMAIN


def _model(case: str) -> tuple[Any, dict[str, Array]]:
    op, (given, attributes) = case.partition(",")[0], CASES[case]
    values = {name: np.asarray(value) for name, value in given.items() if value is not None}
    inputs = {name: value for name, value in values.items() if name.startswith("x")} or {"a": values["a"]}
    node = helper.make_node(
        op, [name * (name in values) for name in given], ["y"], name="node", domain=_domain(op), **attributes
    )
    if op == "EmbedLayerNormalization":
        node.output.append("count")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in inputs.items()
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(x, name) for name, x in values.items() if name not in inputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), inputs


@pytest.mark.few(6)
@pytest.mark.parametrize("case", sorted(CASES))
def test_contrib_operators_equal_onnx_runtime(case: str) -> None:
    model, inputs = _model(case)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(["y"], inputs)[0]
    specs = [TensorSpec(name, x.shape, str(x.dtype)) for name, x in inputs.items()]
    (found,) = run_all(read_graph(canonicalize(import_model(model, specs))), tuple(inputs.values()))
    assert found.dtype == expected.dtype and found.shape == expected.shape
    bound = 1 if case.partition(",")[0] in _STEPS else 2e-5 * max(float(np.abs(expected.astype(np.float64)).max()), 1.0)
    assert np.abs(found.astype(np.float64) - expected).max() <= bound


def test_a_product_of_integers_is_compiled() -> None:
    """Its weights in int32 are no words of four int8."""
    model, inputs = _model("QAttention")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(["y"], inputs)
    specs = [TensorSpec(name, x.shape, str(x.dtype)) for name, x in inputs.items()]
    runner = LocalRunner.of_plain(canonicalize(import_model(model, specs)), host_backend())
    assert np.abs(runner.run(*inputs.values())[0] - expected).max() < 1e-5


def test_every_contrib_converter_has_a_case() -> None:
    ours = {op for domain, op in CONVERTERS if domain == CONTRIB_DOMAIN}
    # TransposeMatMul: the old name of FusedMatMul, which ONNX Runtime has no more; the other has a test of its own.
    assert ours - {case.partition(",")[0] for case in CASES} == {
        "TransposeMatMul",
        "DynamicQuantizeLSTM",
        "GroupQueryAttention",  # test_onnx_decoders.py
    }


def test_a_quantized_recurrent_layer_computes_in_float() -> None:
    times, features, hidden, generator = 3, 4, 5, np.random.default_rng(1)
    w, r = (generator.integers(-31, 32, (1, size, 4 * hidden)).astype(np.int8) for size in (features, hidden))
    constants = {"w": w, "r": r, "b": generator.standard_normal((1, 8 * hidden), np.float32)}
    constants |= {name: np.full(1, 0.04, np.float32) for name in ("ws", "rs")}
    constants |= {name: np.zeros(1, np.int8) for name in ("wz", "rz")}
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain=CONTRIB_DOMAIN, hidden_size=hidden)
    x = generator.standard_normal((times, 2, features), np.float32)
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    made = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [times, 1, 2, hidden])
    graph = helper.make_graph(
        [node], "g", [given], [made], [numpy_helper.from_array(v, k) for k, v in constants.items()]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB_DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    module = canonicalize(import_model(model, [TensorSpec("x", x.shape)]))
    (found,) = run_all(read_graph(module), (x,))
    assert found.shape == expected.shape and np.abs(found - expected).max() < 0.02  # its inputs are rounded to 8 bits
