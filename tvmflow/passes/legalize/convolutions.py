"""Lower conv2d to TensorIR in NCHW and packed layouts.

TVM's own table lacks the packed layouts. Weights are packed for the instructions of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, topi

from tvmflow.ir.tir.packed_words import BYTES, words_of_weight
from tvmflow.ir.tvm_compat import Call, Expr, IRModule, constant_value, operator_of, shape_of, type_of
from tvmflow.passes.legalize.packed_convolution import interleave, packed_conv2d
from tvmflow.passes.legalize.padded_image import pair_columns
from tvmflow.passes.legalize.winograd import transform_weight, winograd_conv2d
from tvmflow.schedules.intrinsics.arm_mmla import PAIRED_BYTES, PAIRED_LANES
from tvmflow.targets.cpu_features import (
    computes_in_bfloat16,
    has_amx,
    has_mmla,
    has_word_dot,
    is_cpu,
    multiplies_by_lane,
    only_multiplies_int16,
    only_widens,
)

_MOST_DILATION = 4  # of Winograd tiles: larger dilations interleave more tiles than a cache holds
_HALVED = 16  # channels of a block that is split into halves if the last half is all padding
_OUT_ELEMENTWISE_FUSABLE = 4  # TVM's OpPatternKind: elementwise operators behind it may be fused


def _out_dtype(call: Call) -> str | None:
    dtype = call.attrs.out_dtype
    return str(dtype) if dtype and str(dtype) != "void" else None


def convolution_key(call: Call) -> str:
    """Return a key of the properties that decide a packed convolution's algorithm: shapes, padding, type.

    '' if there is no alternative algorithm.
    """
    attrs, weight = call.attrs, constant_value(call.args[1])
    if weight is None or str(attrs.data_layout) == "NCHW" or str(attrs.out_layout) == "NCHW":
        return ""
    shape = tuple(int(d) for d in weight.shape)
    ones = all(int(v) == 1 for v in (*attrs.strides, attrs.groups))
    down, across = (int(d) for d in attrs.dilation)
    dtype = str(weight.dtype)
    if (
        len(shape) != 6
        or shape[2:4] != (3, 3)
        or shape[4] != shape[5]
        or not ones
        or not down == across <= _MOST_DILATION
    ):
        return ""
    if not winograd_dtype(call):
        return ""
    data = "x".join(str(int(d)) for d in type_of(call.args[0]).shape)
    key = f"{data} {'x'.join(map(str, shape))} p{','.join(str(int(p)) for p in attrs.padding)}"
    key = key if down == 1 else f"{key} d{down}"
    return key if dtype == "float32" else f"{key} {dtype}{'_acc32' if _adds_in_float32(call) else ''}"


def winograd_dtype(call: Call) -> str:
    """Return the type in which Winograd's algorithm stores tiles and weights of a convolution, '' if it cannot compute
    it.
    """
    weight: Any = constant_value(call.args[1])
    dtype = str(weight.dtype)
    if dtype == "bfloat16":
        return dtype if _out_dtype(call) == "float32" else ""
    if dtype == "float16":
        return "float32" if _adds_in_float32(call) else dtype
    return dtype if dtype == "float32" else ""


def _adds_in_float32(call: Call) -> bool:
    """Whether a convolution of float16 sums in float32."""
    weight: Any = constant_value(call.args[1])
    return str(weight.dtype) == "float16" and _out_dtype(call) == "float32"


def convolutions(mod: IRModule) -> list[Any]:
    """Return the conv2d calls of a module's main."""
    calls: list[Any] = []

    def visit(expression: Expr) -> None:
        if isinstance(expression, relax.Call) and getattr(expression.op, "name", "") == "relax.nn.conv2d":
            calls.append(expression)

    relax.analysis.post_order_visit(mod["main"], visit)
    return calls


def count_packed_convolutions(mod: IRModule) -> tuple[int, int]:
    """Return how many convolutions of a module write packed channels, and how many there are."""
    layouts = [str(call.attrs.out_layout) for call in convolutions(mod)]
    return sum(layout not in ("NCHW", "") for layout in layouts), len(layouts)


def list_convolution_keys(mod: IRModule) -> list[str]:
    """Return the unique keys of a module's convolutions that have an alternative algorithm."""
    return [key for key in dict.fromkeys(convolution_key(call) for call in convolutions(mod)) if key]


@dataclass(frozen=True)
class _Padding:
    """The kernel of a relax.nn.pad around images. before, after: rows, columns."""

    before: tuple[int, int]
    after: tuple[int, int]
    filling: float


def legalize_convolutions(winograd: Mapping[str, int]) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the lowering of relax.nn.conv2d, relax.nn.pad and relax.add; needs a current target.

    A padding in front of a convolution (with the zero point) becomes part of its kernel. On arm64, a bias
    becomes the initial value of the sums. winograd: convolution key -> tile size m of convolutions to compute as F(m x
    m, 3 x 3).
    """
    paddings: dict[str, _Padding] = {}
    sums: dict[
        str, tuple[Any, ...]
    ] = {}  # kernel -> arguments of packed_conv2d, for kernels whose sums can start from a bias

    def pad(builder: Any, call: Call) -> Any:
        found = call.op.get_attr("FLegalize")(builder, call)
        widths = [int(w) for w in call.attrs.pad_width]
        if len(widths) == 10 and not any(widths[:4] + widths[8:]) and str(call.attrs.pad_mode) == "constant":
            top, bottom, left, right = widths[4:8]
            paddings[_called_kernel(found)] = _Padding((top, left), (bottom, right), float(call.attrs.pad_value))
        return found

    def conv2d(builder: Any, call: Call) -> Any:
        return _legalize_conv2d(builder, call, winograd, paddings, sums)

    def add(builder: Any, call: Call) -> Any:
        total, offset = call.args
        made: Any = builder.lookup_binding(total) if isinstance(total, relax.Var) else None
        arguments, shape, values = sums.get(_called_kernel(made)), shape_of(call), constant_value(offset)
        if arguments is None or values is None or [int(d) for d in values.shape] != [1, shape[1], 1, 1, *shape[4:]]:
            return call.op.get_attr("FLegalize")(builder, call)
        data, weight = made.args[1]
        return _call_packed_conv2d(builder, data, weight, arguments, offset)

    return {"relax.nn.conv2d": conv2d, "relax.nn.pad": pad, "relax.add": add}


def _called_kernel(call: Call) -> str:
    """Return the name of the kernel that a relax.call_tir calls, '' for anything else."""
    return str(call.args[0].name_hint) if operator_of(call) == "relax.call_tir" else ""


def _legalize_conv2d(
    builder: Any,
    call: Call,
    winograd: Mapping[str, int],
    paddings: Mapping[str, _Padding],
    sums: dict[str, tuple[Any, ...]],
) -> Any:
    attrs = call.attrs
    strides, padding, dilation = ([int(v) for v in values] for values in (attrs.strides, attrs.padding, attrs.dilation))
    group = _dot_product_width(call)
    constant: Any = constant_value(call.args[1])
    m = winograd.get(convolution_key(call), 0)
    if m and (group or winograd_dtype(call) in ("float32", "float16")):
        return _call_winograd(builder, call, group, padding, m, dilation[0])
    if str(attrs.out_layout).startswith("NCHW") and str(attrs.out_layout) != "NCHW":
        in_parts = (
            len(constant.shape) == 6 and constant.shape[4] < shape_of(call.args[0])[4]
        )  # whether groups are parts of a block
        tiled = (group > 0 and not in_parts and _fits_tiles(constant.shape) and _fills_rows(call)) and has_amx(
            _target(), str(constant.dtype)
        )
        data, padding, filling = _absorb_padding(builder, call.args[0], padding, paddings)
        pairs = group > 0 and not in_parts and constant.shape[-1] == PAIRED_LANES
        if pairs and has_mmla(_target(), str(constant.dtype)):
            weight, strides, padding = _interleave_pairs(
                constant.numpy(), group, shape_of(data)[3], strides, padding, dilation
            )
        else:
            weight = _prepare_weight(call, group, tiled)
        if not group and not in_parts and int(attrs.groups) == 1:
            weight = _drop_zero_half(weight)
        arguments = (strides, padding, dilation, int(attrs.groups), _out_dtype(call), tiled, filling)
        found = _call_packed_conv2d(builder, data, weight, arguments, None)
        computed = _out_dtype(call) in ("int32", "float32", "float16") and str(constant.dtype) != "bfloat16"
        if computed and multiplies_by_lane(_target()):
            sums[_called_kernel(found)] = arguments
        return found
    return builder.call_te(
        topi.nn.conv,
        inp=call.args[0],
        filt=call.args[1],
        stride=strides,
        padding=padding,
        dilation=dilation,
        groups=attrs.groups,
        data_layout=attrs.data_layout,
        kernel_layout=attrs.kernel_layout,
        out_dtype=_out_dtype(call),
        primfunc_name_hint="conv2d",
    )


def _call_winograd(builder: Any, call: Call, group: int, padding: list[int], m: int, dilation: int) -> Any:
    constant: Any = constant_value(call.args[1])
    dtype = winograd_dtype(call)
    values = constant.numpy()
    weight = transform_weight(values if str(values.dtype) == dtype else values.astype(dtype), m)
    return builder.call_te(
        winograd_conv2d,
        call.args[0],
        relax.const(interleave(weight, group) if group else weight, dtype),
        padding,
        m,
        dilation,
        multiplies_by_lane(_target()) and dtype != "float16",  # half of a tile of which fits registers
        primfunc_name_hint=f"conv2d_nchwc_winograd{m}",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def _fits_tiles(weight: Sequence[int]) -> bool:
    """Whether a weight (OC, IC, KH, KW, b of I, b of O) has blocks of 16 channels; a first layer has one block of
    inputs.
    """
    return int(weight[-1]) == 16 and (int(weight[-2]) == 16 or int(weight[1]) == 1)


def _fills_rows(call: Call) -> bool:
    """Whether there is more than one pixel of outputs: a tile of one row costs four times a dot product."""
    batch, _, height, width, _ = shape_of(call)
    return int(batch) * int(height) * int(width) > 1


def _drop_zero_half(weight: Any) -> Any:
    """Return a weight (OC, IC, KH, KW, b of I, b of O) in half blocks without the last one, if that is all padding.

    With 24 channels in blocks of 16, a quarter of all multiplications was with zeros.
    """
    values: Any = constant_value(weight)
    shape = tuple(int(d) for d in values.shape)
    if len(shape) != 6 or shape[1] < 2 or shape[4:] != (_HALVED, _HALVED):
        return weight
    half, array = _HALVED // 2, values.numpy()
    if array[:, -1, :, :, half:].any():
        return weight
    oc, ic, kh, kw = shape[:4]
    halves = array.reshape(oc, ic, kh, kw, 2, half, _HALVED).transpose(0, 1, 4, 2, 3, 5, 6)
    return relax.const(
        np.ascontiguousarray(halves.reshape(oc, 2 * ic, kh, kw, half, _HALVED)[:, :-1]), str(array.dtype)
    )


def _interleave_pairs(
    weight: Any, group: int, width: int, strides: list[int], padding: list[int], dilation: list[int]
) -> tuple[Any, list[int], list[int]]:
    """Return the weight of a convolution interleaved for MMLA or lane instructions, with strides and padding in image
    pixels.
    """
    paired = pair_columns(weight, width, strides, padding, dilation)
    weight, strides, padding = paired or (weight, strides, padding)
    if weight.shape[4] == PAIRED_LANES:
        group = PAIRED_BYTES // weight.itemsize
    return relax.const(interleave(weight, group), str(weight.dtype)), strides, padding


def _call_packed_conv2d(builder: Any, data: Any, weight: Any, arguments: tuple[Any, ...], offset: Any) -> Any:
    """Return the call of the kernel that computes packed_conv2d; arguments: those between weight and offset."""
    return builder.call_te(
        packed_conv2d,
        data,
        weight,
        *arguments,
        offset,
        primfunc_name_hint="conv2d_nchwc",
        primfunc_attrs={"op_pattern": _OUT_ELEMENTWISE_FUSABLE},
    )


def _absorb_padding(
    builder: Any, data: Any, padding: list[int], paddings: Mapping[str, _Padding]
) -> tuple[Any, list[int], float]:
    """Return the input of a convolution, its padding (top, left, bottom, right) and its value.

    A kernel that only pads is skipped.
    """
    found = builder.lookup_binding(data) if isinstance(data, relax.Var) else None
    pad_kernel = paddings.get(_called_kernel(found)) if isinstance(found, relax.Call) else None
    if pad_kernel is None or any(padding):
        return data, padding, 0.0
    call: Call = found
    return call.args[1][0], [*pad_kernel.before, *pad_kernel.after], pad_kernel.filling


def _dot_product_width(call: Call) -> int:
    """Return how many neighbouring channels an instruction of the target sums, 0 for none.

    4 of int8, 2 where int8 is widened; 2 of bfloat16.
    """
    weight, data, total = constant_value(call.args[1]), str(type_of(call.args[0]).dtype), _out_dtype(call)
    if weight is None or len(weight.shape) != 6 or not is_cpu(_target()):
        return 0
    dtype, inner = str(weight.dtype), int(weight.shape[4])
    if dtype == "int8" and data in ("int8", "uint8") and total == "int32" and inner % 4 == 0:
        return 2 if only_widens(_target()) or only_multiplies_int16(_target()) else 4
    if dtype == data == "bfloat16" and total == "float32" and inner % 2 == 0:
        return 2 if computes_in_bfloat16(_target()) else 0
    return 0


def _uses_words(call: Call, weight: Any) -> bool:
    """Whether a GPU computes a convolution by dot products of words."""
    if weight is None or len(weight.shape) != 6 or int(weight.shape[4]) != BYTES or not has_word_dot(_target()):
        return False
    return str(weight.dtype) == str(type_of(call.args[0]).dtype) == "int8" and _out_dtype(call) == "int32"


def _target() -> Any:
    return tvm.target.Target.current()


def _prepare_weight(call: Call, group: int, tiled: bool) -> Any:
    """Return the weight of a packed convolution as its kernel reads it: interleaved by `group`, widened, or unchanged.

    Depthwise weights become float32 where the result is equal and faster: sums of few int8 products are exact in
    float32, and products of 16-bit values are summed in float32 anyway. arm64 widens int8 to 16 bits and multiplies
    into 32.
    """
    weight: Any = constant_value(call.args[1])
    if _uses_words(call, weight):
        return relax.const(words_of_weight(weight.numpy()), "int32")
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
