"""Lower linear resize2d in two steps, along rows and then along columns.

The indices and weights are tables; TVM computes four indices and their weights for each value. The second step reads
and writes whole rows, so that vectors need no gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.graph import Array
from tvmflow.ir.tvm_compat import Call, shape_of, type_of
from tvmflow.passes.legalize.batch_matmul import OPAQUE, buffer_type, parse_kernel
from tvmflow.passes.legalize.bfloat16 import legalize_astype

_INJECTIVE = 2  # OpPatternKind of elementwise and injective kernels

_SOURCE = """
@T.prim_func(s_tir=True)
def resize(x: {image}, first: {places}, second: {places}, share: {shares}, out: {made}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": {pattern}}})
    for {loops} in T.grid({extents}):
        with T.sblock("resize"):
            {axes} = T.axis.remap("{kinds}", [{loops}])
            out[{axes}] = {left} * (T.float32(1) - share[{at}]) + {right} * share[{at}]
"""
_FLOATS = {"float32", "float16", "bfloat16"}


def legalize_resize2d(builder: Any, call: Call) -> Any:
    """Lower relax.image.resize2d: linear interpolation in NCHW and NCHW{b}c in float32, others as TVM does."""
    attrs, mode = call.attrs, str(call.attrs.coordinate_transformation_mode)
    linear = str(attrs.method) == "linear" and mode in _PLACES and str(attrs.layout).startswith("NCHW")
    value, shape, dtype = call.args[0], shape_of(call), str(type_of(call).dtype)
    if not linear or not {dtype, str(type_of(value).dtype)} <= _FLOATS:
        return call.op.get_attr("FLegalize")(builder, call)
    for axis, pattern in ((3, OPAQUE), (2, _INJECTIVE)):
        if shape_of(value)[axis] != shape[axis]:
            value = builder.emit(_resize_axis(builder, value, axis, shape[axis], mode, pattern))
    if str(type_of(value).dtype) == dtype:
        return value
    return legalize_astype(builder, builder.normalize(relax.op.astype(value, dtype)))


def _resize_axis(builder: Any, value: Any, axis: int, extent: int, mode: str, pattern: int) -> Any:
    """Return a value in float32 resized along one axis."""
    image, dtype = shape_of(value), str(type_of(value).dtype)
    made = (*image[:axis], extent, *image[axis + 1 :])
    first, second, share = interpolation_tables(image[axis], extent, mode)
    loops = [f"i{at}" for at in range(len(made))]
    axes = [f"v{loop}" for loop in loops]
    before, behind = "".join(f"{one}, " for one in axes[:axis]), "".join(f", {one}" for one in axes[axis + 1 :])
    reads = (f"x[{before}{place}[{axes[axis]}]{behind}]" for place in ("first", "second"))
    left, right = (read if dtype == "float32" else f'T.Cast("float32", {read})' for read in reads)
    function = parse_kernel(
        _SOURCE,
        {
            "image": buffer_type(image, dtype),
            "made": buffer_type(made, "float32"),
            "places": buffer_type((extent,), "int32"),
            "shares": buffer_type((extent,), "float32"),
            "loops": ", ".join(loops),
            "extents": ", ".join(map(str, made)),
            "axes": ", ".join(axes),
            "kinds": "S" * len(axes),
            "at": axes[axis],
            "left": left,
            "right": right,
            "pattern": pattern,
        },
    )
    given = [value, relax.const(first), relax.const(second), relax.const(share)]
    return relax.call_tir(builder.add_func(function, "resize"), given, relax.TensorType(made, "float32"))


_PLACES = {
    "half_pixel": lambda at, pixels, extent: (at + 0.5) * pixels / extent - 0.5,
    "pytorch_half_pixel": lambda at, pixels, extent: (at + 0.5) * pixels / extent - 0.5 if extent > 1 else at * 0.0,
    "align_corners": lambda at, pixels, extent: at * (pixels - 1) / max(extent - 1, 1),
    "asymmetric": lambda at, pixels, extent: at * pixels / extent,
}


def interpolation_tables(pixels: int, extent: int, mode: str) -> tuple[Array, Array, Array]:
    """Return for each output index the two input indices that it lies between, and the weight of the second."""
    places = _PLACES[mode](np.arange(extent, dtype=np.float64), pixels, extent)
    first = np.floor(places)
    near = [np.clip(one, 0, pixels - 1).astype(np.int32) for one in (first, first + 1)]
    return near[0], near[1], (places - first).astype(np.float32)
