"""Emit pools, resizes and paddings on packed channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from tvmflow.ir.relax.graph import Step

POOLS = {
    "relax.nn.max_pool2d": relax.op.nn.max_pool2d,
    "relax.nn.avg_pool2d": relax.op.nn.avg_pool2d,
}


def pool(step: Step, data: Any, block: int) -> Any:
    """Return a pool on packed channels."""
    attrs = step.call.attrs
    return POOLS[step.op](
        data,
        pool_size=list(attrs.pool_size),
        strides=list(attrs.strides),
        dilation=list(attrs.dilation),
        padding=list(attrs.padding),
        ceil_mode=bool(attrs.ceil_mode),
        count_include_pad=bool(attrs.count_include_pad),
        layout=f"NCHW{block}c",
    )


def resize(step: Step, data: Any, block: int) -> Any:
    """Return a resize of packed channels."""
    attrs = step.call.attrs
    return relax.op.image.resize2d(
        data,
        tuple(int(d) for d in step.shape[2:]),
        tuple(float(v) for v in attrs.roi),
        f"NCHW{block}c",
        str(attrs.method),
        str(attrs.coordinate_transformation_mode),
        str(attrs.rounding_method),
        float(attrs.cubic_alpha),
        int(attrs.cubic_exclude),
        float(attrs.extrapolation_value),
        step.dtype,
    )


def pads_image(step: Step) -> bool:
    """Whether a step pads only rows and columns of an image."""
    return (
        step.op == "relax.nn.pad"
        and len(step.shape) == 4
        and not any(int(width) for width in step.call.attrs.pad_width[:4])
    )


def pad(step: Step, data: Any) -> Any:
    """Return packed channels with padded rows and columns."""
    attrs = step.call.attrs
    widths = [int(width) for width in attrs.pad_width]
    return relax.op.nn.pad(data, [*widths, 0, 0], pad_mode=str(attrs.pad_mode), pad_value=float(attrs.pad_value))


def absorb_padding(step: Step, steps: Mapping[str, Step]) -> tuple[str, list[int]]:
    """Return the input of a convolution and its padding, including that of a preceding zero padding."""
    data, padding = step.refs[0], [int(p) for p in step.call.attrs.padding]
    before = steps.get(data)
    if before is None or before.op != "relax.nn.pad" or len(before.shape) != 4:
        return data, padding
    attrs = before.call.attrs
    widths = [int(w) for w in attrs.pad_width]
    if any(widths[:4]) or str(attrs.pad_mode) != "constant" or float(attrs.pad_value) != 0:
        return data, padding
    top, bottom, left, right = widths[4:]
    return before.refs[0], [padding[0] + top, padding[1] + left, padding[2] + bottom, padding[3] + right]
