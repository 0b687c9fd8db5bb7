"""Convert rows, (N, C) or (B, N, C), to an image of one row in packed channels and back.

The image is (1, C/block, 1, rows, block), as wide as the tiles of a schedule require.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.graph import Ref, Step
from tvmflow.ir.tvm_compat import shape_of
from tvmflow.passes.layout.weights import image_shape


def pack_rows(builder: Any, value: Any, shape: tuple[int, ...], block: int) -> Any:
    """Return rows as a packed image."""
    _, channels, _, width = image_shape(shape)
    rows, filled = math.prod(shape[:-1]), -(-channels // block) * block
    if len(shape) != 2:
        value = relax.op.reshape(value, (rows, channels))
    if (rows, channels) != (width, filled):
        value = relax.op.nn.pad(builder.emit(value), [0, width - rows, 0, filled - channels])
    split = relax.op.reshape(builder.emit(value), (width, filled // block, 1, 1, block))
    return split if width == 1 else relax.op.permute_dims(builder.emit(split), [2, 1, 3, 0, 4])


def pixels_as_rows(builder: Any, image: Any) -> Any:
    """Return an image (1, C/block, H, W, block) as the image of its H * W rows."""
    _, blocks, height, width, block = shape_of(image)
    rows = height * width
    whole = image_shape((rows, blocks * block))[3]
    value = image if height == 1 else builder.emit(relax.op.reshape(image, (1, blocks, 1, rows, block)))
    return value if whole == rows else builder.emit(relax.op.nn.pad(value, [0] * 6 + [0, whole - rows, 0, 0]))


def rows_as_pixels(builder: Any, rows: Any, height: int, width: int) -> Any:
    """Return the image of rows as one of `height` x `width` pixels."""
    _, blocks, _, whole, block = shape_of(rows)
    if whole != height * width:
        rows = builder.emit(relax.op.strided_slice(rows, axes=[3], begin=[0], end=[height * width]))
    return rows if height == 1 else builder.emit(relax.op.reshape(rows, (1, blocks, height, width, block)))


def is_dense(step: Step) -> bool:
    """Whether a matmul multiplies a computed value by one constant matrix."""
    weight = step.args[1]
    return isinstance(step.args[0], Ref) and isinstance(weight, np.ndarray) and weight.ndim == 2
