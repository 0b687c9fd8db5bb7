"""Operators of ai.onnx.ml for tables of numbers, which the exporter of scikit-learn writes: scalers, linear models.

A row is a sample. Scores of classifiers become probabilities as ONNX Runtime does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.nodes import Converter, Node, RefusedNodeError, Value, dims, dtype_of, is_float

Array = np.ndarray[Any, Any]
ML_DOMAIN = "ai.onnx.ml"
_STRINGS = "labels or categories that are strings; convert with integer labels"
_MOST_CATEGORIES = 1024  # of an encoder, whose work grows with them


def floats(node: Node, name: str, default: Sequence[float] = ()) -> Array:
    """Return an attribute of numbers in float32."""
    return np.asarray(node.attributes.get(name, default), np.float32)


def in_float32(node: Node, x: Value) -> Value:
    return node.emitter.cast(x, "float32")


def int_labels(node: Node, names: Sequence[str]) -> Array | None:
    """Return the labels of a classifier, None without any. Raises RefusedNodeError for strings."""
    for name in names:
        if node.attributes.get(name):
            if name.endswith("strings"):
                raise RefusedNodeError(_STRINGS)
            return np.asarray(node.attributes[name], np.int64)
    return None


def after_sum(node: Node, scores: Value, name: str) -> Value:
    """Return scores (N, C) after a post_transform."""
    r = node.emitter
    if name == "NONE":
        return scores
    if name == "LOGISTIC":
        return r.sigmoid(scores)
    if name == "SOFTMAX":
        return r.nn__softmax(scores, -1)
    raise RefusedNodeError(f"post_transform {name}")


def classified(node: Node, scores: Value, labels: Array | None, threshold: float, first: str) -> Any:
    """Return labels (N) and probabilities (N, C) of scores (N, C), or of the single score of the second of two classes.

    threshold: of a single score. first: what ONNX Runtime returns for the first class: "1 - score", always or if there
    is no post_transform ("rest"), or else "-score".
    """
    r, transform = node.emitter, node.text("post_transform", "NONE")
    batch, count = dims(scores)
    labels = np.arange(max(count, 2), dtype=np.int64) if labels is None else labels
    if len(labels) != max(count, 2):
        raise RefusedNodeError(f"{len(labels)} labels for {count} scores")
    if count > 1:
        place = r.argmax(scores, 1, False)
        return r.reshape_to(r.take(labels, place, 0), [batch]), after_sum(node, scores, transform)
    if transform not in ("NONE", "LOGISTIC"):
        raise RefusedNodeError(f"post_transform {transform} of one score")
    is_second = r.greater(r.reshape_to(scores, [batch]), np.asarray(threshold, np.float32))
    found = r.where(is_second, labels[1], labels[0])
    if first == "1 - score" or (first == "rest" and transform == "NONE"):
        return found, r.concat([r.subtract(np.float32(1), scores), scores], 1)
    both = r.concat([r.negative(scores), scores], 1)
    return found, r.sigmoid(both) if transform == "LOGISTIC" else both


def _linear(node: Node, x: Value, name: str, count: int) -> Value:
    """Return x (N, F) times the coefficients of `count` results, plus intercepts."""
    r, coefficients = node.emitter, floats(node, "coefficients").reshape(count, -1)
    found = r.matmul(in_float32(node, x), np.ascontiguousarray(coefficients.T))
    added = floats(node, name)
    return r.add(found, added.reshape(1, -1)) if added.size else found


def _linear_regressor(node: Node) -> Value:
    found = _linear(node, node.inputs[0], "intercepts", node.attributes.get("targets", 1))
    return after_sum(node, found, node.text("post_transform", "NONE"))


def _linear_classifier(node: Node) -> Any:
    labels = int_labels(node, ("classlabels_ints", "classlabels_strings"))
    count = max(len(floats(node, "intercepts")), 1)
    return classified(node, _linear(node, node.inputs[0], "intercepts", count), labels, 0.0, "rest")


def _scaler(node: Node) -> Value:
    x, r = in_float32(node, node.inputs[0]), node.emitter
    offset, scale = floats(node, "offset"), floats(node, "scale")
    x = r.subtract(x, offset) if offset.size else x
    return r.multiply(x, scale) if scale.size else x


def _normalizer(node: Node) -> Value:
    x, r = in_float32(node, node.inputs[0]), node.emitter
    kind = node.text("norm", "MAX")
    if kind == "L2":
        size = r.sqrt(r.sum(r.multiply(x, x), [-1], True))
    elif kind == "L1":
        size = r.sum(r.abs(x), [-1], True)
    else:
        size = r.max(x, [-1], True)
    zero = np.float32(0)
    return r.where(r.equal(size, zero), x, r.divide(x, r.where(r.equal(size, zero), np.float32(1), size)))


def _binarizer(node: Node) -> Value:
    x = node.inputs[0]
    return node.emitter.cast(
        node.emitter.greater(x, np.asarray(node.attributes.get("threshold", 0.0)).astype(dtype_of(x))), dtype_of(x)
    )


def _imputer(node: Node) -> Value:
    x, r, given = node.inputs[0], node.emitter, node.attributes
    values = np.asarray(given.get("imputed_value_floats") if is_float(x) else given.get("imputed_value_int64s"))
    if values.dtype == object or not values.size:
        raise RefusedNodeError("imputed values of another type than its input")
    missing = np.asarray(given.get("replaced_value_float" if is_float(x) else "replaced_value_int64", 0))
    is_missing = r.isnan(x) if is_float(x) and np.isnan(missing) else r.equal(x, missing.astype(dtype_of(x)))
    return r.where(is_missing, values.astype(dtype_of(x)), x)


def _pairs(node: Node) -> tuple[Array, Array, Any]:
    """Return keys, values and default of a LabelEncoder."""
    found: dict[str, Array] = {}
    for side in ("keys", "values"):
        for kind, dtype in (("int64s", np.int64), ("floats", np.float32), ("tensor", None), ("strings", None)):
            value = node.attributes.get(f"{side}_{kind}")
            if value is None or (kind != "tensor" and not len(value)):
                continue
            if kind == "strings":
                raise RefusedNodeError(_STRINGS)
            found[side] = _tensor(value) if kind == "tensor" else np.asarray(value, dtype)
    if set(found) != {"keys", "values"} or len(found["keys"]) != len(found["values"]):
        raise RefusedNodeError("without keys and values, as many of each")
    given, dtype = node.attributes, found["values"].dtype
    if given.get("default_tensor") is not None:
        default: Any = _tensor(given["default_tensor"]).reshape(())
    else:
        default = given.get(
            "default_int64" if dtype.kind == "i" else "default_float", -1 if dtype.kind == "i" else -0.0
        )
    return found["keys"], found["values"], np.asarray(default).astype(dtype)


def _tensor(value: Any) -> Array:
    import onnx

    found = np.asarray(onnx.numpy_helper.to_array(value)).reshape(-1)
    if found.dtype.kind not in "iuf":
        raise RefusedNodeError(_STRINGS)
    return found


def _label_encoder(node: Node) -> Value:
    """Each key is compared with the input: keys are few, and a table would need keys that are places."""
    x, r = node.inputs[0], node.emitter
    keys, values, found = _pairs(node)
    if len(keys) > _MOST_CATEGORIES:
        raise RefusedNodeError(f"{len(keys)} keys (at most {_MOST_CATEGORIES})")
    shape, column = dims(x), r.reshape_to(x, [*dims(x), 1])
    is_key = r.isnan(column) if len(keys) == 1 and keys.dtype.kind == "f" and np.isnan(keys[0]) else None
    is_key = r.equal(column, keys.astype(dtype_of(x)).reshape(*[1] * len(shape), -1)) if is_key is None else is_key
    place = r.argmax(r.cast(is_key, "int32"), len(shape), False)
    is_known = r.reshape_to(r.max(r.cast(is_key, "int32"), [-1], False), shape)
    return r.where(r.cast(is_known, "bool"), r.reshape_to(r.take(values, place, 0), shape), found)


def _one_hot(node: Node) -> Value:
    """An unknown category gives zeros; with zeros=0, the default of scikit-learn, ONNX Runtime raises an error then."""
    x, r = node.inputs[0], node.emitter
    if node.attributes.get("cats_strings"):
        raise RefusedNodeError(_STRINGS)
    categories = np.asarray(node.attributes.get("cats_int64s", ()), np.int64)
    column = r.reshape_to(r.cast(x, "int64"), [*dims(x), 1])
    return r.cast(r.equal(column, categories.reshape(*[1] * len(dims(x)), -1)), "float32")


def _extractor(node: Node) -> Value:
    x, places = node.inputs
    r, rank, count = node.emitter, len(dims(x)), int(np.prod(dims(places), dtype=int))
    found = r.take(x, r.reshape_to(r.cast(places, "int64"), [count]), rank - 1)
    return r.reshape_to(found, [1, count]) if rank == 1 else found


def _vectorizer(node: Node) -> Value:
    sizes, r = node.attributes.get("inputdimensions", ()), node.emitter
    parts = []
    for at, x in enumerate(node.inputs):
        flat = r.reshape_to(in_float32(node, x), [dims(x)[0], int(np.prod(dims(x)[1:], dtype=int))])
        if at < len(sizes) and sizes[at] != dims(flat)[1]:
            raise RefusedNodeError(f"inputdimensions {list(sizes)} for an input of {dims(flat)[1]} columns")
        parts.append(flat)
    return r.concat(parts, 1) if len(parts) > 1 else parts[0]


TABLES: dict[str, Converter] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot,
    "Scaler": _scaler,
}
_SEQUENCE = "a sequence of dictionaries; convert with options={'zipmap': False}"
REFUSED_TABLES: dict[str, str] = {
    "CastMap": "its input is a dictionary; give a table of numbers",
    "CategoryMapper": "one of its sides is strings; encode them before the model",
    "DictVectorizer": "its input is a dictionary; give a table of numbers",
    "ZipMap": _SEQUENCE,
}
