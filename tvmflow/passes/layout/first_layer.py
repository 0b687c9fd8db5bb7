"""Pack an int8 input with few channels (RGB) to NHWC words, with its padding.

As a chain of operators, each interleaved value would be loaded and stored separately. Here vectors of each channel are
shifted into wider words, which are stored whole. Operators before the packing, such as quantize, are computed on
planes. For AMX tiles, which multiply 64 bytes at a time, one pixel holds the channels of several rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.graph import Array, Graph, Step, TensorKind
from tvmflow.ir.tir.blocks import IMPORTED_LLVM
from tvmflow.passes.layout.pool_resize_pad import pads_image
from tvmflow.passes.layout.weights import pack_both
from tvmflow.passes.legalize.batch_matmul import OPAQUE, buffer_type, choose_line_loop, parse_kernel, select_inside
from tvmflow.schedules.intrinsics.amx import tile_depth

_PIXELS = 16  # pixels of a vector
_BITS = 8  # bits of a value: words of wider values gain nothing
_FEWER = 0.6  # share of multiplications below which combined rows pay: two in place of three was not faster
_LANES = 8  # most bytes of a pixel: LLVM scalarizes vectors of wider words

_SOURCE = """
@T.prim_func(s_tir=True)
def side_by_side(image: {image}, out: {out}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": {pattern}}})
    with T.sblock("root"):
        T.sblock_attr({{"{imported}": {llvm!r}}})
        for line in {loop}({lines}):
            with T.sblock("line"):
                at = T.axis.spatial({lines}, line)
                T.reads(image[at // {rows}, 0:{channels}, 0:{height}, 0:{width}])
                T.writes(out[at // {rows}, 0, at % {rows}, 0:{columns}, 0:{lanes}])
                for column, channel in T.grid({left}, {lanes}):
                    out[at // {rows}, 0, at % {rows}, column, channel] = {padded}
                T.evaluate(T.call_extern(
                    "int32", "{name}", T.address_of(out[at // {rows}, 0, at % {rows}, {left}, 0]),
                    T.address_of(image[at // {rows}, 0, 0, 0]), T.Cast("int64", at % {rows} * {stride} - {top})))
                for column, channel in T.grid({right}, {lanes}):
                    out[at // {rows}, 0, at % {rows}, {left} + {width} + column, channel] = {padded}
"""
# The last vector of a row ends with the row and overlaps the one before. Rows above and below the image are read from a
# constant row of padding.
_CODE = """
@{name}_padding = weak_odr hidden constant [{width} x i8] [{padding}]
define weak_odr i32 @{name}(ptr %out, ptr %image, i64 %first) alwaysinline nounwind {{
entry:
{lines}
  br label %vector
vector:
  %i = phi i64 [ 0, %entry ], [ %next, %vector ]
  %behind = icmp ugt i64 %i, {last}
  %at = select i1 %behind, i64 {last}, i64 %i
{channels}
  %to = getelementptr {word}, ptr %out, i64 %at
  store <16 x {word}> %sum{top}, ptr %to, align 1
  %next = add i64 %i, 16
  %more = icmp ult i64 %next, {width}
  br i1 %more, label %vector, label %end
end:
  ret i32 0
}}
"""
_LINE = """  %row{r} = add i64 %first, {offset}
  %inside{r} = icmp ult i64 %row{r}, {height}
  %begin{r} = mul i64 %row{r}, {width}
  %start{r} = getelementptr i8, ptr %image, i64 %begin{r}
  %line{r} = select i1 %inside{r}, ptr %start{r}, ptr @{name}_padding
  %plane{r} = select i1 %inside{r}, i64 {plane}, i64 0"""
_CHANNEL = """  %offset{k} = mul i64 %plane{r}, {c}
  %from{k} = getelementptr i8, ptr %line{r}, i64 %offset{k}
  %place{k} = getelementptr i8, ptr %from{k}, i64 %at
  %value{k} = load <16 x i8>, ptr %place{k}, align 1
  %wide{k} = zext <16 x i8> %value{k} to <16 x {word}>
  %moved{k} = shl <16 x {word}> %wide{k}, splat ({word} {shift})
  %sum{k} = or <16 x {word}> %moved{k}, {before}"""


@dataclass(frozen=True)
class CombinedRows:
    """The rows that one pixel combines.

    count: how many; apart: their distance; stride: distance of the first rows of neighbouring lines; made: number of
    lines, None for all.
    """

    count: int = 1
    apart: int = 1
    stride: int = 1
    made: int | None = None


@dataclass(frozen=True)
class PaddedImage:
    """The source of a padded image, the padding (top, bottom, left, right) and its value."""

    name: str
    widths: tuple[int, ...] = (0, 0, 0, 0)
    value: int = 0


def pack_image(builder: Any, graph: Graph, plain: Callable[[str], Any], name: str, lanes: int, as_words: bool) -> Any:
    """Return an image (N, C, H, W) as (N, 1, H, W, lanes), with channels padded with zeros.

    plain: returns a value (N, C, H, W) by its name; as_words: pack int8 by words, where the processor has no
    interleaving store.
    """
    kind = graph.kind(name)
    if as_words and lanes <= _LANES:
        source = _find_padding(graph, name)
        if _fits_vectors(graph, source.name):
            return pack_pixels(builder, plain(source.name), graph.kind(source.name), lanes, source, CombinedRows())
    value, (n, c, h, w) = plain(name), kind.shape
    if lanes > c:
        value = builder.emit(relax.op.nn.pad(value, [0, 0, 0, lanes - c, 0, 0, 0, 0]))
    return relax.op.permute_dims(relax.op.reshape(value, (n, 1, lanes, h, w)), [0, 1, 3, 4, 2])


def _fits_vectors(graph: Graph, name: str) -> bool:
    kind = graph.kind(name)
    return kind.dtype in ("int8", "uint8") and kind.shape[3] >= _PIXELS


def _find_padding(graph: Graph, name: str) -> PaddedImage:
    """Return the source and padding of an image; the image itself if nothing pads it."""
    step = None if name in graph.inputs else graph.step(name)
    if step is None or not pads_image(step) or str(step.call.attrs.pad_mode) != "constant":
        return PaddedImage(name)
    widths = tuple(int(width) for width in step.call.attrs.pad_width[4:])
    return PaddedImage(step.refs[0], widths, int(step.call.attrs.pad_value))


def pack_pixels(builder: Any, value: Any, kind: TensorKind, lanes: int, padded: PaddedImage, rows: CombinedRows) -> Any:
    """Return an image (N, C, H, W) as (N, 1, lines, columns, lanes): the channels of a pixel's rows, row by row."""
    n, channels, height, width = kind.shape
    top, bottom, left, right = padded.widths
    lines = rows.made or height + top + bottom
    columns, used = width + left + right, channels * rows.count
    made = (n, 1, lines, columns, lanes)
    name = "_".join(
        str(part)
        for part in (
            "tvmflow_side_by_side",
            kind.dtype,
            lanes,
            *kind.shape[1:],
            rows.count,
            rows.apart,
            padded.value % 256,
        )
    )
    function = parse_kernel(
        _SOURCE,
        {
            "image": buffer_type(kind.shape, kind.dtype),
            "out": buffer_type(made, kind.dtype),
            "pattern": OPAQUE,
            "imported": IMPORTED_LLVM,
            "llvm": _llvm_code(name, kind, lanes, padded, rows),
            "loop": choose_line_loop(n * lines * columns * lanes),
            "lines": n * lines,
            "rows": lines,
            "columns": columns,
            "channels": channels,
            "lanes": lanes,
            "height": height,
            "width": width,
            "top": top,
            "stride": rows.stride,
            "left": left,
            "right": right,
            "name": name,
            "padded": select_inside("channel", used, lanes, f"T.{kind.dtype}({padded.value})", f"T.{kind.dtype}(0)"),
        },
    )
    return relax.call_tir(builder.add_func(function, "side_by_side"), [value], relax.TensorType(made, kind.dtype))


def _llvm_code(name: str, kind: TensorKind, lanes: int, padded: PaddedImage, rows: CombinedRows) -> str:
    """Return LLVM code of the function `name` that writes one line of pixels."""
    _, channels, height, width = kind.shape
    used, word = channels * rows.count, f"i{_BITS * lanes}"
    starts = [
        _LINE.format(r=r, offset=r * rows.apart, height=height, width=width, plane=height * width, name=name)
        for r in range(rows.count)
    ]
    parts = [
        _CHANNEL.format(
            k=k,
            r=k // channels,
            c=k % channels,
            word=word,
            shift=k * _BITS,
            before=f"%sum{k - 1}" if k else "zeroinitializer",
        )
        for k in range(used)
    ]
    return _CODE.format(
        name=name,
        last=width - _PIXELS,
        lines="\n".join(starts),
        channels="\n".join(parts),
        word=word,
        top=used - 1,
        width=width,
        padding=", ".join([f"i8 {padded.value}"] * width),
    )


@dataclass(frozen=True)
class RowCombination:
    """A convolution of an image of few channels, several rows of which are combined as channels of one pixel.

    weight: (O, channels, KH, KW); strides, dilation: of the packed image, which includes the padding of `source`.
    """

    source: PaddedImage
    kind: TensorKind
    rows: CombinedRows
    lanes: int
    weight: Array
    strides: tuple[int, int]
    dilation: tuple[int, int]

    def emit(self, builder: Any, image: Any, block: int, dtype: str) -> Any:
        """Emit the convolution of an image (N, C, H, W) without padding: (N, O/block, OH, OW, block)."""
        data = pack_pixels(builder, image, self.kind, self.lanes, self.source, self.rows)
        return relax.op.nn.conv2d(
            builder.emit(data, f"{self.source.name}_few"),
            constant(pack_both(self.weight, block, self.lanes), str(self.weight.dtype)),
            strides=list(self.strides),
            padding=0,
            dilation=list(self.dilation),
            data_layout=f"NCHW{self.lanes}c",
            out_layout=f"NCHW{block}c",
            kernel_layout=f"OIHW{self.lanes}i{block}o",
            out_dtype=dtype,
        )


def choose_row_combination(graph: Graph, name: str, step: Step, padding: list[int]) -> RowCombination | None:
    """Return how a convolution for AMX tiles combines rows of its image, None if that saves too few multiplications.

    padding: zeros (top, left, bottom, right) around the value of that name.
    """
    weight, source = np.asarray(step.args[1]), _find_padding(graph, name)
    (sh, sw), (dh, dw) = ([int(v) for v in values] for values in (step.call.attrs.strides, step.call.attrs.dilation))
    outputs, channels, kh, kw = weight.shape
    count = min(_LANES // channels, kh)
    if count < 2 or count * dh % sh or str(weight.dtype) != "int8" or not _fits_vectors(graph, source.name):
        return None
    if any(padding):
        if source.name != name:
            return None
        top, left, bottom, right = padding
        source = PaddedImage(name, (top, bottom, left, right))
    lanes, groups = -(-count * channels // 4) * 4, -(-kh // count)
    if groups * _count_tile_multiplications(kw, dw, lanes) > _FEWER * kh * _count_tile_multiplications(
        kw, dw, -(-channels // 4) * 4
    ):
        return None
    kind = graph.kind(source.name)
    height, between = kind.shape[2] + sum(source.widths[:2]), count * dh // sh
    lines = (height - (kh - 1) * dh - 1) // sh + 1 + (groups - 1) * between
    full = np.pad(weight, ((0, 0), (0, 0), (0, groups * count - kh), (0, 0)))
    split = full.reshape(outputs, channels, groups, count, kw).transpose(0, 3, 1, 2, 4)
    of_rows = np.ascontiguousarray(split.reshape(outputs, count * channels, groups, kw))
    return RowCombination(source, kind, CombinedRows(count, dh, sh, lines), lanes, of_rows, (1, sw), (between, dw))


def _count_tile_multiplications(columns: int, dilation: int, lanes: int) -> int:
    """Return the tile multiplications of one row of a filter."""
    words = (columns if dilation == 1 else 1) * lanes // 4
    return (1 if dilation == 1 else columns) * words // tile_depth(words)
