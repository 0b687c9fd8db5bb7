"""ReduceMax and ReduceMin. TVM's start at the largest finite number, which they return for rows of infinities."""

from __future__ import annotations

import numpy as np

from tvmflow.frontends.onnx.nodes import Converter, Node, Value, dims, dtype_of, is_float


def reduced_axes(node: Node) -> list[int]:
    """Return the axes that a reduction removes; none where `noop_with_empty_axes` says so."""
    rank = len(dims(node.inputs[0]))
    axes = node.numbers(1, "axes")
    if not axes:
        return [] if node.attributes.get("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _extreme(operator: str) -> Converter:
    def convert(node: Node) -> Value:
        x, r = node.inputs[0], node.emitter
        axes, keepdims = reduced_axes(node), bool(node.attributes.get("keepdims", 1))
        if not axes:
            return x
        dtype = dtype_of(x)
        if dtype == "bool":
            found = getattr(r, operator)(r.cast(x, "uint8"), axes, keepdims)
            return r.not_equal(found, np.uint8(0))
        if not is_float(x):
            return getattr(r, operator)(x, axes, keepdims)
        x = r.cast(x, "float32") if dtype in ("float16", "bfloat16") else x  # networks of these compute in float32
        found = getattr(r, operator)(x, axes, keepdims)
        largest = np.finfo(dtype_of(x)).max
        # Then all values are the limit or the infinity beyond: the first one says which.
        first = r.strided_slice(x, axes, [0] * len(axes), [1] * len(axes))
        is_limit = r.equal(found, -largest if operator == "max" else largest)
        return r.cast(r.where(is_limit, r.reshape_to(first, dims(found)), found), dtype)

    return convert


REDUCTIONS = {"ReduceMax": _extreme("max"), "ReduceMin": _extreme("min")}
