"""Pad and widen images for convolutions and pools.

The image gets a border, is as wide as tiles require, and has two columns joined where an instruction multiplies pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvmflow.schedules.intrinsics.arm_mmla import PAIRED_LANES


def pad_image(
    data: Any, before: list[int], after: list[int], dtype: str, filling: float = 0.0, columns: int = 1
) -> Any:
    """Return an image with a border, in another type.

    before, after: rows and columns; negative numbers in `after` crop. columns: how many neighbours of (N, 1, H, W, c)
    become one pixel of (N, 1, H, W/columns, columns * c), which the border counts.
    """
    n, c, height, width, *lanes = (int(d) for d in data.shape)
    (top, left), (bottom, right) = before, after
    width //= columns
    inner = lanes[0] if lanes else 1

    def at(*index: Any) -> Any:
        b, o, h, w, *v = index
        sides = ((top, h >= top), (bottom, h < height + top), (left, w >= left), (right, w < width + left))
        inside = [condition for border, condition in sides if border > 0]
        place = (w - left, *v) if columns == 1 else ((w - left) * columns + v[0] // inner, v[0] % inner)
        value = data[b, o, h - top, *place].astype(dtype)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(filling, dtype)) if inside else value

    shape = (n, c, height + top + bottom, width + left + right, *(columns * lane for lane in lanes))
    return te.compute(shape, at, name="pad")


def tileable_width(width: int, narrow: bool = False, few: bool = False) -> int:
    """Return the least width, at most an eighth larger, that divides into tiles of 4 to 16 pixels; else the width.

    71 is prime; 72 divides into tiles, and computing one more column costs less than leaving registers unused. narrow:
    tiles of more than 9 pixels exceed the registers; otherwise whole rows of up to 28 pixels fit. few: of more than 6,
    and a width may grow by a fifth, since what remains are tiles of one pixel.
    """
    widest, whole, part = (6, 6, 5) if few else (9, 9, 8) if narrow else (16, 28, 8)
    if width <= whole:
        return width
    for wide in range(width, width + width // part + 1):
        if any(wide % tile == 0 for tile in range(4, widest + 1)):
            return wide
    return width


def pair_columns(
    weight: Any, width: int, strides: list[int], padding: list[int], dilation: list[int]
) -> tuple[Any, list[int], list[int]] | None:
    """Return weight, strides and padding of a first layer whose image joins two columns of four channels.

    weight: (OC, 1, KH, KW, 4, 8), which becomes (OC, 1, KH, KW/2, 8, 8), padded with columns of zeros. None if the
    columns cannot be paired.
    """
    if weight.shape[1] != 1 or 2 * weight.shape[4] != PAIRED_LANES or width % 2 or strides[1] % 2 or dilation[1] != 1:
        return None
    top, left, bottom, right = padding
    outputs = (width + left + right - weight.shape[3]) // strides[1] + 1
    in_front = left % 2
    filled = np.pad(weight, [(0, 0)] * 3 + [(in_front, (weight.shape[3] + in_front) % 2)] + [(0, 0)] * 2)
    oc, ic, kh, kw, inner, lanes = filled.shape
    left, step = (left + in_front) // 2, strides[1] // 2
    right = (outputs - 1) * step + kw // 2 - width // 2 - left
    return filled.reshape(oc, ic, kh, kw // 2, 2 * inner, lanes), [strides[0], step], [top, left, bottom, right]
