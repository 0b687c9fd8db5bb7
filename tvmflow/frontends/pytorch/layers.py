"""Convert products, convolutions, norms and distances of PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, shape_of
from tvmflow.frontends.pytorch.reductions import norm_of

_OF_NORMS = "float32"  # TVM has group and instance norms in float32 and float16 only, which loses more
_MOST_TERMS = 1 << 24  # of the distances of all pairs


def _matmul(call: Call, a: Any, b: Any) -> Any:
    """Return a product in the type of its factors; one of integers as a sum of products."""
    r, dtype = call.r, type_name(a)
    if "float" in dtype:
        return r.matmul(a, b, out_dtype=dtype)
    terms = r.multiply(r.expand_dims(a, -1), r.expand_dims(b, -3))
    return r.sum(terms, [-2], False)


def _product(first: str, second: str) -> Convert:
    return lambda call: _matmul(call, call.value(first, call.dtype), call.value(second, call.dtype))


def _added_product(first: str, second: str) -> Convert:
    """Return a converter of beta * self + alpha * product, where a factor of zero ignores its part."""

    def convert(call: Call) -> Any:
        r, dtype = call.r, call.dtype
        alpha, beta = call["alpha"], call["beta"]
        if (
            "float" in dtype
            and dtype != "float64"
            and alpha == 1
            and beta == 1
            and len(shape_of(call.value(first))) == 2
        ):
            return call.by_tvm()
        found = _matmul(call, call.value(first, dtype), call.value(second, dtype))
        if alpha != 1:
            found = r.multiply(found, constant(alpha, dtype))
        if beta == 0:
            return found
        bias = call.value("self", dtype)
        return r.add(bias if beta == 1 else r.multiply(bias, constant(beta, dtype)), found)

    return convert


def _factor_and_offset(call: Call, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """Return weight and bias of a norm, ones and zeros where they are left out."""
    weight, bias = (
        constant(np.full(shape, otherwise), dtype) if call[name] is None else call.value(name, dtype)
        for name, otherwise in (("weight", 1.0), ("bias", 0.0))
    )
    return weight, bias


def _layer_norm(call: Call) -> Any:
    """Convert native_layer_norm, with mean and reciprocal deviation if they are read."""
    r, x, rank = call.r, call.value("input"), len(call["normalized_shape"])
    dtype, axes = type_name(x), list(range(-rank, 0))
    shape = tuple(call["normalized_shape"])
    factor, offset = _factor_and_offset(call, shape, dtype)
    found = r.nn__layer_norm(x, factor, offset, axes=axes, epsilon=float(call["eps"]))
    return found, *_moments(call, x, axes, float(call["eps"]))


def _moments(call: Call, x: Any, axes: list[int], eps: float) -> tuple[Any, Any]:
    """Return mean and reciprocal deviation, which only some programs read."""
    if not (call.uses(1) or call.uses(2)):
        nothing = constant(0.0, type_name(x))
        return nothing, nothing
    r = call.r
    deviation = r.rsqrt(r.add(r.variance(x, axes, True), constant(eps, type_name(x))))
    mean, shapes = r.mean(x, axes, True), [tuple(one.shape) for one in call.node.meta["val"][1:]]
    return r.shaped(mean, shapes[0]), r.shaped(deviation, shapes[1])


def _group_norm(call: Call) -> Any:
    """Convert native_group_norm, whose scale and bias are optional."""
    r, x = call.r, call.value("input", _OF_NORMS)
    shape, groups = shape_of(x), call["group"]
    factor, offset = _factor_and_offset(call, shape[1:2], _OF_NORMS)
    found = r.nn__group_norm(
        x,
        factor,
        offset,
        num_groups=groups,
        channel_axis=1,
        axes=list(range(2, len(shape))),
        epsilon=float(call["eps"]),
    )
    rows = r.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups)) if call.uses(1) or call.uses(2) else x
    moments = _moments(call, rows, [-1], float(call["eps"]))
    return r.cast(found, call.dtype), *(r.cast(one, call.dtype) for one in moments)


def _batch_norm_of_batch(call: Call) -> Any:
    """Convert the batch norm that instance norms are made of: by the mean and variance of its own input."""
    if call.uses(1) or call.uses(2):
        raise NotImplementedError("the statistics of a batch")
    r, x = call.r, call.value("input", _OF_NORMS)
    shape = shape_of(x)
    factor, offset = _factor_and_offset(call, shape[1:2], _OF_NORMS)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    found = r.nn__instance_norm(x, factor, offset, channel_axis=1, axes=axes, epsilon=float(call["eps"]))
    return r.cast(found, call.dtype), constant(0.0, _OF_NORMS), constant(0.0, _OF_NORMS)


def _softmax(name: str) -> Convert:
    def convert(call: Call) -> Any:
        row = call.r.as_row(call.value("self", call.dtype))
        return call.r.shaped(getattr(call.r, name)(row, call["dim"]), call.out_shape)

    return convert


def _distances(call: Call, differences: Any, order: float) -> Any:
    """Return the norm of the last axis."""
    return norm_of(call, differences, order, lambda name, value: getattr(call.r, name)(value, [-1], False))


def _cdist(call: Call) -> Any:
    """Convert cdist: the distances of all pairs of rows."""
    r, a, b = call.r, call.value("x1"), call.value("x2")
    if math.prod(call.out_shape) * shape_of(a)[-1] > _MOST_TERMS:
        raise NotImplementedError(f"distances of {shape_of(a)[-2]} by {shape_of(b)[-2]} rows")
    return _distances(call, r.subtract(r.expand_dims(a, -2), r.expand_dims(b, -3)), float(call["p"]))


def _pdist(call: Call) -> Any:
    """Convert pdist: the distances of each pair of rows once."""
    r, x = call.r, call.value("self")
    first, second = np.triu_indices(shape_of(x)[0], 1)
    a, b = (r.take(x, constant(places, "int64"), axis=0) for places in (first, second))
    return _distances(call, r.subtract(a, b), float(call["p"]))


def _prelu(call: Call) -> Any:
    r, x, weight = call.r, call.value("self"), call.value("weight")
    shape = shape_of(x)
    extents = [1] * len(shape)
    if len(shape) > 1 and math.prod(shape_of(weight)) > 1:
        extents[1] = math.prod(shape_of(weight))
    factor = weight if shape_of(weight) == shape else r.reshape(weight, extents)
    return r.where(r.greater(x, constant(0, type_name(x))), x, r.multiply(x, factor))


LAYERS: dict[str, Convert] = {
    "mm.default": _product("self", "mat2"),
    "bmm.default": _product("self", "mat2"),
    "addmm.default": _added_product("mat1", "mat2"),
    "baddbmm.default": _added_product("batch1", "batch2"),
    "native_layer_norm.default": _layer_norm,
    "native_group_norm.default": _group_norm,
    "_native_batch_norm_legit.no_stats": _batch_norm_of_batch,
    "_softmax.default": _softmax("nn__softmax"),
    "_log_softmax.default": _softmax("nn__log_softmax"),
    "_cdist_forward.default": _cdist,
    "_pdist_forward.default": _pdist,
    "_prelu_kernel.default": _prelu,
}
