"""Ensembles of decision trees: all trees of a row go down one level at a time, in a kernel for each level.

Nodes of all trees are in one table: feature, threshold, and the next node if the value is at most the threshold, if it
is larger, and if it is NaN. A leaf is followed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvmflow.frontends.onnx.converters.tables import after_sum, classified, floats, in_float32, int_labels
from tvmflow.frontends.onnx.nodes import Converter, Node, RefusedNodeError, Value, dims

Array = np.ndarray[Any, Any]
_MOST_LEVELS = 128
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "LEAF")


@dataclass(frozen=True)
class _Trees:
    """The nodes of all trees. roots: the first node of each; leaves: number of a node by (tree, node of the file)."""

    features: Array
    thresholds: Array
    small: Array
    large: Array
    missing: Array
    roots: Array
    numbers: dict[tuple[int, int], int]
    levels: int


def _trees(node: Node) -> _Trees:
    given = node.attributes
    if given.get("nodes_values_as_tensor") is not None:
        raise RefusedNodeError("thresholds of float64; convert a model of float32")
    trees, names = given["nodes_treeids"], given["nodes_nodeids"]
    numbers = {key: at for at, key in enumerate(zip(trees, names, strict=True))}
    if len(numbers) != len(trees):
        raise RefusedNodeError("two nodes of one number")
    modes = [mode.decode() for mode in given["nodes_modes"]]
    if other := sorted(set(modes) - set(_MODES)):
        raise RefusedNodeError(f"{', '.join(other)}: splits by category")
    true, false = (
        np.asarray(
            [
                at if mode == "LEAF" else numbers[tree, child]
                for at, (tree, child, mode) in enumerate(zip(trees, given[f"nodes_{side}nodeids"], modes, strict=True))
            ]
        )
        for side in ("true", "false")
    )
    values = floats(node, "nodes_values")
    tracks = np.asarray(given.get("nodes_missing_value_tracks_true") or [0] * len(modes), bool)
    # x < t is x <= the number before t; x >= t and x > t are the others, with the sides exchanged.
    is_strict = np.isin(modes, ("BRANCH_LT", "BRANCH_GTE"))
    is_above = np.isin(modes, ("BRANCH_GTE", "BRANCH_GT"))
    is_leaf = np.asarray([mode == "LEAF" for mode in modes])
    thresholds = np.where(is_strict, np.nextafter(values, np.float32(-np.inf)), values).astype(np.float32)
    children = set(true[~is_leaf].tolist()) | set(false[~is_leaf].tolist())
    roots = [at for at in range(len(trees)) if at not in children]
    if sorted(trees[at] for at in roots) != sorted(set(trees)):
        raise RefusedNodeError("a tree with several roots, or without one")
    return _Trees(
        np.where(is_leaf, 0, np.asarray(given["nodes_featureids"])).astype(np.int32),
        thresholds,
        np.where(is_above, false, true).astype(np.int32),
        np.where(is_above, true, false).astype(np.int32),
        np.where(tracks, true, false).astype(np.int32),
        np.asarray(roots, np.int32),
        numbers,
        _levels(true, false, roots),
    )


def _levels(true: Array, false: Array, roots: list[int]) -> int:
    """Return how many steps lead from roots to the farthest leaf. Raises RefusedNodeError for a circle."""
    front = np.unique(np.asarray(roots))
    for level in range(_MOST_LEVELS + 1):
        inner = front[true[front] != front]
        if not inner.size:
            return level
        front = np.unique(np.concatenate([true[inner], false[inner]]))
    raise RefusedNodeError(f"trees of more than {_MOST_LEVELS} levels")


def _leaves(node: Node, x: Value, trees: _Trees) -> Value:
    """Return the leaf of each row in each tree, (N, trees)."""
    rows, columns = dims(x)
    if trees.features.max(initial=0) >= columns or trees.features.min(initial=0) < 0:
        raise RefusedNodeError(f"a split by feature {trees.features.max()} of {columns}")
    tables = (trees.features, trees.thresholds, trees.small, trees.large, trees.missing)

    def step(data: Any, at: Any, feature: Any, threshold: Any, small: Any, large: Any, missing: Any) -> Any:
        def following(row: Any, tree: Any) -> Any:
            here = at[row, tree]
            value = data[row, feature[here]]
            side = tirx.Select(value <= threshold[here], small[here], large[here])
            return tirx.Select(tirx.isnan(value), missing[here], side)

        return te.compute((rows, len(trees.roots)), following, name="next_node")

    found: Value = np.broadcast_to(trees.roots, (rows, len(trees.roots)))
    for _ in range(trees.levels):
        found = node.emitter.te(step, x, found, *tables, name="tree_level")
    return found


def _scores(node: Node, kind: str, results: Array, count: int) -> Value:
    """Return the sum of the weights of each result in the leaves of each row, (N, count)."""
    r, trees = node.emitter, _trees(node)
    x = in_float32(node, node.inputs[0])
    leaves = _leaves(node, x, trees)
    keys = zip(node.attributes[f"{kind}_treeids"], node.attributes[f"{kind}_nodeids"], strict=True)
    weights = np.zeros((len(trees.features), count), np.float32)
    np.add.at(weights, (np.asarray([trees.numbers[key] for key in keys]), results), floats(node, f"{kind}_weights"))
    mode = node.text("aggregate_function", "SUM")
    if mode not in ("SUM", "AVERAGE"):
        raise RefusedNodeError(f"aggregate_function {mode}")
    if mode == "AVERAGE":
        weights /= len(trees.roots)
    found = r.sum(r.take(weights, leaves, 0), [1], False)
    base = floats(node, "base_values")
    return r.add(found, base) if base.size else found


def _regressor(node: Node) -> Value:
    count = node.attributes.get("n_targets", 1)
    results = np.asarray(node.attributes["target_ids"])
    if node.attributes.get("target_weights_as_tensor") is not None:
        raise RefusedNodeError("weights of float64; convert a model of float32")
    return after_sum(node, _scores(node, "target", results, count), node.text("post_transform", "NONE"))


def _classifier(node: Node) -> Any:
    labels = int_labels(node, ("classlabels_int64s", "classlabels_strings"))
    results = np.asarray(node.attributes["class_ids"])
    if labels is None or node.attributes.get("class_weights_as_tensor") is not None:
        raise RefusedNodeError("no labels, or weights of float64")
    if len(labels) == 2 and len(set(results.tolist())) == 1:
        is_positive = bool((floats(node, "class_weights") >= 0).all())
        scores = _scores(node, "class", np.zeros_like(results), 1)
        return classified(node, scores, labels, 0.5 if is_positive else 0.0, "1 - score" if is_positive else "-score")
    return classified(node, _scores(node, "class", results, len(labels)), labels, 0.0, "-score")


TREES: dict[str, Converter] = {"TreeEnsembleClassifier": _classifier, "TreeEnsembleRegressor": _regressor}
