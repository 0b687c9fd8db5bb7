"""Convert operators of PyTorch on images and signals: resizing, pooling, sampling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, is_float, lowest, node_shape, shape_of


def _along_axes(call: Call, value: Any, first: int, matrices: Sequence[Any]) -> Any:
    """Return a product of each axis from `first` on with a constant matrix (extent, wanted); None leaves an axis.

    It is float64 for that, else float32: 16-bit floats and integers do not hold the matrices.
    """
    kind = type_name(value)
    value = call.r.cast(value, kind if kind == "float64" else "float32")
    for axis, matrix in enumerate(matrices, first):
        if matrix is not None:
            moved, back = call.r.with_axis_last(value, axis)
            value = call.r.moved_back(call.r.rows_times(moved, matrix), back)
    return value


def _probe(call: Call, axis: int, unit: Any) -> Any:
    """Return what the operator itself makes of rows along one spatial axis.

    unit: (rows, extent). The rows stand along another axis, which the operator leaves: PyTorch's antialiasing is wrong
    for images of one column.
    """
    node, spatial = call.node, len(call.out_shape) - 2
    wanted, other = call.out_shape[axis + 2], (axis + 1) % spatial
    given: dict[str, Any] = dict(call.given)
    beside = [len(unit) if at == other else 1 for at in range(spatial) if at != axis]
    lead = (1, 1) if beside else (len(unit), 1)
    image = torch.as_tensor(unit).reshape(*lead, *beside, unit.shape[1]).movedim(-1, axis + 2)
    given[node.target._schema.arguments[0].name] = image.contiguous()
    scales = given.get("scale_factors")
    if given.get("output_size") is not None:
        given["output_size"] = [wanted if at == axis else extent for at, extent in enumerate(image.shape[2:])]
    elif scales is not None:
        given["scale_factors"] = [scales[at] if at == axis else 1.0 for at in range(spatial)]
    for place, name in enumerate(("scales_d", "scales_h", "scales_w")[3 - spatial :]):
        if given.get(name) is not None and place != axis:
            given[name] = 1.0
    found = node.target(**given) if "self" not in given else node.target(given.pop("self"), **given)
    return found.movedim(axis + 2, -1).reshape(-1, wanted).numpy()


def _resize(call: Call) -> Any:
    """Convert a linear or cubic resize, along each axis by a product with the matrix that PyTorch applies."""
    shape, wanted = call.shape(call.node.target._schema.arguments[0].name), call.out_shape
    matrices = [
        None if _leaves(call, axis) else _probe(call, axis, np.eye(shape[axis + 2], dtype=np.float32))
        for axis in range(len(shape) - 2)
    ]
    found = call.of(call.node.args[0])
    if is_float(call.dtype):
        found = call.r.cast(_along_axes(call, found, 2, matrices), call.dtype)
    else:
        for axis in reversed(range(len(matrices))):
            found = _resize_pixels(call, found, axis + 2, matrices[axis])
    assert shape_of(found) == wanted
    return found


_PIXEL_BITS = 15  # of a weight of pixels, with its sign 16


def _resize_pixels(call: Call, value: Any, axis: int, matrix: Any) -> Any:
    """Return bytes resized along one axis as PyTorch does it: by whole weights, rounded after each axis, rows first."""
    if matrix is None:
        return value
    r, largest = call.r, float(matrix.max())
    bits = next(bits for bits in range(23) if bits == 22 or int(0.5 + largest * 2 ** (bits + 1)) >= 1 << _PIXEL_BITS)
    weights = np.trunc(matrix * 2.0**bits + np.copysign(0.5, matrix))
    sums = _along_axes(call, value, axis, [weights])  # exact in float32
    rounded = r.floor(r.multiply(r.add(sums, constant(2.0 ** (bits - 1), "float32")), constant(2.0**-bits, "float32")))
    return r.cast(r.clip(rounded, 0.0, 255.0), call.dtype)


def _leaves(call: Call, axis: int) -> bool:
    """Return whether a resize leaves an axis as it is."""
    shape = node_shape(call.node.args[0])
    scales = _scales_of(call)
    return shape[axis + 2] == call.out_shape[axis + 2] and (scales is None or scales[axis] == 1.0)


def _scales_of(call: Call) -> list[float] | None:
    """Return the scale of each axis, None where the sizes alone are given. TorchScript gives them one by one."""
    if (scales := call.given.get("scale_factors")) is not None:
        return list(scales)
    names = ("scales",) if len(call.out_shape) == 3 else ("scales_d", "scales_h", "scales_w")[5 - len(call.out_shape) :]
    single = [call.given.get(name) for name in names]
    if all(scale is None for scale in single):
        return None
    return [math.nan if scale is None else scale for scale in single]


def _resize_by_sizes(call: Call) -> Any:
    """Convert a linear or cubic resize: by TVM where only the sizes matter, by matrices for another scale."""
    if _is_by_sizes(call) and type_name(call.of(call.node.args[0])) == "float32":
        return call.by_tvm()
    return _resize(call)


def _is_by_sizes(call: Call) -> bool:
    """Return whether the scales of a resize, if it has some, are the ratios of its sizes."""
    shape, wanted, scales = node_shape(call.node.args[0])[2:], call.out_shape[2:], _scales_of(call)
    return scales is None or all(
        extent * scale == size for extent, scale, size in zip(shape, scales, wanted, strict=True)
    )


def _nearest(call: Call) -> Any:
    """Convert a nearest resize; TVM selects the pixel nearest to the center, PyTorch the one to the upper left."""
    r, value = call.r, call.of(call.node.args[0])
    shape = shape_of(value)
    if call.node.target.__name__.startswith("upsample_nearest2d.") and _is_by_sizes(call):
        return r.image__resize2d(
            value,
            tuple(call.out_shape[2:]),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    for axis in range(len(shape) - 2):
        if not _leaves(call, axis):
            places = _probe(call, axis, np.arange(shape[axis + 2], dtype=np.float32)[None])
            value = r.take(value, constant(places[0], "int64"), axis=axis + 2)
    return value


def windows_of(call: Call, value: Any, sizes: Sequence[Any], padding: float) -> tuple[Any, Any]:
    """Return the windows of the spatial axes as last axes, one for all, and the places read, -1 outside.

    value: (..., *spatial); sizes: for each axis (kernel, stride, padding, dilation, windows).
    """
    r, shape = call.r, shape_of(value)
    spatial = shape[-len(sizes) :]
    reads = []
    for extent, (kernel, stride, before, dilation, count) in zip(spatial, sizes, strict=True):
        places = np.arange(count)[:, None] * stride - before + np.arange(kernel) * dilation
        reads.append(np.where((places >= 0) & (places < extent), places, -1))
    flat = np.zeros((1,) * (2 * len(sizes)), np.int64)
    outside = np.zeros_like(flat, bool)
    for axis, (extent, places) in enumerate(zip(spatial, reads, strict=True)):
        form = [1] * (2 * len(sizes))
        form[axis], form[len(sizes) + axis] = places.shape
        flat = flat * extent + np.maximum(places, 0).reshape(form)
        outside = outside | (places < 0).reshape(form)
    windows, inside = flat.shape[: len(sizes)], math.prod(flat.shape[len(sizes) :])
    flat = np.where(outside, -1, flat).reshape(*windows, inside)
    rows = r.reshape(value, (*shape[: -len(sizes)], math.prod(spatial)))
    found = r.take(rows, constant(np.maximum(flat, 0), "int64"), axis=len(shape) - len(sizes))
    if (flat < 0).any():
        found = r.where(constant(flat >= 0, "bool"), found, constant(padding, type_name(value)))
    return found, flat


def _list(value: Any, count: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * count if len(given) == 1 else given


def _pool_sizes(call: Call, spatial: int, out: Sequence[int]) -> list[Any]:
    kernel = _list(call["kernel_size"], spatial)
    stride = _list(call["stride"] or kernel, spatial)
    padding, dilation = _list(call["padding"], spatial), _list(call.given.get("dilation", 1), spatial)
    return list(zip(kernel, stride, padding, dilation, out[-spatial:], strict=True))


def _pooled(call: Call, kind: str, sizes: list[Any], **options: Any) -> Any:
    """Emit Relax's pool over the windows of `sizes`: those that ceil_mode adds read padding behind the input."""
    x, spatial = call.value("self"), len(sizes)
    extents = call.shape("self")[-spatial:]
    behind = [
        max(0, (count - 1) * stride + (kernel - 1) * dilation + 1 - extent - before) if call["ceil_mode"] else before
        for extent, (kernel, stride, before, dilation, count) in zip(extents, sizes, strict=True)
    ]
    kernels, strides, before, dilations, _ = map(list, zip(*sizes, strict=True))
    operator = getattr(call.r, f"nn__{kind}_pool{spatial}d")
    return operator(x, kernels, strides, [*before, *behind], dilations, False, **options)


def _is_pooled_by_relax(call: Call, spatial: int) -> bool:
    is_batch = len(call.shape("self")) == spatial + 2
    return spatial <= 2 and is_batch and type_name(call.value("self")) == "float32"


def _max_pool(spatial: int) -> Convert:
    """Return a converter of max pools and their places."""

    def convert(call: Call) -> Any:
        x, kind = call.value("self"), type_name(call.value("self"))
        out = tuple(call.node.meta["val"][0].shape)
        sizes = _pool_sizes(call, spatial, out)
        if _is_pooled_by_relax(call, spatial) and not call.uses(1):
            best = _pooled(call, "max", sizes)
            return best, call.r.zeros_like(best)
        windows, places = windows_of(call, x, sizes, lowest(kind))
        best = call.r.max(windows, [-1], False)
        if not call.uses(1):
            return best, call.r.zeros_like(best)
        chosen = call.r.argmax(windows, len(shape_of(windows)) - 1, True)
        table = call.r.expanded(constant(places, "int64"), shape_of(windows))
        found = call.r.gather_elements(table, chosen, len(shape_of(windows)) - 1)
        return best, call.r.shaped(found, out)

    return convert


def _average_pool(spatial: int) -> Convert:
    """Return a converter of average pools, which counts padding as PyTorch does."""

    def convert(call: Call) -> Any:
        x, dtype = call.value("self"), type_name(call.value("self"))
        shape = call.shape("self")[-spatial:]
        sizes = _pool_sizes(call, spatial, call.out_shape)
        is_plain = not call["ceil_mode"] and not call.given.get("divisor_override")
        is_pooled = _is_pooled_by_relax(call, spatial)
        if is_pooled and is_plain:
            return _pooled(call, "avg", sizes, count_include_pad=bool(call["count_include_pad"]))
        counts = _divisors(call, shape, sizes)
        if is_pooled:
            mean, kernel = _pooled(call, "avg", sizes, count_include_pad=True), math.prod(size[0] for size in sizes)
            return mean if (counts == kernel).all() else call.r.multiply(mean, constant(kernel / counts, dtype))
        windows, _ = windows_of(call, x, sizes, 0)
        total = call.r.sum(windows, [-1], False)
        if "float" in dtype:
            return call.r.divide(total, constant(counts, dtype))
        size = call.r.floor_divide(call.r.abs(total), constant(counts, dtype))
        return call.r.where(call.r.less(total, constant(0, dtype)), call.r.negative(size), size)

    return convert


def _divisors(call: Call, shape: Sequence[int], sizes: Sequence[Any]) -> Any:
    """Return by what each sum of an average pool is divided, for all windows or for each."""
    if divisor := call.given.get("divisor_override"):
        return np.full((1,) * len(sizes), divisor)
    counts: Any = np.ones(())
    for axis, (extent, (kernel, stride, before, _, count)) in enumerate(zip(shape, sizes, strict=True)):
        begin = np.arange(count) * stride - before
        end = np.minimum(begin + kernel, extent + before)
        inside = end - begin if call["count_include_pad"] else np.minimum(end, extent) - np.maximum(begin, 0)
        counts = counts[..., None] * inside.reshape([1] * axis + [-1])
    return counts


def _bounds(extent: int, wanted: int) -> list[tuple[int, int]]:
    """Return the first place and the end of each part of an adaptive pool."""
    return [(at * extent // wanted, -(-(at + 1) * extent // wanted)) for at in range(wanted)]


def _adaptive_max_pool(call: Call) -> Any:
    """Convert adaptive_max_pool: the maximum over the parts of each axis, one after the other."""
    x, wanted = call.value("self"), call["output_size"]
    shape = shape_of(x)
    spatial = len(wanted)
    if call.uses(1):
        return _adaptive_max_places(call, x, wanted)
    for axis, count in enumerate(wanted, len(shape) - spatial):
        parts = [
            call.r.max(call.r.strided_slice(x, axes=[axis], begin=[begin], end=[end]), [axis], True)
            for begin, end in _bounds(shape[axis], count)
        ]
        x = call.r.concat(parts, axis=axis) if count > 1 else parts[0]
    return x, call.r.zeros_like(x)


def _adaptive_max_places(call: Call, x: Any, wanted: Sequence[int]) -> Any:
    r, shape = call.r, shape_of(x)
    spatial = shape[-len(wanted) :]
    lead = shape[: -len(wanted)]
    rows = r.reshape(x, (*lead, math.prod(spatial)))
    numbers = np.arange(math.prod(spatial)).reshape(spatial)
    best, chosen = [], []
    bounds = [_bounds(extent, count) for extent, count in zip(spatial, wanted, strict=True)]
    for part in itertools.product(*bounds):
        places = numbers[tuple(slice(begin, end) for begin, end in part)].reshape(-1)
        window = r.take(rows, constant(places, "int64"), axis=len(lead))
        best.append(r.max(window, [len(lead)], True))
        at = r.argmax(window, len(lead), True)
        chosen.append(r.take(constant(places, "int64"), at, axis=0))
    out = (*lead, *wanted)
    values = r.concat(best, axis=len(lead)) if len(best) > 1 else best[0]
    places = r.concat(chosen, axis=len(lead)) if len(chosen) > 1 else chosen[0]
    return r.shaped(values, out), r.shaped(places, out)


def _adaptive_average_pool(call: Call) -> Any:
    """Convert adaptive_avg_pool: by TVM if all parts are equal, else by a product along each axis."""
    x, wanted = call.value("self"), list(call["output_size"])
    shape = shape_of(x)
    extents = shape[-len(wanted) :]
    equal = all(extent % count == 0 for extent, count in zip(extents, wanted, strict=True))
    if equal and len(wanted) < 3 and type_name(x) == "float32":
        return call.by_tvm()
    matrices = []
    for extent, count in zip(extents, wanted, strict=True):
        matrix = np.zeros((extent, count))
        for at, (begin, end) in enumerate(_bounds(extent, count)):
            matrix[begin:end, at] = 1 / (end - begin)
        matrices.append(None if extent == count else matrix)
    return call.r.cast(_along_axes(call, x, len(shape) - len(wanted), matrices), call.dtype)


def _grid_sample(call: Call) -> Any:
    """Convert grid_sampler_2d; PyTorch's grid has its coordinates last, TVM's first."""
    r = call.r
    grid = r.permute_dims(call.value("grid"), [0, 3, 1, 2])
    return r.image__grid_sample(
        call.value("input"),
        grid,
        method=("bilinear", "nearest", "bicubic")[call["interpolation_mode"]],
        layout="NCHW",
        padding_mode=("zeros", "border", "reflection")[call["padding_mode"]],
        align_corners=bool(call["align_corners"]),
    )


def _affine_grid(call: Call) -> Any:
    """Convert affine_grid_generator: a matmul with the constant coordinates of pixels, x first."""
    r, theta = call.r, call.value("theta")
    batch, _, *spatial = call["size"]

    def along(extent: int) -> Any:
        edge = 1.0 if call["align_corners"] else 1.0 - 1.0 / extent
        return np.linspace(-edge, edge, extent) if extent > 1 else np.zeros(1)

    axes = np.meshgrid(*(along(extent) for extent in spatial), indexing="ij")
    pixels = np.stack([*(axis.ravel() for axis in axes[::-1]), np.ones(math.prod(spatial))])
    placed = r.matmul(theta, constant(pixels, type_name(theta)))
    return r.reshape(r.permute_dims(placed, [0, 2, 1]), (batch, *spatial, len(spatial)))


def _col2im(call: Call) -> Any:
    """Convert col2im: a transposed convolution of each channel with one filter for each place of a window."""
    r, x = call.r, call.value("self")
    kernel, dtype = list(call["kernel_size"]), type_name(x)
    shape = shape_of(x)
    lead = shape[0] if len(shape) == 3 else 1
    height, width = call["output_size"]
    (up, left), (stride_y, stride_x), (dilation_y, dilation_x) = call["padding"], call["stride"], call["dilation"]
    rows = (height + 2 * up - dilation_y * (kernel[0] - 1) - 1) // stride_y + 1
    columns = (width + 2 * left - dilation_x * (kernel[1] - 1) - 1) // stride_x + 1
    count = kernel[0] * kernel[1]
    channels = shape[-2] // count
    places = np.full((height + 2 * up, width + 2 * left, count), -1)
    numbers = np.arange(rows * columns).reshape(rows, columns)
    for at, (y, x0) in enumerate(itertools.product(range(kernel[0]), range(kernel[1]))):
        begin_y, begin_x = y * dilation_y, x0 * dilation_x
        places[
            begin_y : begin_y + rows * stride_y : stride_y, begin_x : begin_x + columns * stride_x : stride_x, at
        ] = at * rows * columns + numbers
    places = places[up : up + height, left : left + width].reshape(-1, count)
    flat = r.reshape(x, (lead, channels, count * rows * columns))
    terms = r.take(flat, constant(np.maximum(places, 0), "int64"), axis=2)
    terms = r.where(constant(places >= 0, "bool"), terms, constant(0, dtype))
    return r.shaped(r.sum(terms, [-1], False), call.out_shape)


IMAGES: dict[str, Convert] = {
    "upsample_nearest1d.vec": _nearest,
    "upsample_nearest2d.vec": _nearest,
    "upsample_nearest3d.vec": _nearest,
    "_upsample_nearest_exact1d.vec": _nearest,
    "_upsample_nearest_exact2d.vec": _nearest,
    "_upsample_nearest_exact3d.vec": _nearest,
    "upsample_linear1d.vec": _resize,
    "upsample_bilinear2d.vec": _resize_by_sizes,
    "upsample_trilinear3d.vec": _resize,
    "upsample_bicubic2d.vec": _resize,
    **{f"{kind}{n}d.default": _nearest for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)},
    **{f"upsample_{kind}.default": _resize for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")},
    "_upsample_bilinear2d_aa.default": _resize,
    "_upsample_bicubic2d_aa.default": _resize,
    "max_pool1d_with_indices.default": _max_pool(1),
    "max_pool2d_with_indices.default": _max_pool(2),
    "max_pool3d_with_indices.default": _max_pool(3),
    "avg_pool1d.default": _average_pool(1),
    "avg_pool2d.default": _average_pool(2),
    "avg_pool3d.default": _average_pool(3),
    "adaptive_max_pool2d.default": _adaptive_max_pool,
    "adaptive_max_pool3d.default": _adaptive_max_pool,
    "adaptive_avg_pool1d.default": _adaptive_average_pool,
    "_adaptive_avg_pool2d.default": _adaptive_average_pool,
    "_adaptive_avg_pool3d.default": _adaptive_average_pool,
    "grid_sampler_2d.default": _grid_sample,
    "affine_grid_generator.default": _affine_grid,
    "col2im.default": _col2im,
}
