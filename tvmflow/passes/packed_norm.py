"""Layer norm of packed rows, (1, C/b, 1, W, b): over the channels of each pixel, without a change of layout before and behind it."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvmflow.ir.tvm_names import shape_of, type_of
from tvmflow.passes.products import buffer_of, function_of

AXES = [1, 4]  # of packed rows, that are their channels

_SOURCE = """
@T.prim_func(s_tir=True)
def packed_norm(x: {image}, scale: {weight}, shift: {weight}, out: {image}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 4}})
    total_of_lane = T.sblock_alloc_buffer(({W}, {L}))
    total = T.sblock_alloc_buffer(({W},))
    square_of_lane = T.sblock_alloc_buffer(({W}, {L}))
    square = T.sblock_alloc_buffer(({W},))
    factor = T.sblock_alloc_buffer(({W},))
    for w, l, c in T.grid({W}, {L}, {C}):
        with T.sblock("packed_norm_total_of_lane"):
            vw, vl, vc = T.axis.remap("SSR", [w, l, c])
            with T.init():
                total_of_lane[vw, vl] = T.float32(0)
            total_of_lane[vw, vl] = total_of_lane[vw, vl] + x[0, vc, 0, vw, vl]
    for w, l in T.grid({W}, {L}):
        with T.sblock("packed_norm_total"):
            vw, vl = T.axis.remap("SR", [w, l])
            with T.init():
                total[vw] = T.float32(0)
            total[vw] = total[vw] + total_of_lane[vw, vl] * T.float32({share!r})
    for w, l, c in T.grid({W}, {L}, {C}):
        with T.sblock("packed_norm_square_of_lane"):
            vw, vl, vc = T.axis.remap("SSR", [w, l, c])
            with T.init():
                square_of_lane[vw, vl] = T.float32(0)
            square_of_lane[vw, vl] = square_of_lane[vw, vl] + (x[0, vc, 0, vw, vl] - total[vw]) * (x[0, vc, 0, vw, vl] - total[vw])
    for w, l in T.grid({W}, {L}):
        with T.sblock("packed_norm_square"):
            vw, vl = T.axis.remap("SR", [w, l])
            with T.init():
                square[vw] = T.float32(0)
            square[vw] = square[vw] + square_of_lane[vw, vl] * T.float32({share!r})
    for w in T.grid({W}):
        with T.sblock("packed_norm_factor"):
            vw = T.axis.remap("S", [w])
            factor[vw] = T.float32(1) / T.sqrt(square[vw] + T.float32({epsilon!r}))
    for n, c, h, w, l in T.grid(1, {C}, 1, {W}, {L}):
        with T.sblock("packed_norm"):
            vn, vc, vh, vw, vl = T.axis.remap("SSSSS", [n, c, h, w, l])
            out[vn, vc, vh, vw, vl] = (x[vn, vc, vh, vw, vl] - total[vw]) * factor[vw] * scale[vc, vl] + shift[vc, vl]
"""


def legalize_layer_norm(builder: Any, call: Any) -> Any:
    """Return how relax.nn.layer_norm is lowered: of packed rows to one kernel, else as TVM does."""
    attrs, shape = call.attrs, shape_of(call)
    if len(shape) != 5 or [int(axis) for axis in attrs.axes] != AXES or str(type_of(call).dtype) != "float32":
        return call.op.get_attr("FLegalize")(builder, call)
    _, blocks, _, width, lanes = shape
    function = function_of(_SOURCE, {
        "image": buffer_of(shape, "float32"), "weight": buffer_of((blocks, lanes), "float32"), "C": blocks, "W": width, "L": lanes,
        "share": 1.0 / (blocks * lanes), "epsilon": float(attrs.epsilon),
    })  # fmt: skip
    return relax.call_tir(builder.add_func(function, "packed_norm"), list(call.args), type_of(call))
