"""Convert convolutions of PyTorch that TVM's importer lacks: all transposed ones, and integer ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvmflow.frontends.emitter import type_name
from tvmflow.frontends.pytorch.calls import Call, Convert, constant, is_float, shape_of
from tvmflow.frontends.pytorch.images import windows_of


def _convolution(call: Call) -> Any:
    spatial = len(call.shape("input")) - 2
    if call.dtype != "float64" and is_float(call.dtype) and (not call["transposed"] or _is_plain(call, spatial)):
        return call.by_tvm()
    x, weight = call.value("input"), call.value("weight")
    padding = list(call["padding"])
    stride = list(call["stride"])
    if call["transposed"]:
        x, weight = _spread(call, x), _turned(call, weight)
        padding, stride = [0] * spatial, [1] * spatial
    multiply = _of_floats if is_float(call.dtype) else _of_integers
    found = multiply(call, x, weight, stride, padding)
    if call["bias"] is None:
        return found
    return call.r.add(found, call.r.reshape(call.value("bias"), (1, -1, *([1] * spatial))))


def _is_plain(call: Call, spatial: int) -> bool:
    """Return whether TVM converts a transposed convolution: of two axes, not dilated, padded less than a stride."""
    less = all(more < stride for more, stride in zip(call["output_padding"], call["stride"], strict=True))
    return spatial == 2 and less and all(extent == 1 for extent in call["dilation"])


def _spread(call: Call, x: Any) -> Any:
    """Return the input of a transposed convolution with zeros between its values and around them."""
    r = call.r
    kernel = call.shape("weight")[2:]
    for axis, extent in enumerate(shape_of(x)[2:]):
        stride, dilation = call["stride"][axis], call["dilation"][axis]
        before = dilation * (kernel[axis] - 1) - call["padding"][axis]
        count = before + (extent - 1) * stride + 1 + before + call["output_padding"][axis]
        places = np.arange(count) - before
        inside = (places >= 0) & (places % stride == 0) & (places < extent * stride)
        if inside.all() and count == extent:
            continue
        x = r.take(x, constant(np.where(inside, places // stride, 0), "int64"), axis=axis + 2)
        form = [1] * len(shape_of(x))
        form[axis + 2] = count
        x = r.where(constant(inside.reshape(form), "bool"), x, constant(0, type_name(x)))
    return x


def _turned(call: Call, weight: Any) -> Any:
    """Return the weight of a transposed convolution (I, O/g, ...) as that of a convolution (O, I/g, ...)."""
    r, groups = call.r, call["groups"]
    inputs, outputs, *kernel = shape_of(weight)
    for axis in range(2, len(kernel) + 2):
        weight = r.flip(weight, axis)
    weight = r.reshape(weight, (groups, inputs // groups, outputs, *kernel))
    weight = r.permute_dims(weight, [0, 2, 1, *range(3, len(kernel) + 3)])
    return r.reshape(weight, (groups * outputs, inputs // groups, *kernel))


_AXES = {1: "W", 2: "HW", 3: "DHW"}


def _of_floats(call: Call, x: Any, weight: Any, stride: Sequence[int], padding: Sequence[int]) -> Any:
    spatial = len(stride)
    convolve = getattr(call.r, f"nn__conv{spatial}d")
    return convolve(
        x,
        weight,
        strides=list(stride),
        padding=list(padding),
        dilation=list(call["dilation"]),
        groups=call["groups"],
        data_layout="NC" + _AXES[spatial],
        kernel_layout="OI" + _AXES[spatial],
        out_dtype=call.dtype,
    )


def _of_integers(call: Call, x: Any, weight: Any, stride: Sequence[int], padding: Sequence[int]) -> Any:
    """Return a convolution as sums of products over windows, exact in the type of the integers."""
    r, groups = call.r, call["groups"]
    batch, channels, *_ = shape_of(x)
    outputs, inputs, *kernel = shape_of(weight)
    out = call.out_shape[2:]
    sizes = list(zip(kernel, stride, padding, call["dilation"], out, strict=True))
    found, _ = windows_of(call, x, sizes, 0)  # (N, C, *out, K)
    places, size = math.prod(out), math.prod(kernel)
    found = r.reshape(found, (batch, groups, 1, channels // groups, places, size))
    factors = r.reshape(weight, (1, groups, outputs // groups, inputs, 1, size))
    return r.reshape(r.sum(r.multiply(found, factors), [3, 5], False), (batch, outputs, *out))


CONVOLUTIONS: dict[str, Convert] = {"convolution.default": _convolution}
