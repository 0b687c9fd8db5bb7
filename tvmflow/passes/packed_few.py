"""An image of bytes of few channels, a network's input, with the channels of each pixel side by side, and pixels around it.

As a chain of operators it is computed value by value: what is stored side by side is read from planes. Here vectors of each channel become the bytes of wider words,
which are stored whole. What the image is made of, rounded to bytes for example, is computed in planes before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from tvmflow.ir.graph import Graph
from tvmflow.kernels.blocks import IMPORTED_LLVM
from tvmflow.passes.packed_images import pads_image
from tvmflow.passes.products import OPAQUE, buffer_of, function_of, line_loop, within

_PIXELS = 16  # of a vector
_BITS = 8  # of a value: words of wider ones gain nothing

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
                if {top} <= at % {rows} and at % {rows} < {bottom}:
                    for column, channel in T.grid({left}, {lanes}):
                        out[at // {rows}, 0, at % {rows}, column, channel] = {padded}
                    T.evaluate(T.call_extern(
                        "int32", "{name}", T.address_of(out[at // {rows}, 0, at % {rows}, {left}, 0]),
                        T.address_of(image[at // {rows}, 0, at % {rows} - {top}, 0])))
                    for column, channel in T.grid({right}, {lanes}):
                        out[at // {rows}, 0, at % {rows}, {left} + {width} + column, channel] = {padded}
                else:
                    for column, channel in T.grid({columns}, {lanes}):
                        out[at // {rows}, 0, at % {rows}, column, channel] = {padded}
"""
# The last vector of a row ends with it, and overlaps the one before.
_CODE = """
define weak_odr i32 @{name}(ptr %out, ptr %image) alwaysinline nounwind {{
entry:
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
_CHANNEL = """  %from{c} = getelementptr i8, ptr %image, i64 {offset}
  %place{c} = getelementptr i8, ptr %from{c}, i64 %at
  %value{c} = load <16 x i8>, ptr %place{c}, align 1
  %wide{c} = zext <16 x i8> %value{c} to <16 x {word}>
  %moved{c} = shl <16 x {word}> %wide{c}, splat ({word} {shift})
  %sum{c} = or <16 x {word}> %moved{c}, {before}"""


def image_of_few(builder: Any, graph: Graph, plain: Callable[[str], Any], name: str, lanes: int, as_words: bool) -> Any:
    """Return an image of a network, (N, C, H, W), as (N, 1, H, W, lanes), channels filled up with zeros.

    plain: gives a value, (N, C, H, W), by its name. as_words: bytes are moved by words, where the processor has no instruction that stores vectors side by side.
    """
    kind = graph.kind(name)
    if as_words and kind.dtype in ("int8", "uint8") and lanes in (4, 8):
        source, padding, padded = _padded(graph, name)
        shape = graph.kind(source).shape
        if shape[3] >= _PIXELS:
            return _side_by_side(builder, plain(source), shape, kind.dtype, lanes, padding, padded)
    value, (n, c, h, w) = plain(name), kind.shape
    if lanes > c:
        value = builder.emit(relax.op.nn.pad(value, [0, 0, 0, lanes - c, 0, 0, 0, 0]))
    return relax.op.permute_dims(relax.op.reshape(value, (n, 1, lanes, h, w)), [0, 1, 3, 4, 2])


def _padded(graph: Graph, name: str) -> tuple[str, tuple[int, ...], int]:
    """Return what an image is padded from, by how many pixels at the top, bottom, left and right, and their value; itself where it is none."""
    step = None if name in graph.inputs else graph.step(name)
    if step is None or not pads_image(step) or str(step.call.attrs.pad_mode) != "constant":
        return name, (0, 0, 0, 0), 0
    widths = tuple(int(width) for width in step.call.attrs.pad_width[4:])
    return step.refs[0], widths, int(step.call.attrs.pad_value)


def _side_by_side(
    builder: Any, value: Any, shape: tuple[int, ...], dtype: str, lanes: int, padding: tuple[int, ...], padded: int
) -> Any:
    n, channels, height, width = shape
    top, bottom, left, right = padding
    rows, columns = height + top + bottom, width + left + right
    made = (n, 1, rows, columns, lanes)
    name = f"tvmflow_side_by_side_{dtype}_{lanes}_{channels}_{height}_{width}"
    parts = [
        _CHANNEL.format(
            c=c, word=f"i{_BITS * lanes}", offset=c * height * width, shift=c * _BITS,
            before=f"%sum{c - 1}" if c else "zeroinitializer",
        )
        for c in range(channels)
    ]  # fmt: skip
    code = _CODE.format(
        name=name, last=width - _PIXELS, channels="\n".join(parts), word=f"i{_BITS * lanes}", top=channels - 1, width=width
    )  # fmt: skip
    function = function_of(_SOURCE, {
        "image": buffer_of(shape, dtype), "out": buffer_of(made, dtype), "pattern": OPAQUE, "imported": IMPORTED_LLVM, "llvm": code,
        "loop": line_loop(n * rows * columns * lanes), "lines": n * rows, "rows": rows, "columns": columns, "channels": channels, "lanes": lanes, "height": height,
        "width": width, "top": top, "bottom": top + height, "left": left, "right": right, "name": name,
        "padded": within("channel", channels, lanes, f"T.{dtype}({padded})", f"T.{dtype}(0)"),
    })  # fmt: skip
    return relax.call_tir(builder.add_func(function, "side_by_side"), [value], relax.TensorType(made, dtype))
