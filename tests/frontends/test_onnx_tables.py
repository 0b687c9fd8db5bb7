"""Compare operators of ai.onnx.ml with ONNX Runtime, one small model each, and trees of every form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tvmflow.backends.cpu import host_backend
from tvmflow.codegen.compile import LocalRunner
from tvmflow.frontends.onnx.converters import CONVERTERS, ML_DOMAIN
from tvmflow.frontends.onnx.importer import import_model
from tvmflow.frontends.registry import load_source
from tvmflow.frontends.source_model import SourceDescription, TensorSpec
from tvmflow.ir.relax.graph import read_graph
from tvmflow.passes.pipeline import canonicalize
from tvmflow.support.errors import UnsupportedOperatorError

Array = np.ndarray[Any, Any]
_RANDOM = np.random.default_rng(11)
_FEATURES = 4


def _x(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _list(*shape: int) -> list[float]:
    return [float(value) for value in _x(*shape).reshape(-1)]


def _row(x: Array) -> Array:
    x = x.copy()
    x[0] = 0
    return x


def _trees(
    kind: str, mode: str = "BRANCH_LEQ", count: int = 3, depth: int = 3, results: int = 1, is_positive: bool = False
) -> dict[str, Any]:
    """Return attributes of random trees, some of whose leaves lie higher; every leaf adds to some of the results."""
    nodes: list[tuple[Any, ...]] = []
    weights: list[tuple[Any, ...]] = []

    def grow(tree: int, number: int, level: int) -> None:
        is_leaf = level == depth or (level and _RANDOM.random() < 0.25)
        feature, value = int(_RANDOM.integers(_FEATURES)), float(np.float32(_RANDOM.integers(-2, 3) / 2))
        children = (0, 0) if is_leaf else (2 * number + 1, 2 * number + 2)
        tracks = int(_RANDOM.integers(2))
        nodes.append((tree, number, 0 if is_leaf else feature, value, "LEAF" if is_leaf else mode, *children, tracks))
        if is_leaf:
            for result in range(results):
                weight = float(np.float32(_RANDOM.random() if is_positive else _RANDOM.standard_normal()))
                weights.append((tree, number, result, weight / count if is_positive else weight))
        else:
            for child in children:
                grow(tree, child, level + 1)

    for tree in range(count):
        grow(tree, 0, 0)
    fields = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    columns = list(zip(*nodes, strict=True))
    found = {f"nodes_{name}": list(column) for name, column in zip(fields, columns, strict=False)}
    found["nodes_missing_value_tracks_true"] = list(columns[7])
    tree, number, result, weight = (list(column) for column in zip(*weights, strict=True))
    found |= {f"{kind}_treeids": tree, f"{kind}_nodeids": number, f"{kind}_ids": result, f"{kind}_weights": weight}
    return found


def _ensemble(mode: int) -> dict[str, Any]:
    """Return attributes of TreeEnsemble: two trees with one mode, the second a single split; sets have 1 to 3
    members, which are integers, as ONNX Runtime takes them.
    """
    numbers = [mode, 0, mode, mode]
    sets = [[1.0, 2.0], [1.0], [3.0, 1.0, 2.0]]
    found = {
        "nodes_splits": (TensorProto.FLOAT, [0.5, 0.0, -0.5, 0.5]),
        "nodes_modes": (TensorProto.UINT8, numbers),
        "leaf_weights": (TensorProto.FLOAT, [1.0, -2.0, 4.0, 8.0, 16.0, -32.0]),
    }
    if mode == 6:
        found["membership_values"] = (TensorProto.FLOAT, [value for one in sets for value in (*one, float("nan"))])
    return {name: helper.make_tensor(name, kind, [len(data)], data) for name, (kind, data) in found.items()} | {
        "nodes_featureids": [0, 1, 2, 3],
        "nodes_truenodeids": [1, 0, 2, 4],
        "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 5],
        "nodes_falseleafs": [0, 1, 1, 1],
        "tree_roots": [0, 3],
        "leaf_targetids": [0, 1, 0, 1, 1, 0],
        "n_targets": 2,
        "nodes_missing_value_tracks_true": [0, 1, 1, 0],
    }


def _halves(rows: int) -> Array:
    """Return rows of -1, -0.5, 0, 0.5, 1 and NaN, which stand on thresholds."""
    x = _RANDOM.integers(-2, 4, (rows, _FEATURES)).astype(np.float32) / 2
    return np.where(x > 1, np.float32(np.nan), x)


def _machine(classes: int) -> dict[str, Any]:
    """Return a machine of two or three support vectors for each class."""
    of_classes = [2 + at % 2 for at in range(classes)]
    return {
        "vectors_per_class": of_classes,
        "support_vectors": _list(sum(of_classes), _FEATURES),
        "coefficients": [(-1) ** at * number for at, number in enumerate(_list(classes - 1, sum(of_classes)))],
        "rho": _list(classes * (classes - 1) // 2),
        "kernel_params": [0.3, 0.5, 3.0],
        "classlabels_ints": [3, 7, 9, 11][:classes],
    }


def _negative(classes: int) -> list[float]:
    return [-abs(number) - 1 for number in _list(classes * (classes - 1) // 2)]


_LABELS = {"classlabels_int64s": [3, 7, 9]}
_LINEAR = {"coefficients": _list(3, _FEATURES), "intercepts": _list(3), "classlabels_ints": [3, 7, 9]}
_SUPPORT = {
    "support_vectors": _list(5, _FEATURES),
    "n_supports": 5,
    "coefficients": _list(5),
    "rho": [0.25],
    "kernel_params": [0.3, 0.5, 3.0],
}
_PLANES = {
    "coefficients": _list(3, _FEATURES),
    "rho": [0.25] * 3,
    "classlabels_ints": [3, 7, 9],
    "kernel_type": "LINEAR",
    "kernel_params": [0.0, 0.0, 3.0],
}
_BINARY = {"classlabels_int64s": [3, 7]}
_SINGLE = {"coefficients": _list(_FEATURES), "intercepts": [0.1], "classlabels_ints": [3, 7]}
_INTEGERS = _RANDOM.integers(0, 5, (6, 2))
# Operator and variant -> input, attributes, outputs
CASES: dict[str, tuple[Array, dict[str, Any], int]] = {
    "ArrayFeatureExtractor": (_x(6, _FEATURES), {}, 1),
    "Binarizer": (_x(6, 3), {"threshold": 0.25}, 1),
    "FeatureVectorizer": (_x(6, 3), {"inputdimensions": [3]}, 1),
    "Imputer": (np.where(_x(6, 3) > 0.5, np.float32(np.nan), _x(6, 3)),
                {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}, 1),
    "Imputer, integers": (_INTEGERS, {"imputed_value_int64s": [9, 8], "replaced_value_int64": 2}, 1),
    "LabelEncoder": (_INTEGERS, {"keys_int64s": [1, 4], "values_int64s": [40, 10], "default_int64": -7}, 1),
    "LabelEncoder, floats": (_INTEGERS, {"keys_int64s": [0, 3], "values_floats": [0.5, 1.5], "default_float": 9.0}, 1),
    "OneHotEncoder": (_INTEGERS, {"cats_int64s": [0, 2, 4], "zeros": 1}, 1),
    "OneHotEncoder, of known categories": (_INTEGERS % 3 * 2, {"cats_int64s": [0, 2, 4], "zeros": 0}, 1),
    "Scaler": (_x(6, 3), {"offset": _list(3), "scale": _list(3)}, 1),
    "Scaler, of integers": (_INTEGERS, {"offset": [0.5], "scale": [2.0]}, 1),
    **{f"Normalizer, {norm}": (_row(_x(6, 3)), {"norm": norm}, 1) for norm in ("MAX", "L1", "L2")},
    "LinearRegressor": (_x(6, _FEATURES), {"coefficients": _list(2, 4), "intercepts": _list(2), "targets": 2}, 1),
    **{f"LinearClassifier, {name}": (_x(6, _FEATURES), _LINEAR | {"post_transform": name}, 2)
       for name in ("NONE", "LOGISTIC", "SOFTMAX")},
    **{f"LinearClassifier, one score, {name}": (_x(6, _FEATURES), _SINGLE | {"post_transform": name}, 2)
       for name in ("NONE", "LOGISTIC")},
    **{f"SVMRegressor, {kind}": (_x(6, _FEATURES), _SUPPORT | {"kernel_type": kind}, 1)
       for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")},
    "SVMRegressor, one class": (_x(6, _FEATURES), _SUPPORT | {"kernel_type": "RBF", "one_class": 1}, 1),
    **{f"TreeEnsembleRegressor, {mode}": (_x(9, _FEATURES), _trees("target", mode) | {"n_targets": 1}, 1)
       for mode in ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")},
    **{f"TreeEnsembleRegressor, {mode}": (_halves(40), _trees("target", mode) | {"n_targets": 1}, 1)
       for mode in ("BRANCH_EQ", "BRANCH_NEQ")},
    **{f"TreeEnsemble, {mode}": (_halves(40) * (mode == 6 or 0.5) * 2, _ensemble(mode), 1) for mode in range(7)},
    **{f"SVMClassifier, {kind}": (_x(9, _FEATURES), _machine(2) | {"kernel_type": kind}, 2)
       for kind in ("RBF", "POLY")},
    "SVMClassifier, two classes, LOGISTIC": (_x(9, _FEATURES), _machine(2) | {"post_transform": "LOGISTIC"}, 2),
    "SVMClassifier, four classes": (_x(20, _FEATURES), _machine(4) | {"kernel_type": "RBF"}, 2),
    **{f"SVMClassifier, probabilities of {count}": (
        _x(20, _FEATURES),
        _machine(count) | {"kernel_type": "RBF", "prob_a": _negative(count), "prob_b": _list(count * (count - 1) // 2)},
        2) for count in (2, 4)},
    "SVMClassifier, linear": (_x(9, _FEATURES), _PLANES, 2),
    "TreeEnsembleRegressor, mean of two targets": (
        _x(9, _FEATURES),
        _trees("target", results=2) | {"n_targets": 2, "aggregate_function": "AVERAGE", "base_values": [0.5, -1.0]},
        1,
    ),
    "TreeEnsembleRegressor, targets that some leaves have": (
        _x(9, _FEATURES), _trees("target", results=2) | {"n_targets": 3, "base_values": [0.5, -1.0, 4.0]}, 1),
    "TreeEnsembleClassifier": (
        _x(9, _FEATURES), _trees("class", results=3) | _LABELS | {"post_transform": "SOFTMAX"}, 2),
    "TreeEnsembleClassifier, two classes": (
        _x(9, _FEATURES), _trees("class") | _BINARY | {"post_transform": "LOGISTIC"}, 2),
    "TreeEnsembleClassifier, two classes with a base": (
        _x(9, _FEATURES), _trees("class") | _BINARY | {"post_transform": "LOGISTIC", "base_values": [0.3]}, 2),
    **{f"TreeEnsembleClassifier, two classes with weights, {post}": (
        _x(20, _FEATURES),
        _trees("class", results=2) | {"classlabels_int64s": [0, 1], "post_transform": post} | base, 2)
       for post, base in (
           ("NONE", {"base_values": [0.25]}), ("SOFTMAX", {}), ("LOGISTIC", {"base_values": [0.25, -0.5]}))},
    "TreeEnsembleClassifier, scores of two classes": (_x(9, _FEATURES), _trees("class") | _BINARY, 2),
    "TreeEnsembleClassifier, shares of two classes": (_x(9, _FEATURES), _trees("class", is_positive=True) | _BINARY, 2),
}  # fmt: skip


def _model(case: str) -> tuple[Any, Array]:
    x, attributes, outputs = CASES[case]
    op = case.partition(",")[0]
    names = ["x", "places"] if op == "ArrayFeatureExtractor" else ["x"]
    node = helper.make_node(op, names, ["y", "z"][:outputs], name="node", domain=ML_DOMAIN, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [helper.make_tensor("places", TensorProto.INT64, [2], [2, 0])] * (len(names) - 1),
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML_DOMAIN, 5 if op == "TreeEnsemble" else 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), x


def _check(model: Any, x: Array) -> None:
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    module = canonicalize(import_model(model, [TensorSpec("x", x.shape, str(x.dtype))]))
    found = LocalRunner.of_plain(module, host_backend()).run(x)
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.few(6)
@pytest.mark.parametrize("case", sorted(CASES))
def test_tables_equal_onnx_runtime(case: str) -> None:
    _check(*_model(case))


def test_a_file_of_trees_alone_need_not_declare_the_standard_operators(tmp_path: Path) -> None:
    model, x = _model("TreeEnsembleRegressor, BRANCH_LT")
    del model.opset_import[0]
    onnx.save(model, tmp_path / "trees.onnx")
    source = load_source(tmp_path, SourceDescription("onnx", None, "trees.onnx", (TensorSpec("x", x.shape),)))
    assert len(read_graph(source.to_relax()).outputs) == len(source.run(x)) == 1


def test_a_missing_number_takes_the_side_that_its_node_says() -> None:
    model, x = _model("TreeEnsembleRegressor, BRANCH_LT")
    x = np.where(_RANDOM.random((40, _FEATURES)) < 0.5, np.float32(np.nan), _x(40, _FEATURES))
    x[:5] = np.float32([-1, -0.5, 0.5, 1])  # on the thresholds
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 40
    _check(model, x)


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("ZipMap", {"classlabels_int64s": [0, 1]}, r"convert with options=\{'zipmap': False\}"),
        ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "strings; convert with integer labels"),
        ("TreeEnsembleClassifier", _trees("class", results=2) | _BINARY, r"labels \[3, 7\] of two classes"),
        ("TreeEnsembleRegressor", _trees("target", "BRANCH_IN"), "BRANCH_IN as a node's mode"),
        ("LinearClassifier", _LINEAR | {"post_transform": "PROBIT"}, "post_transform PROBIT"),
    ],
)
def test_what_is_refused_says_what_to_do(op: str, attributes: dict[str, Any], message: str) -> None:
    node = helper.make_node(op, ["x"], ["y"], name="node", domain=ML_DOMAIN, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, _FEATURES])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML_DOMAIN, 3)]
    with pytest.raises(UnsupportedOperatorError, match=message):
        import_model(helper.make_model(graph, opset_imports=opsets), [TensorSpec("x", (2, _FEATURES))])


def test_a_tree_with_several_roots_is_refused() -> None:
    trees = _trees("target", depth=2)
    trees["nodes_truenodeids"] = [0 if mode != "LEAF" else child for mode, child in zip(
        trees["nodes_modes"], trees["nodes_truenodeids"], strict=True)]  # fmt: skip
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], name="node", domain=ML_DOMAIN, **trees)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, _FEATURES])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML_DOMAIN, 3)]
    with pytest.raises(UnsupportedOperatorError, match="a tree with several roots"):
        import_model(helper.make_model(graph, opset_imports=opsets), [TensorSpec("x", (2, _FEATURES))])


def test_every_converter_has_a_case() -> None:
    ours = {op for domain, op in CONVERTERS if domain == ML_DOMAIN}
    assert ours == {case.partition(",")[0] for case in CASES}
