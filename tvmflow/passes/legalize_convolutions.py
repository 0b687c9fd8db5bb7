"""LegalizeConvolutions: lower conv2d to TensorIR, in NCHW and in packed layouts (which TVM's own table leaves out).

A packed convolution becomes one padding block (where it pads) and one reduction with plain, separate axes:
(n, oc, oh, ow, lane) over (ic, kh, kw, input lane); depthwise and first layers over (kh, kw) and (ic, kh, kw).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, topi


def _out_dtype(call: Any) -> str | None:
    found = call.attrs.out_dtype
    return str(found) if found and str(found) != "void" else None


def _legalize(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    if str(attrs.out_layout).startswith("NCHW") and str(attrs.out_layout) != "NCHW":
        return builder.call_te(
            packed_conv2d, call.args[0], call.args[1], [int(s) for s in attrs.strides], [int(p) for p in attrs.padding],
            [int(d) for d in attrs.dilation], int(attrs.groups), _out_dtype(call), primfunc_name_hint="conv2d_nchwc",
        )  # fmt: skip
    return builder.call_te(
        topi.nn.conv, inp=call.args[0], filt=call.args[1], stride=attrs.strides, padding=attrs.padding,
        dilation=attrs.dilation, groups=attrs.groups, data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout, out_dtype=_out_dtype(call), primfunc_name_hint="conv2d",
    )  # fmt: skip


def packed_conv2d(
    data: Any, weight: Any, strides: list[int], padding: list[int], dilation: list[int], groups: int, out_dtype: str | None
) -> Any:  # fmt: skip
    """Return the te.Tensor (N, OC, OH, OW, lane) of a convolution.

    data: (N, C, H, W) or (N, C/b, H, W, b); weight: (OC, I, KH, KW, b) of a first layer or a depthwise convolution, or
    (OC, IC, KH, KW, b of I, b of O); padding: top, left, bottom, right.
    """
    dtype = out_dtype or str(data.dtype)
    top, left, bottom, right = padding
    if any(padding):
        before, after = [0, 0, top, left], [0, 0, bottom, right]
        tail = [0] * (len(data.shape) - 4)
        data = topi.nn.pad(data, before + tail, after + tail, name="pad")
    n, _, height, width = (int(d) for d in data.shape[:4])
    oc, ic, kh, kw = (int(d) for d in weight.shape[:4])
    lanes = int(weight.shape[-1])
    (sh, sw), (dh, dw) = strides, dilation
    shape = (n, oc, (height - (kh - 1) * dh - 1) // sh + 1, (width - (kw - 1) * dw - 1) // sw + 1, lanes)
    y, x = te.reduce_axis((0, kh), "kh"), te.reduce_axis((0, kw), "kw")

    def term(pixel: Any, value: Any) -> Any:
        return pixel.astype(dtype) * value.astype(dtype)

    if len(weight.shape) == 5 and len(data.shape) == 5:
        return te.compute(
            shape,
            lambda b, o, h, w, v: te.sum(
                term(data[b, o, h * sh + y * dh, w * sw + x * dw, v], weight[o, 0, y, x, v]), axis=[y, x]
            ),
            name="depthwise_conv2d",
        )
    i = te.reduce_axis((0, ic), "ic")
    if len(weight.shape) == 5:
        return te.compute(
            shape,
            lambda b, o, h, w, v: te.sum(
                term(data[b, i, h * sh + y * dh, w * sw + x * dw], weight[o, i, y, x, v]), axis=[i, y, x]
            ),
            name="first_conv2d",
        )
    u = te.reduce_axis((0, int(weight.shape[4])), "ic_lane")
    per_group = oc // groups

    def first(o: Any) -> Any:
        return i if groups == 1 else (o // per_group) * ic + i

    return te.compute(
        shape,
        lambda b, o, h, w, v: te.sum(
            term(data[b, first(o), h * sh + y * dh, w * sw + x * dw, u], weight[o, i, y, x, u, v]), axis=[i, y, x, u]
        ),
        name="conv2d",
    )


@tvm.transform.module_pass(opt_level=0, name="LegalizeConvolutions")
class LegalizeConvolutions:
    """IRModule -> IRModule without relax.nn.conv2d. Needs a target in scope."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return relax.transform.LegalizeOps({"relax.nn.conv2d": _legalize})(mod)
