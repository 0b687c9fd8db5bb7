"""Support vector machines of ai.onnx.ml: regression, and classification by votes between pairs of classes."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from tvmflow.frontends.onnx.converters.coupled_probabilities import coupled_probabilities
from tvmflow.frontends.onnx.converters.tables import after_sum, floats, in_float32, int_labels
from tvmflow.frontends.onnx.nodes import Converter, Node, RefusedNodeError, Value, dims

Array = np.ndarray[Any, Any]


def _classifier(node: Node) -> Any:
    """Return labels (N) and scores: of each pair of classes, or of each class for a linear machine."""
    labels = int_labels(node, ("classlabels_ints", "classlabels_strings"))
    if labels is None or len(labels) < 2:
        raise RefusedNodeError("no labels of at least two classes")
    x, r, count = in_float32(node, node.inputs[0]), node.emitter, len(labels)
    of_classes = np.asarray(node.attributes.get("vectors_per_class") or (), np.int64)
    rho, coefficients = floats(node, "rho"), floats(node, "coefficients")
    if of_classes.sum() == 0:
        scores = r.add(r.matmul(x, np.ascontiguousarray(coefficients.reshape(count, -1).T)), rho[:1].reshape(1, 1))
        votes = scores
    else:
        vectors = floats(node, "support_vectors").reshape(int(of_classes.sum()), -1)
        weights = _weights_of_pairs(coefficients.reshape(count - 1, -1), of_classes)
        scores = r.add(r.matmul(_kernel(node, x, vectors), np.ascontiguousarray(weights.T)), rho.reshape(1, -1))
        votes = _votes(node, scores, count)
    found = r.reshape_to(r.take(labels, r.argmax(votes, 1, False), 0), [dims(x)[0]])
    if node.attributes.get("prob_a") and of_classes.sum():
        slopes, offsets = floats(node, "prob_a"), floats(node, "prob_b")
        scores = coupled_probabilities(node, scores, count, slopes, offsets)
        return found, after_sum(node, scores, node.text("post_transform", "NONE"))
    if count == 2 and len(rho) == 1 and (coefficients >= 0).all():  # as ONNX Runtime takes it
        raise RefusedNodeError("two classes without a negative coefficient")
    if dims(scores)[1] == 1:
        scores = r.concat([r.negative(scores), scores], 1)
    return found, after_sum(node, scores, node.text("post_transform", "NONE"))


def _weights_of_pairs(coefficients: Array, of_classes: Array) -> Array:
    """Return what each support vector adds to the score of each pair of classes (pairs, S)."""
    ends = np.cumsum(of_classes)
    pairs = list(combinations(range(len(of_classes)), 2))
    weights = np.zeros((len(pairs), coefficients.shape[1]), np.float32)
    for at, (first, second) in enumerate(pairs):
        for one, other in ((first, second - 1), (second, first)):
            own = slice(ends[one] - of_classes[one], ends[one])
            weights[at, own] = coefficients[other, own]
    return weights


def _votes(node: Node, scores: Value, count: int) -> Value:
    """Return how many pairs each class wins (N, count): the first class of a pair with a positive score."""
    r, pairs = node.emitter, np.asarray(list(combinations(range(count), 2)))
    first, second = (np.eye(count, dtype=np.float32)[pairs[:, at]] for at in (0, 1))
    is_first = r.cast(r.greater(scores, np.float32(0)), "float32")
    return r.add(r.matmul(is_first, first - second), second.sum(0, keepdims=True))


def _regressor(node: Node) -> Value:
    x, r, given = in_float32(node, node.inputs[0]), node.emitter, node.attributes
    vectors = floats(node, "support_vectors").reshape(max(given.get("n_supports", 0), 1), -1)
    coefficients, rho = floats(node, "coefficients").reshape(-1, 1), floats(node, "rho", (0.0,))
    weights = _kernel(node, x, vectors) if given.get("n_supports", 0) else x
    found = r.add(r.matmul(weights, coefficients), rho[:1].reshape(1, 1))
    if given.get("one_class", 0):
        return r.where(r.greater(found, np.float32(0)), np.float32(1), np.float32(-1))
    return after_sum(node, found, node.text("post_transform", "NONE"))


def _kernel(node: Node, x: Value, vectors: Array) -> Value:
    """Return the kernel of each row (N, F) with each support vector (S, F)."""
    r, kind = node.emitter, node.text("kernel_type", "LINEAR")
    gamma, offset, degree = (np.float32(value) for value in floats(node, "kernel_params", (0, 0, 0)))
    if kind == "RBF":
        center = vectors.mean(0, keepdims=True)  # distances lose fewer digits near the origin
        x, vectors = r.subtract(x, center), vectors - center
        rows = r.sum(r.multiply(x, x), [1], True)
        products = r.multiply(r.matmul(x, np.ascontiguousarray(vectors.T)), np.float32(2))
        distances = r.subtract(r.add(rows, (vectors**2).sum(1).reshape(1, -1)), products)
        return r.exp(r.multiply(r.maximum(distances, np.float32(0)), -gamma))
    products = r.matmul(x, np.ascontiguousarray(vectors.T))
    if kind == "LINEAR":
        return products
    scaled = r.add(r.multiply(products, gamma), offset)
    if kind == "SIGMOID":
        return r.tanh(scaled)
    if degree != round(float(degree)) or not 1 <= degree <= 8:
        raise RefusedNodeError(f"a polynomial kernel of degree {degree}")
    found = scaled
    for _ in range(int(degree) - 1):
        found = r.multiply(found, scaled)
    return found


SUPPORT_VECTORS: dict[str, Converter] = {"SVMClassifier": _classifier, "SVMRegressor": _regressor}
