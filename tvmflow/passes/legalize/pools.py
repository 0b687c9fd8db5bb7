"""Lower max_pool2d of 16-bit values: each is widened once, where its padding is copied, and the largest rounded back.

TVM 0.27 cannot vectorize the first value of a maximum in bfloat16. A maximum of rounded values is one of them, so
nothing is lost, and memory has the low dtype on both sides. float32 is lowered here on arm64, whose instruction for the
larger of two TVM does not use.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te

from tvmflow.ir.tvm_compat import type_of
from tvmflow.passes.legalize.bfloat16 import rounded
from tvmflow.passes.legalize.clip import largest
from tvmflow.passes.legalize.padded_image import padded_image
from tvmflow.targets.cpu_features import multiplies_by_lane

_LOWEST = -3.4028234663852886e38  # of float32


def legalize_max_pool2d(builder: Any, call: Any) -> Any:
    """Return how relax.nn.max_pool2d is lowered; layouts NCHW and NCHW{b}c, others as TVM does."""
    attrs, data = call.attrs, call.args[0]
    dtypes = ["bfloat16", "float16"] + ["float32"] * multiplies_by_lane(tvm.target.Target.current())
    if str(type_of(data).dtype) not in dtypes or not str(attrs.layout).startswith("NCHW"):
        return call.op.get_attr("FLegalize")(builder, call)
    window, strides, dilation, padding = (
        [int(v) for v in values] for values in (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
    )
    out_shape = [int(d) for d in type_of(call).shape]
    return builder.call_te(
        _max_pool2d, data, window, strides, dilation, padding, out_shape, primfunc_name_hint="max_pool2d"
    )


def _max_pool2d(
    data: Any, window: list[int], strides: list[int], dilation: list[int], padding: list[int], out_shape: list[int]
) -> Any:
    """Return the te.Tensor of shape `wanted`, in the type of data: (N, C, H, W) or (N, C/b, H, W, b)."""
    top, left = padding[:2]
    (sh, sw), (dh, dw) = strides, dilation
    after = [
        (out_shape[2] - 1) * sh + (window[0] - 1) * dh + 1 - int(data.shape[2]) - top,
        (out_shape[3] - 1) * sw + (window[1] - 1) * dw + 1 - int(data.shape[3]) - left,
    ]
    wide, dtype = data, str(data.dtype)
    if top or left or max(after) > 0 or dtype != "float32":
        wide = padded_image(data, [top, left], [max(width, 0) for width in after], "float32", _LOWEST)
    y, x = te.reduce_axis((0, window[0]), "kh"), te.reduce_axis((0, window[1]), "kw")
    found = te.compute(
        tuple(out_shape),
        lambda b, c, h, w, *v: largest(wide[b, c, h * sh + y * dh, w * sw + x * dw, *v], [y, x]),
        name="max_pool2d",
    )
    if dtype == "float32":
        return found
    return te.compute(found.shape, lambda *indices: rounded(found[indices], dtype), name="round")
