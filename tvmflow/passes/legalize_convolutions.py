"""Lower conv2d to TensorIR, in NCHW and in packed layouts (which TVM's own table leaves out).

A packed convolution becomes one padding block (where it pads) and one reduction with plain, separate axes:
(n, oc, oh, ow, lane) over (ic, kh, kw, input lane); depthwise and first layers over (kh, kw) and (ic, kh, kw).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from tvmflow.ir.tvm_names import constant_value, type_of
from tvmflow.passes.images import padded_image, pair_columns, tileable_width
from tvmflow.passes.winograd import transform_weight, winograd_conv2d
from tvmflow.targets.cpu_features import (
    computes_in_bfloat16,
    is_cpu,
    multiplies_by_lane,
    multiplies_pairs,
    only_widens,
    sums_tiles,
)  # fmt: skip
from tvmflow.templates.pairs import PAIRED_BYTES, PAIRED_CONVOLUTION, PAIRED_LANES
from tvmflow.templates.tiles import TILED_CONVOLUTION

_OUT_ELEMENTWISE_FUSABLE = 4  # TVM's OpPatternKind: what follows element by element may be fused


def _out_dtype(call: Any) -> str | None:
    dtype = call.attrs.out_dtype
    return str(dtype) if dtype and str(dtype) != "void" else None


def convolution_key(call: Any) -> str:
    """Return what decides the algorithm of a packed convolution: shapes, padding, type. '' where there is no choice."""
    attrs, weight = call.attrs, constant_value(call.args[1])
    if weight is None or str(attrs.data_layout) == "NCHW" or str(attrs.out_layout) == "NCHW":
        return ""
    shape = tuple(int(d) for d in weight.shape)
    ones = all(int(v) == 1 for v in (*attrs.strides, *attrs.dilation, attrs.groups))
    dtype = str(weight.dtype)
    if len(shape) != 6 or shape[2:4] != (3, 3) or shape[4] != shape[5] or not ones:
        return ""
    if dtype != "float32" and (dtype != "bfloat16" or _out_dtype(call) != "float32"):
        return ""
    data = "x".join(str(int(d)) for d in type_of(call.args[0]).shape)
    key = f"{data} {'x'.join(map(str, shape))} p{','.join(str(int(p)) for p in attrs.padding)}"
    return key if dtype == "float32" else f"{key} {dtype}"


def convolutions(mod: Any) -> list[Any]:
    """Return the calls of conv2d in a module's main."""
    calls: list[Any] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.nn.conv2d":
            calls.append(expression)

    relax.analysis.post_order_visit(mod["main"], visit)
    return calls


def convolution_keys(mod: Any) -> list[str]:
    """Return the keys of a module's convolutions that could be computed in another way, each once."""
    return [key for key in dict.fromkeys(convolution_key(call) for call in convolutions(mod)) if key]


@dataclass(frozen=True)
class _Padding:
    """The kernel of a relax.nn.pad around images. before, after: rows, columns."""

    before: tuple[int, int]
    after: tuple[int, int]
    filling: float


def legalize_convolutions(winograd: Mapping[str, int]) -> dict[str, Callable[[Any, Any], Any]]:
    """Return how relax.nn.conv2d, relax.nn.pad and relax.add are lowered; needs a target in scope.

    A padding in front of a convolution (by an integer's zero point) becomes the convolution's own, as all others are. On arm64 an
    integer added to each channel of a sum is what the sum starts from.
    winograd: convolution key -> tile size m of those that are computed as F(m x m, 3 x 3).
    """
    paddings: dict[str, _Padding] = {}
    sums: dict[str, tuple[Any, ...]] = {}  # kernel -> arguments of packed_conv2d, of those that can start from integers

    def pad(builder: Any, call: Any) -> Any:
        found = call.op.get_attr("FLegalize")(builder, call)
        widths = [int(w) for w in call.attrs.pad_width]
        if len(widths) == 10 and not any(widths[:4] + widths[8:]) and str(call.attrs.pad_mode) == "constant":
            top, bottom, left, right = widths[4:8]
            paddings[_kernel_called(found)] = _Padding((top, left), (bottom, right), float(call.attrs.pad_value))
        return found

    def conv2d(builder: Any, call: Any) -> Any:
        return _legalize_conv2d(builder, call, winograd, paddings, sums)

    def add(builder: Any, call: Any) -> Any:
        total, offset = call.args
        made: Any = builder.lookup_binding(total) if isinstance(total, relax.Var) else None
        how, shape, values = sums.get(_kernel_called(made)), _shape(call), constant_value(offset)
        if how is None or values is None or [int(d) for d in values.shape] != [1, shape[1], 1, 1, *shape[4:]]:
            return call.op.get_attr("FLegalize")(builder, call)
        data, weight = made.args[1]
        return _packed(builder, data, weight, how, offset)

    return {"relax.nn.conv2d": conv2d, "relax.nn.pad": pad, "relax.add": add}


def _kernel_called(call: Any) -> str:
    """Return the name of the kernel that relax.call_tir calls; '' for anything else."""
    return str(call.args[0].name_hint) if getattr(getattr(call, "op", None), "name", "") == "relax.call_tir" else ""


def _legalize_conv2d(
    builder: Any,
    call: Any,
    winograd: Mapping[str, int],
    paddings: Mapping[str, _Padding],
    sums: dict[str, tuple[Any, ...]],
) -> Any:
    attrs = call.attrs
    strides, padding, dilation = ([int(v) for v in values] for values in (attrs.strides, attrs.padding, attrs.dilation))
    group = _summed_together(call)
    constant: Any = constant_value(call.args[1])
    m = winograd.get(convolution_key(call), 0)
    if m and (group or str(constant.dtype) == "float32"):
        weight = transform_weight(constant.numpy(), m)
        weight = interleave(weight, group) if group else weight
        return builder.call_te(
            winograd_conv2d, call.args[0], relax.const(weight, str(constant.dtype)), padding, m,
            primfunc_name_hint=f"conv2d_nchwc_winograd{m}", primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
        )  # fmt: skip
    if str(attrs.out_layout).startswith("NCHW") and str(attrs.out_layout) != "NCHW":
        tiled = group > 0 and constant.shape[-2:] == (16, 16) and sums_tiles(_target(), str(constant.dtype))
        data, padding, filling = _with_padding(builder, call.args[0], padding, paddings)
        if group and constant.shape[-1] == PAIRED_LANES and multiplies_pairs(_target(), str(constant.dtype)):
            weight, strides, padding = _in_pairs(constant.numpy(), group, _shape(data)[3], strides, padding, dilation)
        else:
            weight = _weight_of(call, group, tiled)
        how = (strides, padding, dilation, int(attrs.groups), _out_dtype(call), tiled, filling)
        found = _packed(builder, data, weight, how, None)
        if _out_dtype(call) == "int32" and multiplies_by_lane(_target()):
            sums[_kernel_called(found)] = how
        return found
    return builder.call_te(
        topi.nn.conv, inp=call.args[0], filt=call.args[1], stride=strides, padding=padding, dilation=dilation,
        groups=attrs.groups, data_layout=attrs.data_layout, kernel_layout=attrs.kernel_layout,
        out_dtype=_out_dtype(call), primfunc_name_hint="conv2d",
    )  # fmt: skip


def _in_pairs(
    weight: Any, group: int, width: int, strides: list[int], padding: list[int], dilation: list[int]
) -> tuple[Any, list[int], list[int]]:
    """Return the weight of a convolution as products of pairs read it, or as those by a lane do, with strides and padding in pixels of its image."""
    paired = pair_columns(weight, width, strides, padding, dilation)
    weight, strides, padding = paired or (weight, strides, padding)
    if weight.shape[4] == PAIRED_LANES:
        group = PAIRED_BYTES // weight.itemsize
    return relax.const(interleave(weight, group), str(weight.dtype)), strides, padding


def _packed(builder: Any, data: Any, weight: Any, how: tuple[Any, ...], offset: Any) -> Any:
    """Return the call of the kernel that computes packed_conv2d; how: its arguments between weight and offset."""
    return builder.call_te(
        packed_conv2d, data, weight, *how, offset, primfunc_name_hint="conv2d_nchwc",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )  # fmt: skip


def _shape(value: Any) -> list[int]:
    return [int(d) for d in type_of(value).shape]


def _with_padding(
    builder: Any, data: Any, padding: list[int], paddings: Mapping[str, _Padding]
) -> tuple[Any, list[int], float]:
    """Return what a convolution reads, its padding (top, left, bottom, right) and what fills it; a kernel that only pads is left out."""
    found = builder.lookup_binding(data) if isinstance(data, relax.Var) else None
    around = paddings.get(_kernel_called(found)) if isinstance(found, relax.Call) else None
    if around is None or any(padding):
        return data, padding, 0.0
    call: Any = found
    return call.args[1][0], [*around.before, *around.after], around.filling


def _summed_together(call: Any) -> int:
    """Return how many neighbouring channels an instruction of the target sums at once: 4 of int8, 2 where it only widens; 2 of bfloat16; else 0."""
    weight, data, total = constant_value(call.args[1]), str(type_of(call.args[0]).dtype), _out_dtype(call)
    if weight is None or len(weight.shape) != 6 or not is_cpu(_target()):
        return 0
    dtype, inner = str(weight.dtype), int(weight.shape[4])
    if dtype == "int8" and data in ("int8", "uint8") and total == "int32" and inner % 4 == 0:
        return 2 if only_widens(_target()) else 4
    if dtype == data == "bfloat16" and total == "float32" and inner % 2 == 0:
        return 2 if computes_in_bfloat16(_target()) else 0
    return 0


def _target() -> Any:
    return tvm.target.Target.current()


def _weight_of(call: Any, group: int, tiled: bool) -> Any:
    """Return the weight of a packed convolution as its kernel reads it: interleaved by `group`, or widened, or as it is.

    Depthwise ones are in float32, where that computes the same, and faster: sums of few products of int8 are exact in float32; products of
    16-bit values are summed in float32 anyway. arm64 has int8 widened to 16 bits, and multiplies those into 32.
    """
    weight: Any = constant_value(call.args[1])
    if group:
        interleaved = interleave(weight.numpy(), group)
        if tiled:
            interleaved = np.ascontiguousarray(interleaved.transpose(0, 2, 3, 1, 4, 5, 6))
        return relax.const(interleaved, str(weight.dtype))
    if weight is None or len(weight.shape) != 5 or len(type_of(call.args[0]).shape) != 5:
        return call.args[1]
    data, dtype, taps = str(type_of(call.args[0]).dtype), str(weight.dtype), int(weight.shape[2]) * int(weight.shape[3])
    of_int8 = (
        data in ("int8", "uint8") and dtype == "int8" and taps * 255 * 128 < 2**24 and not multiplies_by_lane(_target())
    )
    if of_int8 or (data == dtype in ("bfloat16", "float16") and _out_dtype(call) == "float32"):
        return relax.const(weight.numpy().astype(np.float32), "float32")
    return call.args[1]


def interleave(weight: Any, group: int) -> Any:
    """(OC, IC, KH, KW, b of I, b of O) -> (OC, IC, KH, KW, b/group of I, b of O, group of I), as dot products read it."""
    oc, ic, kh, kw, inner, lanes = weight.shape
    split = weight.reshape(oc, ic, kh, kw, inner // group, group, lanes)
    return np.ascontiguousarray(split.transpose(0, 1, 2, 3, 4, 6, 5))


def packed_conv2d(
    data: Any, weight: Any, strides: list[int], padding: list[int], dilation: list[int], groups: int,
    out_dtype: str | None, tiled: bool = False, filling: float = 0.0, offset: Any = None,
) -> Any:  # fmt: skip
    """Return the te.Tensor (N, OC, OH, OW, lane) of a convolution.

    data: (N, C, H, W) or (N, C/b, H, W, b), with half the channels of a weight where two columns are paired (then padding counts pairs); weight: (OC, I, KH, KW, b) of a first layer or a depthwise convolution, or
    (OC, IC, KH, KW, b of I, b of O), or interleaved (OC, IC, KH, KW, b/4, b of O, 4) of int8, with 2 of bfloat16, with 8 and 4
    for products of pairs, and, as matrix tiles read it, (OC, KH, KW, IC, b/4, b of O, 4); padding: top, left, bottom, right, of `filling`; offset: what sums start
    from, (1, OC, 1, 1, lane) of the output's type, None for 0.
    """
    dtype = out_dtype or str(data.dtype)
    top, left, bottom, right = padding
    (sh, sw), (dh, dw) = strides, dilation
    depthwise = len(weight.shape) == 5 and len(data.shape) == 5
    # Of a depthwise convolution each value is read by every tap, so it is widened once, where the padding is copied.
    read_dtype = str(data.dtype)
    if depthwise:
        read_dtype = "int16" if str(weight.dtype) == "int8" else str(weight.dtype)
    columns = int(weight.shape[4]) * int(weight.shape[6]) // int(data.shape[-1]) if len(weight.shape) == 7 else 1
    oc, _, kh, kw = (int(weight.shape[axis]) for axis in ((0, 3, 1, 2) if tiled else (0, 1, 2, 3)))
    reach = (kw - 1) * dw + 1
    width = int(data.shape[3]) // columns + left + right
    out_width = (width - reach) // sw + 1
    computed = tileable_width(out_width, multiplies_by_lane(_target())) if is_cpu(_target()) else out_width
    right += max((computed - 1) * sw + reach - width, 0)
    if top or left or bottom or right or columns > 1 or read_dtype != str(data.dtype):
        data = padded_image(data, padding[:2], [bottom, right], read_dtype, filling, columns)
    n, _, height, _ = (int(d) for d in data.shape[:4])
    lanes = int(weight.shape[-2 if len(weight.shape) == 7 else -1])
    shape = (n, oc, (height - (kh - 1) * dh - 1) // sh + 1, computed, lanes)
    steps, sums = (sh, dh, sw, dw), _Sums(dtype, offset)
    if depthwise:
        return _cropped(_depthwise(data, weight, shape, steps, read_dtype, sums), out_width)
    if len(weight.shape) == 5:
        return _cropped(_first(data, weight, shape, steps, sums), out_width)
    return _cropped(_whole(data, weight, shape, steps, sums, groups, tiled), out_width)


Steps = tuple[int, int, int, int]  # stride and dilation of rows, stride and dilation of columns


@dataclass(frozen=True)
class _Sums:
    """dtype: of sums; offset: what they start from, a te.Tensor (1, OC, 1, 1, lane), None for 0."""

    dtype: str
    offset: Any

    def of(self, terms: Any, axis: list[Any], index: tuple[Any, ...]) -> Any:
        """Return the sum of terms over axes, for the output at an index (b, o, h, w, lane)."""
        if self.offset is None:
            return te.sum(terms, axis=axis)
        start = self.offset[0, index[1], 0, 0, index[4]]
        return te.comm_reducer(lambda x, y: x + y, lambda _dtype: start, name="sum")(terms, axis=axis)


def _term(total: str, pixel: Any, value: Any) -> Any:
    return pixel.astype(total) * value.astype(total)


def _depthwise(data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, read_dtype: str, sums: _Sums) -> Any:
    """Sum every channel by itself; of float32 exactly, whatever is read, and brought to the type of the output after."""
    sh, dh, sw, dw = steps
    y, x = te.reduce_axis((0, int(weight.shape[2])), "kh"), te.reduce_axis((0, int(weight.shape[3])), "kw")
    dtype = sums.dtype
    total = read_dtype if read_dtype == "float32" else dtype
    output = te.compute(
        shape,
        lambda b, o, h, w, v: sums.of(
            _term(total, data[b, o, h * sh + y * dh, w * sw + x * dw, v], weight[o, 0, y, x, v]),
            [y, x],
            (b, o, h, w, v),
        ),
        name="depthwise_conv2d",
    )
    return (
        output
        if total == dtype
        else te.compute(output.shape, lambda *indices: output[indices].astype(dtype), name="exact")
    )


def _first(data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, sums: _Sums) -> Any:
    """Sum an image in NCHW, of few channels."""
    sh, dh, sw, dw = steps
    y, x = te.reduce_axis((0, int(weight.shape[2])), "kh"), te.reduce_axis((0, int(weight.shape[3])), "kw")
    i = te.reduce_axis((0, int(weight.shape[1])), "ic")
    return te.compute(
        shape,
        lambda b, o, h, w, v: sums.of(
            _term(sums.dtype, data[b, i, h * sh + y * dh, w * sw + x * dw], weight[o, i, y, x, v]),
            [i, y, x],
            (b, o, h, w, v),
        ),
        name="first_conv2d",
    )


def _whole(
    data: Any, weight: Any, shape: tuple[int, ...], steps: Steps, sums: _Sums, groups: int, tiled: bool
) -> Any:  # fmt: skip
    """Sum packed channels, one by one or by neighbours that an instruction sums; see packed_conv2d."""
    (sh, dh, sw, dw), per_group = steps, shape[1] // groups
    _, ic, kh, kw = (int(weight.shape[axis]) for axis in ((0, 3, 1, 2) if tiled else (0, 1, 2, 3)))
    y, x = te.reduce_axis((0, kh), "kh"), te.reduce_axis((0, kw), "kw")
    i, u = te.reduce_axis((0, ic), "ic"), te.reduce_axis((0, int(weight.shape[4])), "ic_lane")

    def first(o: Any) -> Any:
        return i if groups == 1 else (o // per_group) * ic + i

    def pixel(b: Any, o: Any, h: Any, w: Any, lane: Any) -> Any:
        return data[b, first(o), h * sh + y * dh, w * sw + x * dw, lane]

    if len(weight.shape) == 6:
        return te.compute(
            shape,
            lambda b, o, h, w, v: sums.of(
                _term(sums.dtype, pixel(b, o, h, w, u), weight[o, i, y, x, u, v]), [i, y, x, u], (b, o, h, w, v)
            ),
            name="conv2d",
        )
    group = int(weight.shape[6])
    q = te.reduce_axis((0, group), "ic_byte" if group == 4 else "ic_pair")
    order = (y, x, i) if tiled else (i, y, x)
    # the names are part of the keys of tuning records
    name = TILED_CONVOLUTION if tiled else "conv2d_bytes" if group == 4 else "conv2d_pairs"
    if group * tvm.DataType(str(weight.dtype)).bits == 8 * PAIRED_BYTES:
        name = PAIRED_CONVOLUTION
    return te.compute(
        shape,
        lambda b, o, h, w, v: sums.of(
            _term(sums.dtype, pixel(b, o, h, w, u * group + q), weight[o, *order, u, v, q]),
            [*order, u, q],
            (b, o, h, w, v),
        ),
        name=name,
    )


def _cropped(output: Any, width: int) -> Any:
    """Return a convolution without the columns that were computed only to fill a tile."""
    if int(output.shape[3]) == width:
        return output
    n, oc, height, _, lanes = output.shape
    return te.compute((n, oc, height, width, lanes), lambda b, o, h, w, v: output[b, o, h, w, v], name="crop")
