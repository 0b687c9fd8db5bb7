"""Compute convolutions to few channels in whole vectors; as a block of packed channels most lanes would be padding.

From packed channels, each lane multiplies a channel of its own, as in a depthwise convolution, and the lanes are added.
From a plain image, the lanes are adjacent columns: the kernel is shifted for each of them, and padded with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import Array, Step
from tvmflow.passes.layout.weights import pack_outputs

_SHARE = 4  # of the lanes of a block: more outputs fill it well enough
_MOST_WORK = 2.0  # multiplications of shifted kernels, relative to those needed


def convolves_to_few(step: Step, weight: Array, block: int) -> bool:
    """Whether a convolution in float32 has so few outputs that its packed form would be mostly padding."""
    attrs = step.call.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != ("NCHW", "OIHW"):
        return False
    return int(attrs.groups) == 1 and step.dtype == "float32" and weight.shape[0] * _SHARE <= block


def convolve_by_lanes(builder: Any, step: Step, weight: Array, padding: list[int], data: Any, block: int) -> Any:
    """Return conv2d of packed channels in the plain layout, (N, O, H, W)."""
    attrs, made = step.call.attrs, []
    for kernel in weight:  # of one output: (I, KH, KW)
        packed = pack_outputs(kernel[:, None], block)
        if kernel.shape[1:] == (1, 1) and not any(padding) and all(int(one) == 1 for one in attrs.strides):
            lanes = relax.op.multiply(data, constant(packed.reshape(1, -1, 1, 1, block), step.dtype))
        else:
            lanes = relax.op.nn.conv2d(
                data,
                constant(packed, step.dtype),
                strides=list(attrs.strides),
                padding=padding,
                dilation=list(attrs.dilation),
                groups=packed.shape[0] * block,
                data_layout=f"NCHW{block}c",
                out_layout=f"NCHW{block}c",
                kernel_layout=f"OIHW{block}o",
                out_dtype=step.dtype,
            )
        value = builder.emit(lanes)
        if packed.shape[0] > 1:
            value = builder.emit(relax.op.sum(value, [1], keepdims=True))
        made.append(builder.emit(relax.op.sum(value, [4])))
    return made[0] if len(made) == 1 else builder.emit(relax.op.concat(made, axis=1))


def convolve_columns(
    builder: Any, step: Step, weight: Array, padding: list[int], data: Any, image: tuple[int, ...], block: int
) -> Any | None:
    """Return conv2d of a plain image to one channel, None if shifted kernels would multiply mostly zeros.

    image: its shape; padding: top, left, bottom, right.
    """
    attrs, (n, _, h, w) = step.call.attrs, step.shape
    stride, width = int(attrs.strides[1]), weight.shape[3]
    wide = width + stride * (block - 1)
    if weight.shape[0] != 1 or int(attrs.dilation[1]) != 1 or wide > _MOST_WORK * width or w < 2 * block:
        return None
    kernels = np.zeros((block, *weight.shape[1:3], wide), weight.dtype)
    for lane in range(block):
        kernels[lane, :, :, lane * stride : lane * stride + width] = weight[0]
    blocks = -(-w // block)
    behind = max(0, stride * block * (blocks - 1) + wide - image[3] - padding[1])
    made = relax.op.nn.conv2d(
        data,
        constant(pack_outputs(kernels, block), step.dtype),
        strides=[int(attrs.strides[0]), stride * block],
        padding=[*padding[:3], behind],
        dilation=list(attrs.dilation),
        data_layout="NCHW",
        out_layout=f"NCHW{block}c",
        kernel_layout=f"OIHW{block}o",
        out_dtype=step.dtype,
    )
    columns = builder.emit(relax.op.reshape(builder.emit(made), (n, 1, h, blocks * block)))
    if blocks * block == w:
        return columns
    return builder.emit(relax.op.strided_slice(columns, axes=[3], begin=[0], end=[w]))
