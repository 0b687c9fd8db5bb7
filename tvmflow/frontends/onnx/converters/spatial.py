"""Convolutions, pools and regions: padding modes are resolved to numbers of rows and columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import te, tirx

from tvmflow.frontends.onnx import tvm_converters
from tvmflow.frontends.onnx.converters.elementwise import like
from tvmflow.frontends.onnx.converters.regions import largest_of_regions
from tvmflow.frontends.onnx.nodes import Converter, Node, RefusedNodeError, Value, dims, dtype_of, expression, is_float

_LAYOUTS = {1: ("NCW", "OIW", "IOW"), 2: ("NCHW", "OIHW", "IOHW"), 3: ("NCDHW", "OIDHW", "IODHW")}


def _window(node: Node, kernel: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    """Return strides, dilations, and pads (all begins, then all ends) of a convolution or pool."""
    rank = len(kernel)
    strides = list(node.attributes.get("strides") or [1] * rank)
    dilations = list(node.attributes.get("dilations") or [1] * rank)
    mode = node.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return strides, dilations, list(node.attributes.get("pads") or [0] * (2 * rank))
    if mode == "VALID":
        return strides, dilations, [0] * (2 * rank)
    sizes = dims(node.inputs[0])[2:]
    total = [
        max((-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
        for size, stride, taps, dilation in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    small, large = [pad // 2 for pad in total], [pad - pad // 2 for pad in total]
    return strides, dilations, small + large if mode == "SAME_UPPER" else large + small


def convolve(node: Node, x: Value, weight: Value, bias: Value | None) -> Value:
    """Return the convolution that a node's attributes describe."""
    kernel = tuple(node.attributes.get("kernel_shape") or dims(weight)[2:])
    rank = len(kernel)
    if rank not in _LAYOUTS:
        raise RefusedNodeError(f"a convolution over {rank} axes (1 to 3)")
    strides, dilations, pads = _window(node, kernel)
    layout, weights, _ = _LAYOUTS[rank]
    operator = getattr(node.emitter, f"nn__conv{rank}d")
    group = node.attributes.get("group", 1)
    found = operator(x, weight, strides, pads, dilations, group, data_layout=layout, kernel_layout=weights)
    return found if bias is None else _add_bias(node, found, bias, rank)


def _add_bias(node: Node, x: Value, bias: Value, rank: int) -> Value:
    return node.emitter.add(x, node.emitter.reshape_to(bias, [1, dims(bias)[0]] + [1] * rank))


def _conv_transpose(node: Node) -> Value:
    x, weight, bias = node.inputs[0], node.inputs[1], node.input(2)
    given, sizes = node.attributes, dims(x)[2:]
    kernel = tuple(given.get("kernel_shape") or dims(weight)[2:])
    rank, r = len(kernel), node.emitter
    if rank not in _LAYOUTS:
        raise RefusedNodeError(f"a convolution over {rank} axes (1 to 3)")
    strides = list(given.get("strides") or [1] * rank)
    dilations = list(given.get("dilations") or [1] * rank)
    extra = list(given.get("output_padding") or [0] * rank)
    pads = list(given.get("pads") or [0] * (2 * rank))
    mode, wanted = node.text("auto_pad", "NOTSET"), given.get("output_shape")
    full = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)]
    if wanted is not None or mode.startswith("SAME"):
        wanted = list(wanted or [n * s for n, s in zip(sizes, strides, strict=True)])[-rank:]
        total = [max(f + e - w, 0) for f, e, w in zip(full, extra, wanted, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = small + large if mode == "SAME_UPPER" else large + small
    elif mode == "VALID":
        pads = [0] * (2 * rank)
    out = wanted or [f + e - pads[d] - pads[d + rank] for d, (f, e) in enumerate(zip(full, extra, strict=True))]
    # Negative pads, and output padding of a stride and more, are rows of zeros around.
    kept = [max(pad, 0) for pad in pads]
    inside = [min(e, s - 1) for e, s in zip(extra, strides, strict=True)]
    before = [max(-pad, 0) for pad in pads[:rank]]
    computed = [f + i - kept[d] - kept[d + rank] for d, (f, i) in enumerate(zip(full, inside, strict=True))]
    behind = [o - c - b for o, c, b in zip(out, computed, before, strict=True)]
    layout, _, weights = _LAYOUTS[rank]
    found = getattr(r, f"nn__conv{rank}d_transpose")(
        x,
        weight,
        strides,
        kept,
        inside,
        dilations,
        given.get("group", 1),
        data_layout=layout,
        kernel_layout=weights,
    )
    if any(behind) and min(behind) < 0:
        raise RefusedNodeError(f"output_shape {out}, smaller than what it computes ({computed})")
    if any(before) or any(behind):
        widths = [0, 0, 0, 0, *(w for pair in zip(before, behind, strict=True) for w in pair)]
        found = r.nn__pad(found, widths, "constant", 0.0)
    return found if bias is None else _add_bias(node, found, bias, rank)


def _pool(operator: str) -> Converter:
    def convert(node: Node) -> Any:
        kernel = tuple(node.attributes["kernel_shape"])
        strides, dilations, pads = _window(node, kernel)
        resolved = node.attributes | {"strides": strides, "dilations": dilations, "pads": pads}
        resolved["auto_pad"] = b"NOTSET"
        way = tvm_converters.converter_in_tvm(operator, node.version)
        values = way(Node(**{**vars(node), "attributes": resolved, "outputs": 1}))
        if node.outputs == 1:
            return values
        return _max_pool_with_indices(node, node.emitter.builder.emit(values), kernel, strides, dilations, pads)

    return convert


def _max_pool_with_indices(
    node: Node, values: Value, kernel: tuple[int, ...], strides: list[int], dilations: list[int], pads: list[int]
) -> tuple[Value, Value]:
    """Return the maxima and the place of the first of each in the flattened tensor."""
    x, rank = node.inputs[0], len(kernel)
    shape = dims(x)
    weights = [math.prod(shape[3 + axis :]) for axis in range(rank)]
    columns_first = [math.prod(shape[2 : 2 + axis]) for axis in range(rank)]
    by_columns = bool(node.attributes.get("storage_order", 0))
    image = math.prod(shape[2:])

    def compute(data: Any, best: Any) -> Any:
        taps = [te.reduce_axis((0, k), name=f"k{axis}") for axis, k in enumerate(kernel)]

        def first(*at: Any) -> Any:
            places = [at[2 + d] * strides[d] + taps[d] * dilations[d] - pads[d] for d in range(rank)]
            inside = tirx.all(*(tirx.all(p >= 0, p < shape[2 + d]) for d, p in enumerate(places)))
            kept = [tirx.max(tirx.min(p, shape[2 + d] - 1), 0) for d, p in enumerate(places)]
            value = data[(at[0], at[1], *kept)]
            same = tirx.any(value == best[at], tirx.isnan(value)) if is_float(x) else value == best[at]
            is_best = tirx.all(inside, same)
            flat = sum(p * w for p, w in zip(kept, weights, strict=True))
            return te.min(tirx.Select(is_best, tirx.Cast("int64", flat), tirx.const(image, "int64")), axis=taps)

        found = te.compute(dims(values), first, name="first")

        def place(*at: Any) -> Any:
            flat = found[at]
            if by_columns:
                parts = [tirx.floormod(tirx.floordiv(flat, w), shape[2 + d]) for d, w in enumerate(weights)]
                flat = sum(p * w for p, w in zip(parts, columns_first, strict=True))
            return flat + tirx.Cast("int64", at[0] * shape[1] + at[1]) * image

        return te.compute(dims(values), place, name="place")

    return values, node.emitter.te(compute, x, values, name="places_of_maxima")


def _roi_align(node: Node) -> Value:
    x, rois, batch = node.inputs
    r = node.emitter
    mode = node.text("coordinate_transformation_mode", "half_pixel" if node.version >= 16 else "output_half_pixel")
    column = r.expand_dims(r.cast(batch, dtype_of(rois)), 1)
    given = node.attributes
    if node.text("mode", "avg") == "max":
        return largest_of_regions(node, mode == "half_pixel")
    if mode == "half_pixel":  # Relax's `aligned` only leaves out the smallest size of a region
        rois = r.subtract(rois, like(rois, 0.5 / given["spatial_scale"]))
    boxes = r.concat([expression(column), expression(rois)], 1)
    return r.vision__roi_align(
        x,
        boxes,
        pooled_size=(given["output_height"], given["output_width"]),
        spatial_scale=given["spatial_scale"],
        sample_ratio=given["sampling_ratio"],
        aligned=mode == "half_pixel",
        layout="NCHW",
        mode="avg",
    )


def _deform_conv(node: Node) -> Value:
    x, weight, offset = node.inputs[:3]
    bias, mask, r = node.input(3), node.input(4), node.emitter
    n, channels, height, width = dims(x)
    out, _, kh, kw = dims(weight)
    group, parts = node.attributes["group"], node.attributes["offset_group"]
    strides, dilations, pads = _window(node, (kh, kw))
    oh, ow = dims(offset)[2:]
    offsets = r.reshape_to(offset, [n, parts, kh, kw, 2, oh, ow])
    masks = (
        np.ones((n, parts, kh, kw, oh, ow), np.float32)
        if mask is None
        else r.reshape_to(mask, [n, parts, kh, kw, oh, ow])
    )

    def sample(data: Any, moves: Any, factor: Any) -> Any:
        def at(b: Any, c: Any, i: Any, j: Any, p: Any, q: Any) -> Any:
            part = c // (channels // parts)
            row = tirx.Cast("float32", p * strides[0] - pads[0] + i * dilations[0]) + moves[b, part, i, j, 0, p, q]
            column = tirx.Cast("float32", q * strides[1] - pads[1] + j * dilations[1]) + moves[b, part, i, j, 1, p, q]
            top, left = tirx.floor(row), tirx.floor(column)

            def pixel(y: Any, z: Any) -> Any:
                a, e = tirx.Cast("int32", y), tirx.Cast("int32", z)
                inside = tirx.all(a >= 0, a < height, e >= 0, e < width)
                kept = data[b, c, tirx.max(tirx.min(a, height - 1), 0), tirx.max(tirx.min(e, width - 1), 0)]
                return tirx.if_then_else(inside, kept, tirx.const(0, "float32"))

            below, right = row - top, column - left
            value = (pixel(top, left) * (1 - right) + pixel(top, left + 1) * right) * (1 - below) + (
                pixel(top + 1, left) * (1 - right) + pixel(top + 1, left + 1) * right
            ) * below
            return value * factor[b, part, i, j, p, q]

        return te.compute((n, channels, kh, kw, oh, ow), at, name="sample")

    columns = r.te(sample, x, offsets, masks, name="deformed_columns")
    size = channels // group * kh * kw
    found = r.matmul(
        r.reshape_to(weight, [group, out // group, size]), r.reshape_to(columns, [n, group, size, oh * ow])
    )
    found = r.reshape_to(found, [n, out, oh, ow])
    return found if bias is None else _add_bias(node, found, bias, 2)


SPATIAL = {
    "Conv": lambda node: convolve(node, node.inputs[0], node.inputs[1], node.input(2)),
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool("MaxPool"),
    "AveragePool": _pool("AveragePool"),
    "LpPool": _pool("LpPool"),
    "RoiAlign": _roi_align,
    "DeformConv": _deform_conv,
}
