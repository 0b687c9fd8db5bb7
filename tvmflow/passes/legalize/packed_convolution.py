"""Compute convolutions in packed layouts as TensorIR.

Each has one padding block (if it pads) and one reduction with separate axes: (n, oc, oh, ow, lane) over (ic, kh, kw,
input lane); depthwise and first layers over (kh, kw) and (ic, kh, kw).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx

from tvmflow.ir.tir.packed_words import dot4, word_of, words_of_image
from tvmflow.passes.legalize.padded_image import pad_image, tileable_width
from tvmflow.schedules.cpu.amx_convolution import FLAT_CONVOLUTION, TILED_CONVOLUTION
from tvmflow.schedules.cpu.amx_narrow_image import divide_into_tiles
from tvmflow.schedules.intrinsics.arm_depthwise_dot import sums_by_dots
from tvmflow.schedules.intrinsics.arm_mmla import PAIRED_BYTES, PAIRED_CONVOLUTION
from tvmflow.targets.cpu_features import (
    has_few_registers,
    has_lane_dot,
    is_cpu,
    multiplies_by_lane,
    only_multiplies_int16,
)

# columns of an output up to which a tile of 16 pixels goes on to the next row; 8 rows of 8 divide into tiles that share
# weights
_NARROW = 7
Steps = tuple[int, int, int, int]  # stride and dilation of rows, stride and dilation of columns


def interleave(weight: Any, group: int) -> Any:
    """(OC, IC, KH, KW, b of I, b of O) -> (OC, IC, KH, KW, b/group of I, b of O, group of I), for dot products."""
    oc, ic, kh, kw, inner, lanes = weight.shape
    split = weight.reshape(oc, ic, kh, kw, inner // group, group, lanes)
    return np.ascontiguousarray(split.transpose(0, 1, 2, 3, 4, 6, 5))


def packed_conv2d(
    data: Any,
    weight: Any,
    strides: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    out_dtype: str | None,
    tiled: bool = False,
    filling: float = 0.0,
    offset: Any = None,
) -> Any:
    """Return the te.Tensor (N, OC, OH, OW, lane) of a convolution.

    data: (N, C, H, W) or (N, C/b, H, W, b), with half the channels of a weight where two columns are paired (then
    padding counts pairs); weight: (OC, I, KH, KW, b) of a first layer or a depthwise convolution, or (OC, IC, KH, KW, b
    of I, b of O), or (OC, 1, KH, KW, g of I, b of O) where a block has b/g groups of g channels, or (OC, IC, KH, KW, b
    of O) of words of int8, or interleaved (OC, IC, KH, KW, b/4, b of O, 4) of int8, with 2 of bfloat16, with 8 and 4
    for products of pairs, and, as matrix tiles read it, (OC, KH, KW, IC, b/4, b of O, 4); padding: top, left, bottom,
    right, of `filling`; offset: what sums start from, (1, OC, 1, 1, lane) of the output's type, None for 0.
    """
    dtype, target = out_dtype or str(data.dtype), tvm.target.Target.current()
    top, left, bottom, right = padding
    (sh, sw), (dh, dw) = strides, dilation
    words = str(weight.dtype) == "int32" and str(data.dtype) != "int32"
    if words:
        data, filling = words_of_image(data), word_of(filling)
    depthwise = len(weight.shape) == 5 and len(data.shape) == 5
    read_dtype = _read_dtype(data, weight, target, (sh, dh, sw, dw) if depthwise else None)
    columns = 1
    if len(weight.shape) == 7:  # 1 too where each group reads a part of the block
        columns = max(int(weight.shape[4]) * int(weight.shape[6]) // int(data.shape[-1]), 1)
    oc, _, kh, kw = (int(weight.shape[axis]) for axis in ((0, 3, 1, 2) if tiled else (0, 1, 2, 3)))
    reach = (kw - 1) * dw + 1
    width = int(data.shape[3]) // columns + left + right
    out_width = (width - reach) // sw + 1
    rows = int(data.shape[2]) + top + bottom - kh + 1
    if (
        tiled
        and groups == 1
        and (sh, sw, dh, dw) == (1, 1, 1, 1)
        and out_width <= _NARROW
        and rows * out_width >= _NARROW
    ):
        return _convolve_flat(data, weight, (rows, out_width), padding, _Accumulator(dtype, offset), filling)
    computed = _computed_width(out_width, target)
    right += max((computed - 1) * sw + reach - width, 0)
    if top or left or bottom or right or columns > 1 or read_dtype != str(data.dtype):
        data = pad_image(data, padding[:2], [bottom, right], read_dtype, filling, columns)
    n, _, height, _ = (int(d) for d in data.shape[:4])
    lanes = int(weight.shape[-2 if len(weight.shape) == 7 else -1])
    shape = (n, oc, (height - (kh - 1) * dh - 1) // sh + 1, computed, lanes)
    steps, sums = (sh, dh, sw, dw), _Accumulator(dtype, offset)
    if depthwise:
        return _crop(_convolve_depthwise(data, weight, shape, steps, read_dtype, sums), out_width)
    if words:
        return _convolve_words(data, weight, shape, steps, sums, groups)
    if len(weight.shape) == 5:
        return _crop(_convolve_first_layer(data, weight, shape, steps, sums), out_width)
    return _crop(_convolve_packed(data, weight, shape, steps, sums, groups, tiled), out_width)


def _computed_width(width: int, target: Any) -> int:
    """Return the columns to compute of an output so wide, so that tiles of registers divide them."""
    if not is_cpu(target):
        return width
    return tileable_width(width, multiplies_by_lane(target), has_few_registers(target))


def _read_dtype(data: Any, weight: Any, target: Any, depthwise: Steps | None) -> str:
    """Return the type that a convolution reads: data is widened once, where the padding is copied, not for each tap.

    depthwise: the steps of a depthwise convolution, None for others.
    """
    if depthwise:
        size = (int(weight.shape[2]), int(weight.shape[3]))
        if has_lane_dot(target) and sums_by_dots(str(data.dtype), str(weight.dtype), size, depthwise):
            return "int8"
        return "int16" if str(weight.dtype) == "int8" else str(weight.dtype)
    widens = len(weight.shape) == 7 and str(weight.dtype) == "int8" and only_multiplies_int16(target)
    return "int16" if widens else str(data.dtype)


@dataclass(frozen=True)
class _Accumulator:
    """The type of the sums and their initial value.

    offset: te.Tensor (1, OC, 1, 1, lane), None for 0.
    """

    dtype: str
    offset: Any

    def sum(self, terms: Any, axis: list[Any], index: tuple[Any, ...]) -> Any:
        """Return the sum of terms over axes, for the output at an index (b, o, h, w, lane)."""
        if self.offset is None:
            return te.sum(terms, axis=axis)
        start = self.offset[0, index[1], 0, 0, index[4]]
        return te.comm_reducer(lambda x, y: x + y, lambda _dtype: start, name="sum")(terms, axis=axis)


def _multiply(total: str, pixel: Any, value: Any) -> Any:
    return pixel.astype(total) * value.astype(total)


def _convolve_depthwise(
    data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, read_dtype: str, sums: _Accumulator
) -> Any:
    """Convolve each channel separately; float32 sums are exact, and are cast to the output type at the end."""
    sh, dh, sw, dw = steps
    y, x = te.reduce_axis((0, int(weight.shape[2])), "kh"), te.reduce_axis((0, int(weight.shape[3])), "kw")
    dtype = sums.dtype
    total = read_dtype if read_dtype == "float32" else dtype
    output = te.compute(
        shape,
        lambda b, o, h, w, v: sums.sum(
            _multiply(total, data[b, o, h * sh + y * dh, w * sw + x * dw, v], weight[o, 0, y, x, v]),
            [y, x],
            (b, o, h, w, v),
        ),
        name="depthwise_conv2d",
    )
    return (
        output
        if total == dtype
        else te.compute(output.shape, lambda *indices: output[indices].astype(dtype), name="exact")
    )


def _convolve_first_layer(data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, sums: _Accumulator) -> Any:
    """Convolve an image in NCHW with few channels."""
    sh, dh, sw, dw = steps
    y, x = te.reduce_axis((0, int(weight.shape[2])), "kh"), te.reduce_axis((0, int(weight.shape[3])), "kw")
    i = te.reduce_axis((0, int(weight.shape[1])), "ic")
    return te.compute(
        shape,
        lambda b, o, h, w, v: sums.sum(
            _multiply(sums.dtype, data[b, i, h * sh + y * dh, w * sw + x * dw], weight[o, i, y, x, v]),
            [i, y, x],
            (b, o, h, w, v),
        ),
        name="first_conv2d",
    )


def _convolve_packed(
    data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, sums: _Accumulator, groups: int, tiled: bool
) -> Any:
    """Convolve packed channels, with single multiplications or dot products; see packed_conv2d."""
    (sh, dh, sw, dw), per_group = steps, shape[1] // groups
    _, ic, kh, kw = (int(weight.shape[axis]) for axis in ((0, 3, 1, 2) if tiled else (0, 1, 2, 3)))
    y, x = te.reduce_axis((0, kh), "kh"), te.reduce_axis((0, kw), "kw")
    i, u = te.reduce_axis((0, ic), "ic"), te.reduce_axis((0, int(weight.shape[4])), "ic_lane")

    together = int(weight.shape[6]) if len(weight.shape) == 7 else 1
    part = int(weight.shape[4]) * together  # channels of a block, or of a group that is part of one
    parts = int(data.shape[4]) // part

    def pixel(b: Any, o: Any, h: Any, w: Any, v: Any, lane: Any) -> Any:
        if parts > 1 and groups == 1:
            block, first = i // parts, i % parts * part
        elif parts > 1:
            block, first = o, v // part * part
        else:
            block, first = i if groups == 1 else (o // per_group) * ic + i, 0
        return data[b, block, h * sh + y * dh, w * sw + x * dw, first + lane]

    if len(weight.shape) == 6:
        return te.compute(
            shape,
            lambda b, o, h, w, v: sums.sum(
                _multiply(sums.dtype, pixel(b, o, h, w, v, u), weight[o, i, y, x, u, v]), [i, y, x, u], (b, o, h, w, v)
            ),
            name="conv2d",
        )
    group = int(weight.shape[6])
    q = te.reduce_axis((0, group), "ic_byte" if group == 4 else "ic_pair")
    order = (y, x, i) if tiled else (i, y, x)
    # block names are part of the keys of tuning records
    name = TILED_CONVOLUTION if tiled else "conv2d_bytes" if group == 4 else "conv2d_pairs"
    if group * tvm.DataType(str(weight.dtype)).bits == 8 * PAIRED_BYTES:
        name = PAIRED_CONVOLUTION
    return te.compute(
        shape,
        lambda b, o, h, w, v: sums.sum(
            _multiply(sums.dtype, pixel(b, o, h, w, v, u * group + q), weight[o, *order, u, v, q]),
            [*order, u, q],
            (b, o, h, w, v),
        ),
        name=name,
    )


def _convolve_words(
    data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, sums: _Accumulator, groups: int
) -> Any:
    """Convolve packed channels by dot products of words."""
    (sh, dh, sw, dw), per_group = steps, shape[1] // groups
    ic, kh, kw = (int(extent) for extent in weight.shape[1:4])
    i, y, x = te.reduce_axis((0, ic), "ic"), te.reduce_axis((0, kh), "kh"), te.reduce_axis((0, kw), "kw")

    def term(b: Any, o: Any, h: Any, w: Any, v: Any) -> Any:
        first = i if groups == 1 else (o // per_group) * ic + i
        return dot4(data[b, first, h * sh + y * dh, w * sw + x * dw], weight[o, i, y, x, v])

    return te.compute(shape, lambda *index: sums.sum(term(*index), [i, y, x], index), name="conv2d_words")


def _convolve_flat(
    data: Any, weight: Any, size: tuple[int, int], padding: list[int], sums: _Accumulator, filling: float
) -> Any:
    """Convolve packed channels of an image whose rows are joined, so that tiles continue from row to row.

    Outputs between rows are cropped. size: rows and columns of the output.
    """
    (height, width), (top, left, _, right) = size, padding
    n, blocks, high, wide, inner = (int(d) for d in data.shape)
    oc, kh, kw, ic, words, lanes, group = (int(d) for d in weight.shape)
    step = wide + left + right  # distance of rows
    tiles, pixels = divide_into_tiles((height - 1) * step + width)
    length = tiles * pixels + (kh - 1) * step + kw - 1

    def at(b: Any, c: Any, _: Any, q: Any, v: Any) -> Any:
        h, w = tirx.floordiv(q, step) - top, tirx.floormod(q, step) - left
        inside = tirx.all(h >= 0, h < high, w >= 0, w < wide)
        return tirx.if_then_else(inside, data[b, c, h, w, v], tirx.const(filling, str(data.dtype)))

    flat = te.compute((n, blocks, 1, length, inner), at, name="pad")
    y, x, i = te.reduce_axis((0, kh), "kh"), te.reduce_axis((0, kw), "kw"), te.reduce_axis((0, ic), "ic")
    u, q = te.reduce_axis((0, words), "ic_lane"), te.reduce_axis((0, group), "ic_byte" if group == 4 else "ic_pair")
    total = te.compute(
        (n, oc, tiles, pixels, lanes),
        lambda b, o, h, w, v: sums.sum(
            _multiply(
                sums.dtype, flat[b, i, 0, h * pixels + w + y * step + x, u * group + q], weight[o, y, x, i, u, v, q]
            ),
            [y, x, i, u, q],
            (b, o, h, w, v),
        ),
        name=FLAT_CONVOLUTION,
    )

    def pixel(b: Any, o: Any, h: Any, w: Any, v: Any) -> Any:
        place = h * step + w
        return total[b, o, tirx.floordiv(place, pixels), tirx.floormod(place, pixels), v]

    return te.compute((n, oc, height, width, lanes), pixel, name="crop")


def _crop(output: Any, width: int) -> Any:
    """Return a convolution without the columns that only fill tiles."""
    if int(output.shape[3]) == width:
        return output
    n, oc, height, _, lanes = output.shape
    return te.compute((n, oc, height, width, lanes), lambda b, o, h, w, v: output[b, o, h, w, v], name="crop")
