"""Networks of 16-bit files compute in float32: each output is rounded once, its dtype is kept."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize

_TYPES = {
    "float16": (np.dtype(np.float16), TensorProto.FLOAT16, 2.0**-11),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16, 2.0**-8),
}
_DRAW = np.random.default_rng(0)
_WEIGHTS = {
    "taps": _DRAW.standard_normal((8, 4, 3, 3)),
    "rows": _DRAW.standard_normal((2, 600, 8)),
    "scale": _DRAW.standard_normal(4),
    "gain": _DRAW.standard_normal(600),
}
# Sums of many terms, matrices, and what TVM does not compile in bfloat16. x: (2, 4, 600).
_NODES = [
    ("sum", "ReduceSum", ["x", "two"], {}),
    ("mean", "ReduceMean", ["x"], {"axes": [1]}),
    ("running", "CumSum", ["x", "one"], {}),
    ("matrices", "MatMul", ["x", "rows"], {}),
    ("image", "Reshape", ["x", "sizes"], {}),
    ("conv", "Conv", ["image", "taps"], {}),
    ("pool", "AveragePool", ["image"], {"kernel_shape": [5, 5]}),
    ("instance", "InstanceNormalization", ["image", "scale", "scale"], {}),
    ("layer", "LayerNormalization", ["x", "gain", "gain"], {}),
    ("softmax", "Softmax", ["x"], {}),
    ("wide", "Cast", ["x"], {"to": TensorProto.FLOAT}),
    ("positive", "Abs", ["wide"], {}),
    ("root", "Sqrt", ["positive"], {}),
    ("narrow", "Cast", ["root"], {"to": None}),
    ("places", "ArgMax", ["x"], {"axis": 2}),
]
_INTEGERS = {"one": 1, "two": [1, 2], "sizes": [2, 4, 20, 30]}
_OUTPUTS = ("sum", "mean", "running", "matrices", "conv", "pool", "instance", "layer", "softmax", "narrow", "places")


def _model(kind: int, dtype: Any) -> onnx.ModelProto:
    nodes = [
        helper.make_node(op, inputs, [name], **{key: value or kind for key, value in more.items()})
        for name, op, inputs, more in _NODES
    ]
    weights = [numpy_helper.from_array(value.astype(dtype), name) for name, value in _WEIGHTS.items()]
    weights += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in _INTEGERS.items()]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "places" else kind, None) for name in _OUTPUTS
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, (2, 4, 600))], outputs, weights)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    )


@pytest.mark.parametrize("name", _TYPES)
def test_outputs_are_those_of_float32_rounded_once(name: str) -> None:
    dtype, kind, rounding = _TYPES[name]
    x = np.random.default_rng(1).standard_normal((2, 4, 600)).astype(dtype)
    module = canonicalize(import_model(_model(kind, dtype), (TensorSpec("x", x.shape, name),)))
    assert {step.dtype for step in read_graph(module).steps[:-1] if step.op != "relax.astype"} <= {"float32", "int64"}
    found = LocalRunner.of_plain(module, host_backend()).run(x)
    weights = {key: value.astype(dtype).astype(np.float32) for key, value in _WEIGHTS.items()}
    wide = _model(TensorProto.FLOAT, np.float32)
    for tensor in wide.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    expected = ReferenceEvaluator(wide).run(None, {"x": x.astype(np.float32)})
    for output, ours, theirs in zip(_OUTPUTS, found, expected, strict=True):
        assert ours.dtype == (np.int64 if output == "places" else dtype), output
        error = np.abs(ours.astype(np.float64) - theirs)
        assert (error <= 1.1 * rounding * np.abs(theirs) + 1e-4 * rounding * np.abs(theirs).max() + 2.0**-25).all(), (
            output
        )
