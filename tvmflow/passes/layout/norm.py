"""Compute layer norm and RMS norm on packed channels, (N, C/b, H, W, b), without a change of layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, topi

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import Ref, Step
from tvmflow.ir.tvm_compat import Call, shape_of, type_of
from tvmflow.passes.legalize.batch_matmul import buffer_type, parse_kernel

AXES = [1, 4]  # the channel axes of packed channels
NORMS = ("relax.nn.layer_norm", "relax.nn.rms_norm")

_REDUCTION = """
    {name}_of_lane = T.sblock_alloc_buffer(({N}, {H}, {W}, {L}))
    {name} = T.sblock_alloc_buffer(({N}, {H}, {W}))
    for n, h, w, l, c in T.grid({N}, {H}, {W}, {L}, {C}):
        with T.sblock("packed_norm_{name}_of_lane"):
            vn, vh, vw, vl, vc = T.axis.remap("SSSSR", [n, h, w, l, c])
            with T.init():
                {name}_of_lane[vn, vh, vw, vl] = T.float32(0)
            {name}_of_lane[vn, vh, vw, vl] = {name}_of_lane[vn, vh, vw, vl] + {value}
{fours}
    for n, h, w, l in T.grid({N}, {H}, {W}, {last}):
        with T.sblock("packed_norm_{name}"):
            vn, vh, vw, vl = T.axis.remap("SSSR", [n, h, w, l])
            with T.init():
                {name}[vn, vh, vw] = T.float32(0)
            {name}[vn, vh, vw] = {name}[vn, vh, vw] + {name}_{parts}[vn, vh, vw, vl] * T.float32({share!r})"""
_FOURS = """
    {name}_of_four = T.sblock_alloc_buffer(({N}, {H}, {W}, 4))
    for n, h, w, l, k in T.grid({N}, {H}, {W}, 4, {L} // 4):
        with T.sblock("packed_norm_{name}_of_four"):
            vn, vh, vw, vl, vk = T.axis.remap("SSSSR", [n, h, w, l, k])
            with T.init():
                {name}_of_four[vn, vh, vw, vl] = T.float32(0)
            {name}_of_four[vn, vh, vw, vl] = {name}_of_four[vn, vh, vw, vl] + {name}_of_lane[vn, vh, vw, vk * 4 + vl]"""
_SOURCE = """
@T.prim_func(s_tir=True)
def packed_norm({parameters}, out: {image}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 4}}){total}{square}
    factor = T.sblock_alloc_buffer(({N}, {H}, {W}))
    for n, h, w in T.grid({N}, {H}, {W}):
        with T.sblock("packed_norm_factor"):
            vn, vh, vw = T.axis.remap("SSS", [n, h, w])
            factor[vn, vh, vw] = T.float32(1) / T.sqrt(square[vn, vh, vw] + T.float32({epsilon!r}))
    for n, c, h, w, l in T.grid({N}, {C}, {H}, {W}, {L}):
        with T.sblock("packed_norm"):
            vn, vc, vh, vw, vl = T.axis.remap("SSSSS", [n, c, h, w, l])
            out[vn, vc, vh, vw, vl] = {value} * factor[vn, vh, vw] * scale[vc, vl]{shift}
"""


def pack_norm(builder: Any, step: Step, packed: Any, block: int, rows: bool = False) -> Callable[[], Any] | None:
    """Return how to emit a norm on packed channels; None if its axis is not the channels.

    rows: the channels are the last axis of four, as they are of two or three.
    """
    weights, rank = step.args[1:], len(step.shape)
    axis = 1 if rank == 4 and not rows else -1
    if not isinstance(step.args[0], Ref) or step.dtype != "float32":
        return None
    if [int(one) % rank for one in step.call.attrs.axes] != [axis % rank]:
        return None
    arrays = [weight for weight in weights if isinstance(weight, np.ndarray) and weight.dtype == np.float32]
    if len(arrays) != len(weights):
        return None
    channels, epsilon = step.shape[axis], float(step.call.attrs.epsilon)
    filling = (0, -channels % block)
    factors = [constant(np.pad(weight.reshape(-1), filling).reshape(-1, block), "float32") for weight in arrays]
    if filling[1]:  # relax has no norm of a part of the channels
        function = _packed_norm(shape_of(packed), channels, epsilon, step.op == NORMS[0])
        return lambda: relax.call_tir(builder.add_func(function, "packed_norm"), [packed, *factors], type_of(packed))
    operator = relax.op.nn.layer_norm if step.op == NORMS[0] else relax.op.nn.rms_norm
    return lambda: operator(packed, *factors, AXES, epsilon)


def _legalize_rms_norm(builder: Any, call: Call) -> Any:
    """Lower an RMS norm over any axes; TVM's own lowering requires the last axes."""
    rank = len(shape_of(call))
    axes = sorted(int(axis) % rank for axis in call.attrs.axes)
    count = math.prod(shape_of(call)[axis] for axis in axes)
    epsilon = float(call.attrs.epsilon)
    dtype = str(type_of(call).dtype)

    def rms_norm(x: Any, weight: Any) -> Any:
        wide = topi.cast(x, "float32")
        squares = topi.sum(topi.multiply(wide, wide), axes, keepdims=True)
        factor = topi.divide(1.0, topi.sqrt(topi.add(topi.divide(squares, float(count)), epsilon)))
        full = topi.reshape(weight, [extent if axis in axes else 1 for axis, extent in enumerate(shape_of(call))])
        return topi.cast(topi.multiply(topi.multiply(wide, factor), topi.cast(full, "float32")), dtype)

    return builder.call_te(rms_norm, *call.args, primfunc_name_hint="rms_norm")


def legalize_norm(builder: Any, call: Call) -> Any:
    """Lower layer_norm and rms_norm: on packed channels to one kernel, otherwise as TVM does."""
    attrs, shape = call.attrs, shape_of(call)
    centered = str(call.op.name) == NORMS[0]
    if len(shape) != 5 or [int(axis) for axis in attrs.axes] != AXES or str(type_of(call).dtype) != "float32":
        return call.op.get_attr("FLegalize")(builder, call) if centered else _legalize_rms_norm(builder, call)
    function = _packed_norm(shape, shape[1] * shape[4], float(attrs.epsilon), centered)
    return relax.call_tir(builder.add_func(function, "packed_norm"), list(call.args), type_of(call))


def _packed_norm(shape: tuple[int, ...], channels: int, epsilon: float, centered: bool) -> Any:
    """Return the kernel of a norm over the first `channels` channels of packed images of a shape; the others get what
    the weights give: zeros.
    """
    batch, blocks, height, width, lanes = shape
    image, weight = buffer_type(shape, "float32"), buffer_type((blocks, lanes), "float32")
    sizes = {
        "N": batch,
        "C": blocks,
        "H": height,
        "W": width,
        "L": lanes,
        "share": 1.0 / channels,
        "epsilon": epsilon,
    }

    def sum_of(name: str, value: str) -> str:
        """Return a sum over channels: by lanes, by four sums of these in one vector, then of those one by one."""
        if channels < blocks * lanes:
            value = f"T.Select(vc * {lanes} + vl < {channels}, {value}, T.float32(0))"
        parts, fours = ("of_four", _FOURS.format(name=name, **sizes)) if lanes > 4 else ("of_lane", "")
        return _REDUCTION.format(name=name, value=value, parts=parts, fours=fours, last=min(lanes, 4), **sizes)

    value = "(x[vn, vc, vh, vw, vl] - total[vn, vh, vw])" if centered else "x[vn, vc, vh, vw, vl]"
    parameters = f"x: {image}, scale: {weight}" + (f", shift: {weight}" if centered else "")
    return parse_kernel(
        _SOURCE,
        {
            **sizes,
            "image": image,
            "parameters": parameters,
            "total": sum_of("total", "x[vn, vc, vh, vw, vl]") if centered else "",
            "square": sum_of("square", f"{value} * {value}"),
            "value": value,
            "shift": " + shift[vc, vl]" if centered else "",
        },
    )
