"""Remove the rows and columns of a convolution kernel that only ever multiply padding.

This occurs with large dilations: a 3x3 kernel with dilation 24 over an image of 14x14 (DeepLab) reads the image with
its center only, and costs nine times as much as a 1x1 kernel.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, rewrite_call, wildcard

from tvmflow.ir.tvm_compat import Call, IRModule, constant_value, shape_of


def used_taps(extent: int, window: int, step: int, stride: int, before: int, outputs: int) -> tuple[int, int]:
    """Return the range [first, end) of kernel elements that read any of `extent` pixels; (0, window) if none does.

    step: dilation; before: padding in front of the image; outputs: number of window positions.
    """
    first = [at * step - before for at in range(window)]  # the pixel that each element reads at the first output
    found = [
        at for at, pixel in enumerate(first) if any(0 <= pixel + place * stride < extent for place in range(outputs))
    ]
    return (found[0], found[-1] + 1) if found else (0, window)


def _trim(call: Call, data: Any, weight: Any) -> Any:
    if not isinstance(call, relax.Call):  # an output, the convolution of which is a variable
        return call
    attrs = call.attrs
    if str(attrs.data_layout) != "NCHW" or str(attrs.kernel_layout) != "OIHW":
        return call
    padding, strides, dilation = (
        [int(value) for value in values] for values in (attrs.padding, attrs.strides, attrs.dilation)
    )
    values: Any = constant_value(weight)
    shapes = (shape_of(data), tuple(values.numpy().shape), shape_of(call))
    image, window, outputs = (shape[2:] for shape in shapes)
    kept = [used_taps(image[at], window[at], dilation[at], strides[at], padding[at], outputs[at]) for at in (0, 1)]
    if kept == [(0, window[0]), (0, window[1])]:
        return call
    for at, (first, end) in enumerate(kept):
        padding[at] -= first * dilation[at]
        padding[at + 2] -= (window[at] - end) * dilation[at]
    if min(padding) < 0:  # some pixels are read by no tap
        return call
    (top, bottom), (left, right) = kept
    part = values.numpy()[:, :, top:bottom, left:right]
    return relax.op.nn.conv2d(
        data,
        relax.const(part, str(part.dtype)),
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=int(attrs.groups),
        data_layout="NCHW",
        kernel_layout="OIHW",
        out_dtype=attrs.out_dtype,
    )


@tvm.transform.module_pass(opt_level=0, name="TrimDilatedKernels")
class TrimDilatedKernels:
    """IRModule -> IRModule with the same outputs."""

    def transform_module(self, mod: IRModule, _context: Any) -> IRModule:
        data, weight = wildcard(), is_const()
        pattern = is_op("relax.nn.conv2d")(data, weight)
        found = rewrite_call(pattern, lambda call, matches: _trim(call, matches[data], matches[weight]), mod["main"])
        mod.update_func(mod.get_global_var("main"), found)
        return mod
