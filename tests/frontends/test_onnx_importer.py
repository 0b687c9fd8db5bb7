"""Test the ONNX importer beyond single operators: folding, control flow, refusals, constants of every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.source_model import TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import UnsupportedOperatorError

Array = np.ndarray[Any, Any]
_X = np.asarray([[1.0, -2.0, 3.0]], np.float32)


def _value(name: str, shape: Any = None, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[Any], constants: dict[str, Any] | None = None, opset: int = 18, **options: Any) -> Any:
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", [_value("x", [1, 3])], [_value("y")], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9, **options)


def _import(model: Any) -> Any:
    return import_model(model, [TensorSpec("x", (1, 3))])


def _run(model: Any) -> Array:
    (found,) = run_all(read_graph(canonicalize(_import(model))), (_X,))
    return np.asarray(found)


def _branch(op: str) -> Any:
    return helper.make_graph([helper.make_node(op, ["x"], ["z"])], op, [], [_value("z")])


@pytest.mark.parametrize(("condition", "expected"), [(True, np.abs(_X)), (False, -_X)])
def test_an_if_with_a_known_condition_is_followed(condition: bool, expected: Array) -> None:
    node = helper.make_node("If", ["c"], ["y"], then_branch=_branch("Abs"), else_branch=_branch("Neg"))
    assert np.array_equal(_run(_model([node], {"c": condition})), expected)


def test_a_condition_on_a_shape_is_known() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["n"]),
        helper.make_node("Equal", ["n", "three"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=_branch("Abs"), else_branch=_branch("Neg")),
    ]
    assert np.array_equal(_run(_model(nodes, {"one": np.int64(1), "three": np.int64(3)})), np.abs(_X))


def test_an_if_on_the_data_is_refused_with_the_way_to_split_the_model() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Cast", ["t"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], name="gate", then_branch=_branch("Abs"), else_branch=_branch("Neg")),
    ]
    with pytest.raises(UnsupportedOperatorError, match=r"If \(node 'gate'\).*split the model"):
        _import(_model(nodes))


def test_a_loop_of_a_known_count_is_unrolled() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "x"], ["w"]),
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["w"], ["kept"]),
        ],
        "body",
        [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL), _value("v", [1, 3])],
        [_value("on", [], TensorProto.BOOL), _value("w", [1, 3]), _value("kept", [1, 3])],
    )
    nodes = [
        helper.make_node("Loop", ["count", "", "x"], ["last", "all"], body=body),
        helper.make_node("Concat", ["last", "all_flat"], ["y"], axis=0),
    ]
    nodes.insert(1, helper.make_node("Reshape", ["all", "shape"], ["all_flat"]))
    found = _run(_model(nodes, {"count": np.int64(2), "shape": np.asarray([2, 3])}))
    assert np.array_equal(found, np.concatenate([3 * _X, 2 * _X, 3 * _X]))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("value_float", 2.5), ("value_floats", [1.0, 2.0, 3.0]), ("value_int", 4), ("value_ints", [1, 2, 3])],
)
def test_constants_of_every_form(attribute: str, value: Any) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], **{attribute: value}),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    assert np.array_equal(_run(_model(nodes)), _X + np.asarray(value, np.float32))


def test_an_output_may_be_a_constant() -> None:
    node = helper.make_node("Shape", ["x"], ["y"])
    assert _run(_model([node])).tolist() == [1, 3]


def test_all_refused_nodes_are_in_one_error() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["a"], name="first"),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("RandomNormalLike", ["b"], ["c"], name="second"),
        helper.make_node("Unknown", ["x"], ["d"], name="third"),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    with pytest.raises(UnsupportedOperatorError) as caught:
        _import(_model(nodes))
    shown = str(caught.value)
    assert all(f"{op} (node {name!r})" in shown for op, name in
               (("NonZero", "first"), ("RandomNormalLike", "second"), ("Unknown", "third")))  # fmt: skip
    assert "depends on the data" in shown and "Cast" not in shown


def test_functions_of_the_model_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["b"])]
    square = helper.make_function("local", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    model = _model([helper.make_node("Square", ["x"], ["y"], domain="local")], functions=[square])
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert np.array_equal(_run(model), _X * _X)


def test_dynamic_quantization_of_onnx_runtime() -> None:
    weight = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    found = _run(_model(nodes, {"w": weight, "wz": np.int8(1)}))
    assert np.abs(found - _X @ (weight.astype(np.float32) - 1)).max() < 0.2  # steps of 5 / 255, three of them


@pytest.mark.parametrize(
    ("scales", "mode", "coordinates", "expected"),
    [
        ([1, 1, 0.6, 0.6], "linear", "half_pixel", [[2.6666665, 4.3333331]]),
        ([1, 1, 1.0, 1.5], "nearest", "half_pixel", [[1, 1, 2, 3, 3, 4], [5, 5, 6, 7, 7, 8]]),
        ([1, 1, 1.0, 2.0], "nearest", "asymmetric", [[1, 1, 2, 2, 3, 3, 4, 4], [5, 5, 6, 6, 7, 7, 8, 8]]),
    ],
)
def test_resize_follows_the_given_scales(scales: list[float], mode: str, coordinates: str, expected: Any) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode=mode, coordinate_transformation_mode=coordinates)
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    model = _model([node], {"s": np.asarray(scales, np.float32)})
    module = import_model(model, [TensorSpec("x", x.shape)])
    (found,) = run_all(read_graph(canonicalize(module)), (x,))
    assert np.allclose(found[0, 0], expected, rtol=1e-6)


def test_what_follows_a_batch_normalization_imports() -> None:
    """TVM's converter returns a field of a tuple, from which its converter of Add tried to read a constant."""
    names = ("scale", "bias", "mean", "variance")
    line = np.linspace(0.5, 1.5, 3, dtype=np.float32)
    nodes = [
        helper.make_node("BatchNormalization", ["x", *names], ["n"]),
        helper.make_node("Sigmoid", ["n"], ["s"]),
        helper.make_node("Mul", ["n", "s"], ["m"]),
        helper.make_node("Add", ["m", "n"], ["y"]),
    ]
    n = (_X - line) / np.sqrt(line + 1e-5) * line + line
    assert _run(_model(nodes, dict.fromkeys(names, line))) == pytest.approx(n / (1 + np.exp(-n)) + n, abs=1e-5)


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_the_largest_of_a_region_equals_onnx_runtime(mode: str) -> None:
    generator = np.random.default_rng(0)
    rois = np.asarray([[0, 0, 10, 12], [3, 2, 7, 9], [-6, -4, 30, 8]], np.float32)  # inside, smaller than bins, outside
    x = generator.standard_normal((2, 3, 8, 9)).astype(np.float32)
    given = {"x": x, "rois": rois, "batch": np.asarray([0, 1, 1])}
    size = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.5}
    node = helper.make_node("RoiAlign", list(given), ["y"], mode="max", coordinate_transformation_mode=mode, **size)
    kinds = [_value(name, v.shape, helper.np_dtype_to_tensor_dtype(v.dtype)) for name, v in given.items()]
    graph = helper.make_graph([node], "g", kinds, [_value("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    module = canonicalize(import_model(model, [TensorSpec(name, v.shape, str(v.dtype)) for name, v in given.items()]))
    (found,) = LocalRunner.of_plain(module, host_backend()).run(*given.values())
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize("opset", [7, 9])
def test_slices_of_old_opsets_have_their_places_as_attributes(opset: int) -> None:
    nodes = [
        helper.make_node("Slice", ["x"], ["a"], starts=[0, 1], ends=[1, 2**31 - 1]),
        helper.make_node("Slice", ["a"], ["y"], axes=[-1], starts=[-2], ends=[-1]),
    ]
    assert np.array_equal(_run(_model(nodes, opset=opset)), _X[:, 1:2])


def test_the_count_of_top_k_is_an_input_from_opset_10() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", "places"], axis=1)
    assert np.array_equal(_run(_model([node], {"k": np.asarray([2])}, opset=10)), [[3.0, 1.0]])


def test_a_table_of_strings_is_refused_as_one() -> None:
    nodes = [helper.make_node("ArgMax", ["x"], ["i"], axis=1), helper.make_node("Gather", ["names", "i"], ["y"])]
    names = np.asarray(["a", "b", "c"], object)
    with pytest.raises(UnsupportedOperatorError, match=r"Gather \(node 'y'\): strings; take the numbers"):
        _import(_model(nodes, {"names": names}))
