"""An image of bytes of few channels, a network's input, with the channels of each pixel side by side, and pixels around
it.

As a chain of operators it is computed value by value: what is stored side by side is read from planes. Here vectors of
each channel become the bytes of wider words, which are stored whole. What the image is made of, rounded to bytes for
example, is computed in planes before. For matrix tiles, which sum 64 bytes at a time, pixels of several rows lie side
by side, too.
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
from tvmflow.passes.legalize.batch_matmul import OPAQUE, buffer_of, function_of, line_loop, within
from tvmflow.schedules.intrinsics.amx import tile_depth

_PIXELS = 16  # of a vector
_BITS = 8  # of a value: words of wider ones gain nothing
_FEWER = 0.6  # products for which an image of several rows in each pixel pays: two in place of three won nothing
_LANES = 8  # bytes of a pixel, at most: vectors of wider words are computed word by word

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
# The last vector of a row ends with it, and overlaps the one before. Rows above and below the image are read from a row
# of what it is padded with.
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
class Rows:
    """A pixel's rows that lie side by side: how many, so far apart, from every stride-th row of the padded image on;
    made: how many lines there are, None: all.
    """

    count: int = 1
    apart: int = 1
    stride: int = 1
    made: int | None = None


@dataclass(frozen=True)
class Padded:
    """What an image is padded from, by how many pixels at the top, bottom, left and right, and their value."""

    name: str
    widths: tuple[int, ...] = (0, 0, 0, 0)
    value: int = 0


def image_of_few(builder: Any, graph: Graph, plain: Callable[[str], Any], name: str, lanes: int, as_words: bool) -> Any:
    """Return an image of a network, (N, C, H, W), as (N, 1, H, W, lanes), channels filled up with zeros.

    plain: gives a value, (N, C, H, W), by its name. as_words: bytes are moved by words, where the processor has no
    instruction that stores vectors side by side.
    """
    kind = graph.kind(name)
    if as_words and lanes <= _LANES:
        source = _padded(graph, name)
        if _movable(graph, source.name):
            return side_by_side(builder, plain(source.name), graph.kind(source.name), lanes, source, Rows())
    value, (n, c, h, w) = plain(name), kind.shape
    if lanes > c:
        value = builder.emit(relax.op.nn.pad(value, [0, 0, 0, lanes - c, 0, 0, 0, 0]))
    return relax.op.permute_dims(relax.op.reshape(value, (n, 1, lanes, h, w)), [0, 1, 3, 4, 2])


def _movable(graph: Graph, name: str) -> bool:
    kind = graph.kind(name)
    return kind.dtype in ("int8", "uint8") and kind.shape[3] >= _PIXELS


def _padded(graph: Graph, name: str) -> Padded:
    """Return what an image is padded from; itself where it is none."""
    step = None if name in graph.inputs else graph.step(name)
    if step is None or not pads_image(step) or str(step.call.attrs.pad_mode) != "constant":
        return Padded(name)
    widths = tuple(int(width) for width in step.call.attrs.pad_width[4:])
    return Padded(step.refs[0], widths, int(step.call.attrs.pad_value))


def side_by_side(builder: Any, value: Any, kind: TensorKind, lanes: int, padded: Padded, rows: Rows) -> Any:
    """Return an image, (N, C, H, W), as (N, 1, lines, columns, lanes): the channels of a pixel's rows, row by row."""
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
    function = function_of(
        _SOURCE,
        {
            "image": buffer_of(kind.shape, kind.dtype),
            "out": buffer_of(made, kind.dtype),
            "pattern": OPAQUE,
            "imported": IMPORTED_LLVM,
            "llvm": _code(name, kind, lanes, padded, rows),
            "loop": line_loop(n * lines * columns * lanes),
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
            "padded": within("channel", used, lanes, f"T.{kind.dtype}({padded.value})", f"T.{kind.dtype}(0)"),
        },
    )
    return relax.call_tir(builder.add_func(function, "side_by_side"), [value], relax.TensorType(made, kind.dtype))


def _code(name: str, kind: TensorKind, lanes: int, padded: Padded, rows: Rows) -> str:
    """Return LLVM's text of the function that makes a line of pixels; name: its own."""
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
class FewRows:
    """A convolution of an image of few channels that reads several of its rows as channels of one.

    weight: (O, channels, KH, KW); strides, dilation: of the image that is made of `source` and has its padding.
    """

    source: Padded
    kind: TensorKind
    rows: Rows
    lanes: int
    weight: Array
    strides: tuple[int, int]
    dilation: tuple[int, int]

    def convolution(self, builder: Any, image: Any, block: int, dtype: str) -> Any:
        """Return the convolution of an image, (N, C, H, W), without its padding: (N, O/block, OH, OW, block)."""
        data = side_by_side(builder, image, self.kind, self.lanes, self.source, self.rows)
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


def few_rows(graph: Graph, name: str, step: Step, padding: list[int]) -> FewRows | None:
    """Return how matrix tiles read the image of a convolution, None where several of its rows side by side do not save
    enough products.

    padding: top, left, bottom, right, of zeros, around the value of that name.
    """
    weight, source = np.asarray(step.args[1]), _padded(graph, name)
    (sh, sw), (dh, dw) = ([int(v) for v in values] for values in (step.call.attrs.strides, step.call.attrs.dilation))
    outputs, channels, kh, kw = weight.shape
    count = min(_LANES // channels, kh)
    if count < 2 or count * dh % sh or str(weight.dtype) != "int8" or not _movable(graph, source.name):
        return None
    if any(padding):
        if source.name != name:
            return None
        top, left, bottom, right = padding
        source = Padded(name, (top, bottom, left, right))
    lanes, groups = -(-count * channels // 4) * 4, -(-kh // count)
    if groups * _instructions(kw, dw, lanes) > _FEWER * kh * _instructions(kw, dw, -(-channels // 4) * 4):
        return None
    kind = graph.kind(source.name)
    height, between = kind.shape[2] + sum(source.widths[:2]), count * dh // sh
    lines = (height - (kh - 1) * dh - 1) // sh + 1 + (groups - 1) * between
    full = np.pad(weight, ((0, 0), (0, 0), (0, groups * count - kh), (0, 0)))
    split = full.reshape(outputs, channels, groups, count, kw).transpose(0, 3, 1, 2, 4)
    of_rows = np.ascontiguousarray(split.reshape(outputs, count * channels, groups, kw))
    return FewRows(source, kind, Rows(count, dh, sh, lines), lanes, of_rows, (1, sw), (between, dw))


def _instructions(columns: int, dilation: int, lanes: int) -> int:
    """Return how many products of tiles a row of a filter takes."""
    words = (columns if dilation == 1 else 1) * lanes // 4
    return (1 if dilation == 1 else columns) * words // tile_depth(words)
