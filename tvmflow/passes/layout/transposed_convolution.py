"""Lower a transposed convolution on packed channels to a convolution and a permutation of pixels.

The convolution computes the pixels of each phase of the strides as channels. Output pixel q * stride + r depends only
on the kernel elements r, r + stride, ..., so that no multiplication is with a zero between pixels (Shi et al. 2016, "Is
the deconvolution layer the same as a convolutional layer?").
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import Array, Step
from tvmflow.ir.tvm_compat import shape_of
from tvmflow.passes.layout.weights import pack_both


class _Phases(NamedTuple):
    """The phases along one axis.

    window: kernel elements of a phase; before, behind: padding; first: output pixels to crop in front.
    """

    stride: int
    window: int
    before: int
    behind: int
    first: int
    outputs: int


def pack_transposed_convolution(builder: Any, step: Step, data: Any, block: int) -> Any:
    """Return conv2d_transpose on packed channels; None for groups, dilations, and paddings wider than the kernel."""
    weight, axes = step.args[1], _find_phases(step)
    if axes is None or not isinstance(weight, np.ndarray):
        return None
    rows, columns = axes
    phases = rows.stride * columns.stride
    made = relax.op.nn.conv2d(
        data,
        constant(pack_both(_phase_kernel(weight, rows, columns, block), block), str(weight.dtype)),
        padding=[rows.before, columns.before, rows.behind, columns.behind],
        data_layout=f"NCHW{block}c",
        out_layout=f"NCHW{block}c",
        kernel_layout=f"OIHW{block}i{block}o",
        out_dtype=step.dtype,
    )
    made = builder.emit(made, f"{step.name}_phases")
    n, blocks, height, width, _ = shape_of(made)
    blocks //= phases
    split = builder.emit(relax.op.reshape(made, (n, rows.stride, columns.stride, blocks, height, width, block)))
    moved = builder.emit(relax.op.permute_dims(split, [0, 3, 4, 1, 5, 2, 6]))
    whole = builder.emit(relax.op.reshape(moved, (n, blocks, height * rows.stride, width * columns.stride, block)))
    if shape_of(whole)[2:4] == step.shape[2:]:
        return whole
    ends = [axis.first + axis.outputs for axis in axes]
    return relax.op.strided_slice(whole, axes=[2, 3], begin=[axis.first for axis in axes], end=ends)


def _find_phases(step: Step) -> tuple[_Phases, _Phases] | None:
    """Return the phases of rows and columns, None if the convolution is not supported."""
    attrs, weight = step.call.attrs, step.args[1]
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "IOHW" or int(attrs.groups) != 1:
        return None
    if any(int(dilation) != 1 for dilation in attrs.dilation) or not isinstance(weight, np.ndarray):
        return None
    found = []
    for axis in (0, 1):
        stride, window = int(attrs.strides[axis]), -(-weight.shape[2 + axis] // int(attrs.strides[axis]))
        begin, outputs, pixels = int(attrs.padding[axis]), step.shape[2 + axis], shape_of(step.call.args[0])[2 + axis]
        skipped = begin // stride
        behind = -(-(begin + outputs) // stride) - pixels
        found.append(_Phases(stride, window, window - 1 - skipped, behind, begin % stride, outputs))
    rows, columns = found
    return (rows, columns) if min(rows.before, rows.behind, columns.before, columns.behind) >= 0 else None


def _phase_kernel(weight: Array, rows: _Phases, columns: _Phases, block: int) -> Array:
    """(I, O, KH, KW) -> (phases * padded O, I, window, window), with the elements of each phase reversed."""
    inputs, outputs, *window = weight.shape
    filled = [(0, axis.window * axis.stride - extent) for axis, extent in zip((rows, columns), window, strict=True)]
    full = np.pad(weight, [(0, 0), (0, -outputs % block), *filled])
    split = full.reshape(inputs, full.shape[1], rows.window, rows.stride, columns.window, columns.stride)
    phases = split[:, :, ::-1, :, ::-1].transpose(3, 5, 1, 0, 2, 4)
    return np.ascontiguousarray(phases.reshape(-1, inputs, rows.window, columns.window))
