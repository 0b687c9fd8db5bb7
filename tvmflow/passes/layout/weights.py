"""Pack weights and other constants to whole blocks of channels, padded with zeros.

Constants of rows are packed as images of one row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmflow.ir.relax.elementwise import DIVISIONS
from tvmflow.ir.relax.graph import Argument, Array, Step
from tvmflow.passes.legalize.padded_image import tileable_width

_PARTS = (4, 8)  # channels of a group that are part of a block and fill a register
_MOST_MERGED = 8  # most groups merged; multiplications grow by this factor


def _pad_axis(weight: Array, axis: int, block: int) -> Array:
    widths = [(0, 0)] * weight.ndim
    widths[axis] = (0, -weight.shape[axis] % block)
    return np.pad(weight, widths)


def pack_outputs(weight: Array, block: int) -> Array:
    """(O, I, KH, KW) -> (O/block, I, KH, KW, block)."""
    full = _pad_axis(weight, 0, block)
    o, i, kh, kw = full.shape
    return np.ascontiguousarray(full.reshape(o // block, block, i, kh, kw).transpose(0, 2, 3, 4, 1))


def choose_first_layer_lanes(channels: int, dtype: Any, block: int) -> int:
    """Return how many channels a first layer's image is padded to, 0 if its channels are not packed.

    Dot products sum 4 channels of int8, or 2 of bfloat16. An image of one channel would be mostly padding; float32 has
    no dot product.
    """
    group = {"int8": 4, "bfloat16": 2}.get(str(dtype), 0)
    return -(-channels // group) * group if group and 3 <= channels < block else 0


def pack_both(weight: Array, block: int, inner: int = 0) -> Array:
    """(O, I, KH, KW) -> (O/block, I/inner, KH, KW, inner of I, block of O); inner: `block` by default."""
    inner = inner or block
    full = _pad_axis(_pad_axis(weight, 0, block), 1, inner)
    o, i, kh, kw = full.shape
    split = full.reshape(o // block, block, i // inner, inner, kh, kw)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))


def pack_constant(value: Array, block: int, filling: int) -> Array:
    """Return a constant that broadcasts against NCHW as one that broadcasts against NCHW{block}c."""
    if value.size == 1:
        return value.reshape(())
    n, c, h, w = (1,) * (4 - value.ndim) + value.shape
    full = value.reshape(n, c, h, w)
    if c == 1:
        return full[..., None]
    full = np.pad(full, ((0, 0), (0, -c % block), (0, 0), (0, 0)), constant_values=filling)
    return full.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2)


def pack_groups(weight: Array, groups: int, block: int) -> tuple[Array, int] | None:
    """Return the weight (O, I, KH, KW) of a grouped convolution as (O/block, I/i, KH, KW, i, block), and its groups.

    None if it cannot be packed. i is the channels of a group if several groups make a block. Otherwise i is a block,
    and groups are merged until they fill blocks.
    """
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    if inputs == outputs and inputs in _PARTS and inputs < block:
        packed = pack_both(weight, block, inputs)
        return packed, len(packed) * block // inputs
    merged = merge_groups(weight, groups, block)
    return (pack_both(merged[0], block), merged[1]) if merged else None


def merge_groups(weight: Array, groups: int, block: int) -> tuple[Array, int] | None:
    """Return the weight (O, I, KH, KW) of a convolution with groups merged to fill blocks, and the remaining groups.

    Multiplications across merged groups are with zeros: groups of 8 channels cost twice as much in blocks of 16, but
    are vectors then. None if too many would be zeros, or if the last merged group would need more channels than the
    padded image has.
    """
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    for together in range(1, _MOST_MERGED + 1):
        left = -(-groups // together)
        if (together * inputs) % block or (together * outputs) % block:
            continue
        filled = [-(-groups * channels // block) * block for channels in (inputs, outputs)]
        if [left * together * inputs, left * together * outputs] != filled:
            continue
        made = np.zeros((left * together * outputs, together * inputs, *weight.shape[2:]), weight.dtype)
        for group in range(groups):
            rows, first = slice(group * outputs, (group + 1) * outputs), group % together * inputs
            made[rows, first : first + inputs] = weight[rows]
        return made, left
    return None


def image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the image shape of rows, (N, C) or (B, N, C): one row, whose width is their number, perhaps rounded up."""
    return (1, shape[-1], 1, tileable_width(math.prod(shape[:-1]))) if len(shape) != 4 else shape


def rows_to_image(value: Array, shape: tuple[int, ...]) -> Array:
    """Return a constant that broadcasts against rows of a shape as one that broadcasts against their image."""
    if value.size == 1:
        return value
    rows, channels = math.prod(shape[:-1]), value.shape[-1]
    if value.size != channels:  # the constant varies along rows
        value = np.broadcast_to(value, (*shape[:-1], channels))
    else:
        rows = 1
    image = value.reshape(rows, channels).T.reshape(1, channels, 1, rows)
    filled = tileable_width(rows) if rows > 1 else rows
    return np.pad(image, ((0, 0), (0, 0), (0, 0), (0, filled - rows)), mode="edge")


def row_constants(step: Step, block: int) -> tuple[Argument, ...]:
    """Return the arguments of a step on rows of four axes, with constants in the layout of packed rows."""
    filling = 1 if step.op in DIVISIONS else 0
    return tuple(
        pack_constant(rows_to_image(one, step.shape), block, filling) if isinstance(one, np.ndarray) else one
        for one in step.args
    )
