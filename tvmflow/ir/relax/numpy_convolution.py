"""Compute convolutions and matmuls in numpy, exactly for integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.ir.relax.graph import Array

_EXACT = 256  # number of 8-bit products whose sum is below 2^24: exact in float32 in any order


def is_integer(array: Array) -> bool:
    return array.dtype.kind in "iu"


def sliding_windows(x: Array, kernel: tuple[int, int], strides: Any, dilation: Any) -> Array:
    """Return x (N, C, H, W) as a view (N, C, OH, OW, KH, KW), without padding."""
    (kh, kw), (dh, dw) = kernel, dilation
    view = np.lib.stride_tricks.sliding_window_view(x, ((kh - 1) * dh + 1, (kw - 1) * dw + 1), axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], ::dh, ::dw]


def pad_image(x: Array, padding: list[int], value: float = 0) -> Array:
    """Return x (N, C, H, W) with padding [top, left, bottom, right]."""
    top, left, bottom, right = padding
    if not any(padding):
        return x
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def exact_matmul(a: Array, b: Array) -> Array:
    """Return the matrix product of two arrays; exact int32 for integers."""
    if not is_integer(a):
        return np.asarray(a @ b)
    if a.dtype.itemsize > 1 or b.dtype.itemsize > 1:
        return np.asarray((a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32))
    left, right = a.astype(np.float32), b.astype(np.float32)
    total = np.asarray((left[..., :_EXACT] @ right[..., :_EXACT, :]).astype(np.int32))
    for start in range(_EXACT, left.shape[-1], _EXACT):
        part = slice(start, start + _EXACT)
        total += (left[..., part] @ right[..., part, :]).astype(np.int32)
    return total


def convolve(x: Array, weight: Array, strides: Any, padding: list[int], dilation: Any, groups: int) -> Array:
    """Return the 2-D convolution of x (N, C, H, W) with weight (O, C/groups, KH, KW); int32 for integers."""
    outputs, per_group, kh, kw = weight.shape
    view = sliding_windows(pad_image(x, padding), (kh, kw), strides, dilation)
    samples, channels, height, width = view.shape[:4]
    if per_group == 1 and outputs == channels:
        return _convolve_depthwise(view, weight[:, 0])
    exact = is_integer(x)
    working = x.dtype if exact else np.result_type(x.dtype, np.float32)
    matrix = weight.reshape(groups, outputs // groups, per_group * kh * kw).astype(weight.dtype if exact else working)
    result = np.empty((samples, outputs, height, width), np.int32 if exact else x.dtype)
    for sample in range(samples):
        columns = view[sample].reshape(groups, per_group, height, width, kh, kw).transpose(0, 1, 4, 5, 2, 3)
        columns = columns.reshape(groups, per_group * kh * kw, height * width).astype(working, copy=False)
        result[sample] = exact_matmul(matrix, columns).reshape(outputs, height, width)
    return result


def _convolve_depthwise(view: Array, filters: Array) -> Array:
    """Return the depthwise convolution of windows (N, C, OH, OW, KH, KW) with filters (C, KH, KW)."""
    exact = is_integer(view)
    working = np.dtype(np.int32) if exact else np.result_type(view.dtype, np.float32)
    total = np.zeros(view.shape[:4], working)
    for i, j in np.ndindex(*filters.shape[1:]):
        total += view[..., i, j].astype(working) * filters[:, i, j, None, None].astype(working)
    return total.astype(working if exact else view.dtype, copy=False)


def convolve_transposed(
    x: Array, weight: Array, strides: Any, padding: Any, output_padding: Any, groups: int = 1
) -> Array:
    """Return the transposed convolution of x (N, C, H, W) with weight (C, O/groups, KH, KW); int32 for integers.

    Each pixel is multiplied by all taps and added to the output; cropped pixels are computed, too.
    """
    samples, channels, height, width = x.shape
    (sh, sw), (top, left, bottom, right), (outputs, kh, kw) = strides, padding, weight.shape[1:]
    exact = is_integer(x)
    working = x.dtype if exact else np.result_type(x.dtype, np.float32)
    taps = weight.reshape(groups, channels // groups, outputs * kh * kw).swapaxes(1, 2)
    taps = np.ascontiguousarray(taps).astype(weight.dtype if exact else working, copy=False)
    full = ((height - 1) * sh + kh + output_padding[0], (width - 1) * sw + kw + output_padding[1])
    total = np.zeros((samples, groups * outputs, *full), np.int32 if exact else working)
    for image, into in zip(x, total, strict=True):
        columns = image.reshape(groups, channels // groups, height * width).astype(working, copy=False)
        products = exact_matmul(taps, columns).reshape(groups * outputs, kh, kw, height, width)
        for i, j in np.ndindex(kh, kw):
            into[:, i : i + (height - 1) * sh + 1 : sh, j : j + (width - 1) * sw + 1 : sw] += products[:, i, j]
    inside = total[:, :, top : full[0] - bottom, left : full[1] - right]
    return inside if exact else inside.astype(x.dtype, copy=False)
