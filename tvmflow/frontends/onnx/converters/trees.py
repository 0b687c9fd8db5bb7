"""Ensembles of decision trees: all trees of a row go down one level at a time, in a kernel for each level.

Nodes of all trees are in one table: feature, threshold, and the next node if the value is at most the threshold, if it
is larger, and if it is NaN. A leaf is followed by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import te, tirx

from tvmflow.frontends.onnx.converters.tables import after_sum, classified, floats, in_float32, int_labels
from tvmflow.frontends.onnx.nodes import Converter, Node, RefusedNodeError, Value, dims

Array = np.ndarray[Any, Any]
_MOST_LEVELS = 128
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")  # by their numbers
_MEMBER = 6  # of BRANCH_MEMBER
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass(frozen=True)
class _Trees:
    """The nodes of all trees. small, large: the next node where the value is at most the threshold, or larger; of nodes
    in `equal`, where it is the threshold, or another. roots: the first node of each tree.
    """

    features: Array
    thresholds: Array
    small: Array
    large: Array
    missing: Array
    equal: Array
    roots: Array
    levels: int


def _trees(node: Node) -> tuple[_Trees, dict[tuple[int, int], int]]:
    """Return the trees of the operators before TreeEnsemble, and the number of each (tree, node of the file)."""
    given = node.attributes
    if given.get("nodes_values_as_tensor") is not None:
        raise RefusedNodeError("thresholds of float64; convert a model of float32")
    trees, names = given["nodes_treeids"], given["nodes_nodeids"]
    numbers = {key: at for at, key in enumerate(zip(trees, names, strict=True))}
    if len(numbers) != len(trees):
        raise RefusedNodeError("two nodes of one number")
    modes = [mode.decode() for mode in given["nodes_modes"]]
    if other := sorted(set(modes) - {*_MODES, "LEAF"}):
        raise RefusedNodeError(f"{', '.join(other)} as a node's mode")
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
    found = _table(np.asarray(modes), np.asarray(given["nodes_featureids"]), values, true, false, tracks)
    if sorted(trees[at] for at in found.roots) != sorted(set(trees)):
        raise RefusedNodeError("a tree with several roots, or without one")
    return found, numbers


def _table(
    modes: Array, features: Array, values: Array, true: Array, false: Array, tracks: Array, roots: Array | None = None
) -> _Trees:
    """Return the table of nodes. tracks: NaN goes to the node of true; roots: None to find them."""
    # x < t is x <= the number before t; x >= t and x > t are the others, with the sides exchanged.
    is_strict = np.isin(modes, ("BRANCH_LT", "BRANCH_GTE"))
    is_exchanged = np.isin(modes, ("BRANCH_GTE", "BRANCH_GT", "BRANCH_NEQ"))
    is_leaf = modes == "LEAF"
    if roots is None:
        children = set(true[~is_leaf].tolist()) | set(false[~is_leaf].tolist())
        roots = np.asarray([at for at in range(len(modes)) if at not in children])
    return _Trees(
        np.where(is_leaf, 0, features).astype(np.int32),
        np.where(is_strict, np.nextafter(values, np.float32(-np.inf)), values).astype(np.float32),
        np.where(is_exchanged, false, true).astype(np.int32),
        np.where(is_exchanged, true, false).astype(np.int32),
        np.where(tracks | (modes == "BRANCH_NEQ"), true, false).astype(np.int32),
        np.isin(modes, ("BRANCH_EQ", "BRANCH_NEQ")),
        roots.astype(np.int32),
        _levels(true, false, roots.tolist()),
    )


def _ensemble(node: Node) -> Value:
    """Convert TreeEnsemble of opset 5: nodes and leaves are numbered by themselves."""
    given = node.attributes
    splits, weights = (numpy_helper.to_array(given[name]) for name in ("nodes_splits", "leaf_weights"))
    if splits.dtype != np.float32:
        raise RefusedNodeError(f"thresholds of {splits.dtype}; convert a model of float32")
    nodes = len(splits)
    children = [
        np.asarray(given[f"nodes_{side}nodeids"]) + nodes * np.asarray(given[f"nodes_{side}leafs"], np.int64)
        for side in ("true", "false")
    ]
    tracks = np.asarray(given.get("nodes_missing_value_tracks_true") or [0] * nodes, bool)
    numbers = numpy_helper.to_array(given["nodes_modes"]).astype(np.int64)
    columns = [np.asarray(given["nodes_featureids"]), splits, *children, tracks]
    sets = [] if given.get("membership_values") is None else _sets(numpy_helper.to_array(given["membership_values"]))
    modes, *others = _expand_members(numbers, columns, sets, len(weights))
    features, values, true, false, is_tracked = others
    nodes_of = _table(modes, features, values, true, false, is_tracked, np.asarray(given["tree_roots"]))
    aggregate, transform = _AGGREGATES[given.get("aggregate_function", 1)], _TRANSFORMS[given.get("post_transform", 0)]
    table = np.zeros((len(modes), given.get("n_targets", 1)), np.float32)
    table[nodes + np.arange(len(weights)), np.asarray(given["leaf_targetids"])] = weights
    return after_sum(node, _summed(node, nodes_of, table, aggregate), transform)


def _sets(values: Array) -> list[Array]:
    """Return the sets of members, which NaN ends."""
    ends = np.flatnonzero(np.isnan(values))
    return [part[~np.isnan(part)] for part in np.split(values, ends + 1)][: len(ends)]


def _expand_members(numbers: Array, columns: list[Array], sets: list[Array], leaves: int) -> list[Array]:
    """Return the columns of `_table`, with the leaves behind the nodes, and behind these nodes that compare with the
    further members of a set, one after the other.
    """
    members = np.flatnonzero(numbers == _MEMBER)
    if len(members) != len(sets) or not all(len(one) for one in sets):
        raise RefusedNodeError(f"{len(sets)} sets of members for {len(members)} nodes, or an empty one")
    modes = [*np.where(numbers == _MEMBER, "BRANCH_EQ", np.asarray([*_MODES, ""])[numbers]), *["LEAF"] * leaves]
    features, values, true, false, tracks = (
        [*column.tolist(), *([0] * leaves if at not in (2, 3) else range(len(numbers), len(numbers) + leaves))]
        for at, column in enumerate(columns)
    )
    for at, members_of in zip(members.tolist(), sets, strict=True):
        values[at], otherwise = float(members_of[0]), false[at]
        last = at
        for member in members_of[1:].tolist():
            false[last] = last = len(modes)
            modes.append("BRANCH_EQ")
            features.append(features[at])
            values.append(member)
            true.append(true[at])
            false.append(otherwise)
            tracks.append(tracks[at])
    return [
        np.asarray(modes),
        np.asarray(features),
        np.asarray(values, np.float32),
        np.asarray(true),
        np.asarray(false),
        np.asarray(tracks, bool),
    ]


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
    tables = [trees.features, trees.thresholds, trees.small, trees.large, trees.missing]
    tables += [trees.equal] if trees.equal.any() else []

    def step(
        data: Any, at: Any, feature: Any, threshold: Any, small: Any, large: Any, missing: Any, *equal: Any
    ) -> Any:
        def following(row: Any, tree: Any) -> Any:
            here = at[row, tree]
            value = data[row, feature[here]]
            is_small = value <= threshold[here]
            if equal:
                is_small = tirx.Select(equal[0][here], value.equal(threshold[here]), is_small)
            side = tirx.Select(is_small, small[here], large[here])
            return tirx.Select(tirx.isnan(value), missing[here], side)

        return te.compute((rows, len(trees.roots)), following, name="next_node")

    found: Value = np.broadcast_to(trees.roots, (rows, len(trees.roots)))
    for _ in range(trees.levels):
        found = node.emitter.te(step, x, found, *tables, name="tree_level")
    return found


def _sums(node: Node, kind: str, results: Array, count: int) -> tuple[Value, _Trees, Array]:
    """Return the sum of the weights of each result in the leaves of each row (N, count), the trees, and which nodes
    have a weight for which result (nodes, count).
    """
    trees, numbers = _trees(node)
    places = list(zip(node.attributes[f"{kind}_treeids"], node.attributes[f"{kind}_nodeids"], strict=True))
    at = np.asarray([numbers[key] for key in places])
    weights, has = (np.zeros((len(trees.features), count), np.float32) for _ in range(2))
    np.add.at(weights, (at, results), floats(node, f"{kind}_weights"))
    has[at, results] = 1
    return _summed(node, trees, weights, node.text("aggregate_function", "SUM")), trees, has


def _scores(node: Node, kind: str, results: Array, count: int) -> Value:
    """Return the scores of each row (N, count): sums and base values."""
    found, trees, has = _sums(node, kind, results, count)
    base, r = floats(node, "base_values"), node.emitter
    if kind == "class" or not base.size:
        return r.add(found, base) if base.size else found
    if _always_found(node, has):
        return r.add(found, base)
    # As ONNX Runtime: a target that no leaf of the row has is 0, without its base value.
    is_found = r.greater(_summed(node, trees, has, "SUM"), np.float32(0))
    return r.where(is_found, r.add(found, base), np.float32(0))


def _always_found(node: Node, has: Array) -> bool:
    """Return whether each result is in all leaves of some tree. has: (nodes, results)."""
    trees = np.asarray(node.attributes["nodes_treeids"])
    is_leaf = np.asarray([mode == b"LEAF" for mode in node.attributes["nodes_modes"]])
    whole = [has[is_leaf & (trees == tree)].all(0) for tree in dict.fromkeys(trees.tolist())]
    return bool(np.any(whole, 0).all())


def _summed(node: Node, trees: _Trees, weights: Array, mode: str) -> Value:
    """Return the weights (nodes, results) of the leaves of each row, added up over the trees (N, results)."""
    r = node.emitter
    if mode not in ("SUM", "AVERAGE"):
        raise RefusedNodeError(f"aggregate_function {mode}")
    if mode == "AVERAGE":
        weights = weights / np.float32(len(trees.roots))
    leaves = _leaves(node, in_float32(node, node.inputs[0]), trees)
    return r.sum(r.take(weights, leaves, 0), [1], False)


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
    if len(labels) == 2:
        return _of_two(node, results, labels)
    return classified(node, _scores(node, "class", results, len(labels)), labels, 0.0, "-score")


def _of_two(node: Node, results: Array, labels: Array) -> Any:
    """Return labels and scores of two classes that both have weights, as ONNX Runtime takes them."""
    found, _, has = _sums(node, "class", results, 2)
    if labels.tolist() != [0, 1]:
        raise RefusedNodeError(
            f"labels {labels.tolist()} of two classes with weights, for which ONNX Runtime has 0 and 1"
        )
    if not _always_found(node, has):
        raise RefusedNodeError("rows for which one of two classes has no weight")
    base, r = floats(node, "base_values"), node.emitter
    if base.size == 2:  # the first is not read, nor are the weights of the second class
        second = r.add(r.slice_axis(found, 1, 0, 1), base[1:])
        found = r.concat([r.negative(second), second], 1)
    elif base.size:
        found = r.add(found, np.asarray([base[0], 0], np.float32))
    second = r.reshape_to(r.slice_axis(found, 1, 1, 2), [dims(found)[0]])
    chosen = r.cast(r.greater(second, np.float32(0)), "int64")
    return chosen, after_sum(node, found, node.text("post_transform", "NONE"))


TREES: dict[str, Converter] = {
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
}
