"""Compute dilated convolutions on packed channels tap by tap if most taps read few pixels.

A 3x3 kernel with dilation 12 over an image of 14x14 reads all of it with its center, and two of 14 rows or columns with
the other taps: 18 % of its multiplications are not with padding. Each tap becomes a dense layer over the pixels that it
reads, and the results are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from tvm import relax

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import Array, Step
from tvmflow.ir.tvm_compat import shape_of
from tvmflow.passes.layout.dense import pixels_as_rows, rows_as_pixels
from tvmflow.passes.layout.weights import pack_both

_MOST_SEEN = 0.4  # share of useful multiplications below which extra kernels and additions pay
_EXACT = ("float32", "int32")  # types in which a sum of taps is as exact as one reduction


class _Range(NamedTuple):
    """The outputs [begin, end) along one axis at which a tap reads the image, and the first pixel that it reads."""

    begin: int
    end: int
    pixel: int

    @property
    def extent(self) -> int:
        return self.end - self.begin


def _tap_ranges(step: Step, window: Array, padding: list[int], axis: int, pixels: int) -> list[_Range]:
    """Return the range of each tap along an axis."""
    dilation, before, outputs = int(step.call.attrs.dilation[axis]), padding[axis], step.shape[2 + axis]
    found = []
    for tap in range(window.shape[2 + axis]):
        first = tap * dilation - before  # the pixel that it reads at the first output
        begin, end = max(0, -first), min(outputs, pixels - first)
        found.append(_Range(begin, max(begin, end), begin + first))
    return found


def multiplies_mostly_padding(step: Step, weight: Array, padding: list[int], image: tuple[int, ...]) -> bool:
    """Whether a convolution of one image (1, C, H, W) is faster tap by tap. padding: top, left, bottom, right."""
    attrs = step.call.attrs
    if int(attrs.groups) != 1 or image[0] != 1 or step.dtype not in _EXACT or any(int(s) != 1 for s in attrs.strides):
        return False
    seen = [sum(tap.extent for tap in _tap_ranges(step, weight, padding, axis, image[2 + axis])) for axis in (0, 1)]
    return bool(math.prod(seen) <= _MOST_SEEN * math.prod(step.shape[2:]) * math.prod(weight.shape[2:]))


def convolve_by_taps(builder: Any, step: Step, weight: Array, padding: list[int], data: Any) -> Any:
    """Return conv2d of packed channels as a sum of dense layers."""
    total, block = None, shape_of(data)[-1]
    for at, rows, columns in _taps(step, weight, padding, shape_of(data)[2:4]):
        begins, extents = (rows.pixel, columns.pixel), (rows.extent, columns.extent)
        part = data
        if extents != tuple(shape_of(data)[2:4]):
            ends = [begin + extent for begin, extent in zip(begins, extents, strict=True)]
            part = builder.emit(relax.op.strided_slice(data, axes=[2, 3], begin=list(begins), end=ends))
        kernel = constant(pack_both(weight[:, :, at[0], at[1], None, None], block), str(weight.dtype))
        made = builder.emit(
            relax.op.nn.conv2d(
                pixels_as_rows(builder, part),
                kernel,
                data_layout=f"NCHW{block}c",
                out_layout=f"NCHW{block}c",
                kernel_layout=f"OIHW{block}i{block}o",
                out_dtype=step.dtype,
            )
        )
        made = rows_as_pixels(builder, made, *extents)
        if extents != step.shape[2:]:
            behind = [extent - axis.end for extent, axis in zip(step.shape[2:], (rows, columns), strict=True)]
            widths = [0, 0, 0, 0, rows.begin, behind[0], columns.begin, behind[1], 0, 0]
            made = builder.emit(relax.op.nn.pad(made, widths))
        total = made if total is None else builder.emit(relax.op.add(total, made))
    return total


def _taps(
    step: Step, weight: Array, padding: list[int], image: tuple[int, ...]
) -> Iterator[tuple[tuple[int, int], _Range, _Range]]:
    """Yield the position and ranges of each tap that reads any pixel."""
    rows, columns = (_tap_ranges(step, weight, padding, axis, image[axis]) for axis in (0, 1))
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            if row.extent and column.extent:
                yield (y, x), row, column
