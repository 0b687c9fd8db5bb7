"""LegalizeConvolutions: lower conv2d to TensorIR, in NCHW and in packed layouts (which TVM's own table leaves out)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, topi


def _legalize(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    out_dtype = str(attrs.out_dtype) if attrs.out_dtype and str(attrs.out_dtype) != "void" else None
    if attrs.data_layout.startswith("NCHW") and attrs.data_layout != "NCHW":
        return builder.call_te(
            topi.nn.conv2d_NCHWc, call.args[0], call.args[1], attrs.strides, attrs.padding, attrs.dilation,
            attrs.data_layout, attrs.out_layout, out_dtype or "float32", primfunc_name_hint="conv2d_nchwc",
        )  # fmt: skip
    return builder.call_te(
        topi.nn.conv, inp=call.args[0], filt=call.args[1], stride=attrs.strides, padding=attrs.padding,
        dilation=attrs.dilation, groups=attrs.groups, data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout, out_dtype=out_dtype, primfunc_name_hint="conv2d",
    )  # fmt: skip


@tvm.transform.module_pass(opt_level=0, name="LegalizeConvolutions")
class LegalizeConvolutions:
    """IRModule -> IRModule without relax.nn.conv2d. Needs a target in scope."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        return relax.transform.LegalizeOps({"relax.nn.conv2d": _legalize})(mod)
