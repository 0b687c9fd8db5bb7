"""Compile what importers write: kernels of their own, one opaque block, products of computed operands."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tvm.relax.frontend.onnx import from_onnx

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.config.stage_params import Int8Params
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.quantization.post_training import quantize_int8

Array = np.ndarray[Any, Any]
Nodes = tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...]
_BOUND = 2e-5


def _imported(nodes: Nodes, inputs: dict[str, Array], constants: dict[str, Array]) -> tuple[Any, list[Array]]:
    """Return the module of a chain of nodes, each of which reads the first of its names and `_`, the value before; and
    ONNX Runtime's outputs.
    """
    made = [
        helper.make_node(op, [f"v{at}" if name == "_" else name for name in names], [f"v{at + 1}"], **attributes)
        for at, (op, names, attributes) in enumerate(nodes)
    ]
    described = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in inputs.items()
    ]
    output = onnx.ValueInfoProto(name=f"v{len(nodes)}")
    weights = [numpy_helper.from_array(x, name) for name, x in constants.items()]
    graph = helper.make_graph(made, "g", described, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    shapes = {name: list(x.shape) for name, x in inputs.items()}
    dtypes = {name: str(x.dtype) for name, x in inputs.items()}
    return canonicalize(from_onnx(model, shape_dict=shapes, dtype_dict=dtypes)), expected


def _floats(*shape: int) -> Array:
    return np.random.default_rng(zlib.crc32(repr(shape).encode())).standard_normal(shape, dtype=np.float32)


CASES: dict[str, tuple[Nodes, dict[str, Array], dict[str, Array]]] = {
    "tile": ((("Tile", ("x", "r"), {}),), {"x": _floats(2, 5)}, {"r": np.array([1, 2])}),
    "pads by shape": (
        (("Conv", ("x", "w"), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),),
        {"x": _floats(1, 32, 7, 8)},
        {"w": _floats(32, 32, 3, 3)},
    ),
    "pads by shape, 1-D": (
        (("Conv", ("x", "w"), {"auto_pad": "SAME_UPPER"}),),
        {"x": _floats(1, 3, 8)},
        {"w": _floats(4, 3, 4)},
    ),
    "einsum": (
        (("Einsum", ("x", "z"), {"equation": "bij,bjk->bik"}),),
        {"x": _floats(2, 3, 4), "z": _floats(2, 4, 5)},
        {},
    ),
    "reversed sum": ((("CumSum", ("x", "a"), {"reverse": 1}),), {"x": _floats(2, 5)}, {"a": np.array(1)}),
    "bound at run time": (
        (("Clip", ("x", "m"), {}),),
        {"x": _floats(2, 5), "m": np.array(0.1, np.float32)},
        {},
    ),
    "resized signal": (
        (("Resize", ("x", "", "s"), {"mode": "linear"}),),
        {"x": _floats(1, 2, 8)},
        {"s": np.array([1, 1, 2], np.float32)},
    ),
    "opaque block": (
        (("ScatterElements", ("x", "i", "u"), {"axis": 1}),),
        {"x": _floats(2, 4), "i": np.array([[1], [3]]), "u": _floats(2, 1)},
        {},
    ),
    "between convolutions": (
        (
            ("Conv", ("x", "w"), {"pads": [1, 1, 1, 1]}),
            ("Relu", ("_",), {}),
            ("Tile", ("_", "r"), {}),
            ("Conv", ("_", "v"), {"auto_pad": "SAME_UPPER"}),
            ("GlobalAveragePool", ("_",), {}),
        ),
        {"x": _floats(1, 3, 8, 8)},
        {"w": _floats(32, 3, 3, 3), "v": _floats(32, 32, 3, 3), "r": np.array([1, 1, 2, 2])},
    ),
}
CASES |= {
    f"product {rows}x{depth}x{columns}, {batch}": (
        (("MatMul", ("a", "b"), {}), (step, ("_",), {})),
        {"a": _floats(*batch, rows, depth), "b": _floats(*batch, depth, columns)},
        {},
    )
    for rows, depth, columns, batch, step in (
        (1, 64, 10, (), "Relu"),
        (3, 7, 33, (2,), "Sigmoid"),
        (4, 16, 17, (), "Tanh"),
        (9, 5, 12, (2,), "Relu"),
    )
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_of_importers_are_compiled_and_interpreted(name: str) -> None:
    nodes, inputs, constants = CASES[name]
    mod, expected = _imported(nodes, inputs, constants)
    for found in (
        LocalRunner.of_plain(mod, host_backend()).run(*inputs.values()),
        run_all(read_graph(mod), tuple(inputs.values())),
    ):
        for output, reference in zip(found, expected, strict=True):
            assert output.shape == reference.shape and output.dtype == reference.dtype
            assert np.abs(output - reference).max() <= _BOUND * np.abs(reference).max()


def test_int8_of_a_network_that_ends_in_one_axis() -> None:
    nodes: Nodes = (
        ("Gemm", ("x", "w"), {}),
        ("ReduceSum", ("_", "one"), {"keepdims": 0}),
        ("Mul", ("_", "half"), {}),
    )
    x = _floats(4, 8)
    mod, (expected,) = _imported(
        nodes, {"x": x[:1]}, {"w": _floats(8, 16), "one": np.array([1]), "half": np.array([0.5], np.float32)}
    )
    quantized, _ = quantize_int8(mod, (x,), None, Int8Params())
    (found,) = run_all(read_graph(quantized), (x[:1],))
    assert found.shape == expected.shape and np.abs(found - expected).max() < 0.1 * np.abs(expected).max()
