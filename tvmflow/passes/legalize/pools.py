"""Lower max_pool2d of 16-bit values in float32, and round the maximum back; float16 as it is where there is arithmetic.

Values are widened once, where the padding is copied. TVM 0.27 cannot vectorize the initial value of a maximum in
bfloat16. A maximum of rounded values is one of them, so that nothing is lost, and memory keeps the low precision on
both sides. On arm64, float32 is lowered here, too: TVM does not use its instruction for a maximum.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import te

from tvmflow.ir.tvm_compat import Call, type_of
from tvmflow.passes.legalize.bfloat16 import cast_float32
from tvmflow.passes.legalize.clip import reduce_max
from tvmflow.passes.legalize.padded_image import pad_image
from tvmflow.targets.cpu_features import computes_in_float16, multiplies_by_lane

_LOWEST = -3.4028234663852886e38  # of float32


def legalize_max_pool2d(builder: Any, call: Call) -> Any:
    """Lower relax.nn.max_pool2d in NCHW and NCHW{b}c, other layouts as TVM does."""
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
    """Return the te.Tensor of shape `out_shape`, in the type of data: (N, C, H, W) or (N, C/b, H, W, b)."""
    top, left = padding[:2]
    (sh, sw), (dh, dw) = strides, dilation
    after = [
        (out_shape[2] - 1) * sh + (window[0] - 1) * dh + 1 - int(data.shape[2]) - top,
        (out_shape[3] - 1) * sw + (window[1] - 1) * dw + 1 - int(data.shape[3]) - left,
    ]
    wide, dtype = data, str(data.dtype)
    by_itself = dtype == "float16" and computes_in_float16(tvm.target.Target.current())
    computed, lowest = (dtype, -math.inf) if by_itself else ("float32", _LOWEST)
    if top or left or max(after) > 0 or dtype != computed:
        wide = pad_image(data, [top, left], [max(width, 0) for width in after], computed, lowest)
    y, x = te.reduce_axis((0, window[0]), "kh"), te.reduce_axis((0, window[1]), "kw")
    found = te.compute(
        tuple(out_shape),
        lambda b, c, h, w, *v: reduce_max(wide[b, c, h * sh + y * dh, w * sw + x * dw, *v], [y, x]),
        name="max_pool2d",
    )
    if dtype == computed:
        return found
    return te.compute(found.shape, lambda *indices: cast_float32(found[indices], dtype), name="round")
