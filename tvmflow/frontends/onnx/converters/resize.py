"""Resize and Upsample: every coordinate, nearest and interpolation mode, by the given scales.

Interpolation is separable: along each axis the output is a constant matrix times the input. Images whose scales are
the ratios of their sizes use Relax's operator, which has kernels of its own; so do nearest ones by whole factors. Other
nearest ones take constant places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, dims, dtype_of, is_float

Array = np.ndarray[Any, Any]
_KERNELS_OF_RELAX = {"half_pixel": "half_pixel", "pytorch_half_pixel": "half_pixel", "asymmetric": "asymmetric"}


@dataclass(frozen=True)
class _Axis:
    """One axis that changes: sizes, the scale, and begin and end of the region that is resized."""

    axis: int
    length: int
    out: int
    scale: float
    roi: tuple[float, float]


@dataclass(frozen=True)
class _Way:
    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def _resize(node: Node) -> Value:
    x = node.inputs[0]
    given = node.attributes
    way = _Way(
        node.text("mode", "nearest"),
        node.text("coordinate_transformation_mode", "half_pixel" if node.version >= 11 else "asymmetric"),
        node.text("nearest_mode", "round_prefer_floor" if node.version >= 11 else "floor"),
        given.get("cubic_coeff_a", -0.75),
        bool(given.get("exclude_outside", 0)),
        bool(given.get("antialias", 0)),
        given.get("extrapolation_value", 0.0),
    )
    return _apply(node, x, _axes_of(node, dims(x)), way)


def _upsample(node: Node) -> Value:
    x = node.inputs[0]
    scales = node.attributes.get("scales")
    scales = node.constant(1, "scales") if scales is None else scales
    way = _Way(node.text("mode", "nearest"), "asymmetric", "floor", -0.75, False, False, 0.0)
    return _apply(node, x, _scaled(dims(x), range(len(dims(x))), scales, {}), way)


def _scaled(shape: tuple[int, ...], axes: Any, scales: Any, roi: dict[int, tuple[float, float]]) -> list[_Axis]:
    return [
        _Axis(axis, shape[axis], int(float(scale) * shape[axis]), float(scale), roi.get(axis, (0.0, 1.0)))
        for axis, scale in zip(axes, scales, strict=True)
    ]


def _axes_of(node: Node, shape: tuple[int, ...]) -> list[_Axis]:
    rank = len(shape)
    axes = [axis % rank for axis in node.attributes.get("axes") or range(rank)]
    old = node.version < 11  # its inputs are x and scales
    roi = {}
    if node.text("coordinate_transformation_mode") == "tf_crop_and_resize":
        numbers = node.constant(1, "roi").astype(np.float64)
        roi = {axis: (numbers[at], numbers[at + len(axes)]) for at, axis in enumerate(axes)}
    scales, sizes = node.input(1 if old else 2), node.input(3)
    if scales is not None and 0 not in dims(scales):
        return _scaled(shape, axes, node.constant(1 if old else 2, "scales"), roi)
    if sizes is None:
        raise RefusedNodeError("neither scales nor sizes")
    wanted = [int(size) for size in node.constant(3, "sizes")]
    ratios = [size / shape[axis] for axis, size in zip(axes, wanted, strict=True)]
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        ratios, wanted = [ratio] * len(axes), [int(ratio * shape[axis] + 0.5) for axis in axes]
    return [
        _Axis(axis, shape[axis], size, ratio, roi.get(axis, (0.0, 1.0)))
        for axis, size, ratio in zip(axes, wanted, ratios, strict=True)
    ]


def _apply(node: Node, x: Value, axes: list[_Axis], way: _Way) -> Value:
    axes = [one for one in axes if one.out != one.length or one.roi != (0.0, 1.0) or not _is_one(one.scale)]
    if not axes:
        return x
    if (found := _by_relax(node, x, axes, way)) is not None:
        return found
    outside: Array = np.zeros([1] * len(dims(x)), bool)
    dtype = dtype_of(x)
    if way.mode != "nearest" and not (is_float(x)):
        raise RefusedNodeError(f"interpolation of {dtype}")
    r = node.emitter
    result = x if way.mode == "nearest" or dtype in ("float32", "float64") else r.cast(x, "float32")
    for one in axes:
        places, beyond = _coordinates(one, way)
        shape = [1] * len(dims(x))
        shape[one.axis] = one.out
        outside = outside | beyond.reshape(shape)
        if way.mode == "nearest":
            result = r.take(result, _nearest(places, way.nearest, one.length), one.axis)
        else:
            result = _multiply(node, result, one, _matrix(places, one, way).astype(dtype_of(result)))
    result = r.cast(result, dtype)
    if outside.any():
        value = np.asarray(way.extrapolation).astype(dtype)
        result = r.where(np.broadcast_to(outside, dims(result)).copy(), value, result)
    return result


def _is_one(scale: float) -> bool:
    return math.isclose(scale, 1.0)


def _by_relax(node: Node, x: Value, axes: list[_Axis], way: _Way) -> Value | None:
    """Return Relax's resize2d of an image where it computes the same; None elsewhere."""
    if len(dims(x)) != 4 or any(one.axis < 2 for one in axes) or way.antialias or dtype_of(x) != "float32":
        return None
    size = [next((one.out for one in axes if one.axis == axis), dims(x)[axis]) for axis in (2, 3)]
    options = {"layout": "NCHW", "cubic_alpha": way.cubic, "cubic_exclude": 0, "extrapolation_value": 0.0}
    if way.mode == "nearest":
        factors = [one.out // one.length for one in axes]
        whole = all(
            one.out == factor * one.length
            and (_nearest(_coordinates(one, way)[0], way.nearest, one.length) == np.arange(one.out) // factor).all()
            for one, factor in zip(axes, factors, strict=True)
        )
        if not whole:
            return None
        options |= {
            "method": "nearest_neighbor",
            "coordinate_transformation_mode": "asymmetric",
            "rounding_method": "floor",
        }
    elif way.mode == "linear" and way.coordinates in (*_KERNELS_OF_RELAX, "align_corners"):
        if any(not math.isclose(one.scale, one.out / one.length, rel_tol=1e-6) or one.out == 1 for one in axes):
            return None
        options |= {
            "method": "linear",
            "coordinate_transformation_mode": _KERNELS_OF_RELAX.get(way.coordinates, way.coordinates),
            "rounding_method": "",
        }
    else:
        return None

    return node.emitter.image__resize2d(x, relax.ShapeExpr(size), **options)


def _coordinates(one: _Axis, way: _Way) -> tuple[Array, Array]:
    """Return the place in the input of every output, and whether it is outside and gets the extrapolation value."""
    y, length, width = np.arange(one.out, dtype=np.float64), one.length, one.scale * one.length
    none = np.zeros(one.out, bool)
    half = (y + 0.5) / one.scale - 0.5
    if way.coordinates == "half_pixel":
        return half, none
    if way.coordinates == "pytorch_half_pixel":
        return (np.full(one.out, -0.5) if width == 1 else half), none
    if way.coordinates == "half_pixel_symmetric":
        return half + length / 2 * (1 - one.out / width), none
    if way.coordinates == "asymmetric":
        return y / one.scale, none
    if way.coordinates == "align_corners":
        return (np.zeros(one.out) if width == 1 else y * (length - 1) / (width - 1)), none
    if way.coordinates == "tf_half_pixel_for_nn":
        return (y + 0.5) / one.scale, none
    if way.coordinates == "tf_crop_and_resize":
        begin, end = one.roi
        span = (end - begin) * (length - 1)
        moved = np.full(one.out, span / 2) if width == 1 else y * span / (width - 1)
        places = moved + begin * (length - 1)
        return places, np.asarray((places < 0) | (places > length - 1))
    raise RefusedNodeError(f"coordinate_transformation_mode {way.coordinates}")


def _nearest(places: Array, mode: str, length: int) -> Array:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(places - 0.5),
        "round_prefer_ceil": lambda: np.floor(places + 0.5),
        "floor": lambda: np.floor(places),
        "ceil": lambda: np.ceil(places),
    }.get(mode)
    if rounded is None:
        raise RefusedNodeError(f"nearest_mode {mode}")
    return np.clip(rounded().astype(np.int64), 0, length - 1)


def _matrix(places: Array, one: _Axis, way: _Way) -> Array:
    """Return the weights (out, length) of an axis."""
    squeezed = min(one.scale, 1.0) if way.antialias else 1.0
    reach = {"linear": 1.0, "cubic": 2.0}.get(way.mode)
    if reach is None:
        raise RefusedNodeError(f"mode {way.mode}")
    begin = np.floor(places).astype(np.int64) + math.floor(-reach / squeezed) + 1
    taps = begin[:, None] + np.arange(2 - 2 * (math.floor(-reach / squeezed) + 1))
    distance = np.abs(taps - places[:, None]) * squeezed
    if way.mode == "linear":
        weights = np.clip(1 - distance, 0, 1)
    else:
        a = way.cubic
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    if way.exclude_outside:
        weights = np.where((taps < 0) | (taps >= one.length), 0.0, weights)
    total = weights.sum(1, keepdims=True)
    weights = weights / np.where(total == 0, 1.0, total)
    matrix = np.zeros((len(places), one.length))
    np.add.at(matrix, (np.arange(len(places))[:, None], np.clip(taps, 0, one.length - 1)), weights)
    return matrix


def _multiply(node: Node, x: Value, one: _Axis, matrix: Array) -> Value:
    """Return the product of a matrix (out, length) and an axis."""
    shape, r = list(dims(x)), node.emitter
    last = len(shape) - 1
    order = [axis for axis in range(last + 1) if axis != one.axis] + [one.axis]
    moved = r.transpose(x, order)
    rows = math.prod(shape) // one.length
    product = r.matmul(r.reshape_to(moved, [rows, one.length]), np.ascontiguousarray(matrix.T))
    back = r.reshape_to(product, [shape[axis] for axis in order[:-1]] + [one.out])
    return r.transpose(back, [int(place) for place in np.argsort(order)])


RESIZE = {"Resize": _resize, "Upsample": _upsample}
