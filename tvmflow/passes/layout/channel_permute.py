"""Permute channels of packed images: splits, concats and shuffles with partial blocks.

As a chain of operators (unpack, move, pack), each channel would be copied three times. Here each vector of output
channels is assembled by vector shuffles, one for each source block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from tvm import DataType, relax

from tvmflow.ir.tir.blocks import IMPORTED_LLVM
from tvmflow.ir.tvm_compat import shape_of, type_of
from tvmflow.passes.legalize.batch_matmul import OPAQUE, buffer_type, choose_line_loop, parse_kernel

Channel = tuple[int, int]  # index of an image, and of its channel
_SOURCE = """
@T.prim_func(s_tir=True)
def move_channels({parameters}, out: {out}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": {pattern}}})
    with T.sblock("root"):
        T.sblock_attr({{"{imported}": {llvm!r}}})
        for line in {loop}({lines}):
            with T.sblock("line"):
                at = T.axis.spatial({lines}, line)
                T.reads({reads})
                T.writes({whole})
                T.evaluate(T.call_extern("int32", "{name}", {addresses}))
"""
_CODE = """
define weak_odr i32 @{name}({parameters}) alwaysinline nounwind {{
entry:
  br label %block0
{blocks}
block{count}:
  ret i32 0
}}
"""
_BLOCK = """block{b}:
  %i{b} = phi i64 [ 0, %{before} ], [ %next{b}, %block{b} ]
{vectors}
  %to{b} = getelementptr {vector}, ptr %out, i64 {offset}
  %place{b} = getelementptr {vector}, ptr %to{b}, i64 %i{b}
  store {vector} {result}, ptr %place{b}, align 1
  %next{b} = add i64 %i{b}, 1
  %more{b} = icmp ult i64 %next{b}, {width}
  br i1 %more{b}, label %block{b}, label %block{after}
"""
_VECTOR = """  %from{b}_{k} = getelementptr {vector}, ptr %in{source}, i64 {offset}
  %at{b}_{k} = getelementptr {vector}, ptr %from{b}_{k}, i64 %i{b}
  %value{b}_{k} = load {vector}, ptr %at{b}_{k}, align 1
  %sum{b}_{k} = shufflevector {vector} {so_far}, {vector} %value{b}_{k}, <{lanes} x i32> <{places}>"""


def permute_channels(builder: Any, images: Sequence[Any], channels: Sequence[Channel | None]) -> Any:
    """Return a packed image (N, C / lanes, H, W, lanes), padded with zeros if C does not fill whole blocks.

    images: packed images of the same N, H, W and dtype; channels: for each output channel the index of its image and
    its channel there, or None for zeros.
    """
    n, _, height, width, lanes = shape_of(images[0])
    dtype = str(type_of(images[0]).dtype)
    blocks = [channels[begin : begin + lanes] for begin in range(0, len(channels), lanes)]
    made = (n, len(blocks), height, width, lanes)
    bits = DataType(dtype).bits
    vector = f"<{lanes} x i{bits}>"
    text = "".join(_block_code(at, block, height * width, width, lanes, vector) for at, block in enumerate(blocks))
    sizes = [shape_of(image) for image in images]
    names = [f"in{at}" for at in range(len(images))]
    name = f"tvmflow_move_{hashlib.sha256(f'{sizes} {dtype} {channels}'.encode()).hexdigest()[:16]}"
    code = _CODE.format(
        name=name, parameters=", ".join(f"ptr %{one}" for one in ("out", *names)), blocks=text, count=len(blocks)
    )
    kernel = parse_kernel(
        _SOURCE,
        {
            "parameters": ", ".join(
                f"{one}: {buffer_type(size, dtype)}" for one, size in zip(names, sizes, strict=True)
            ),
            "out": buffer_type(made, dtype),
            "pattern": OPAQUE,
            "imported": IMPORTED_LLVM,
            "llvm": code,
            "lines": n * height,
            "name": name,
            "loop": choose_line_loop(n * len(channels) * height * width * bits // 8),
            "reads": ", ".join(_row_region(one, size) for one, size in zip(names, sizes, strict=True)),
            "whole": _row_region("out", made),
            "addresses": ", ".join(
                f"T.address_of({one}[at // {height}, 0, at % {height}, 0, 0])" for one in ("out", *names)
            ),
        },
    )
    return relax.call_tir(builder.add_func(kernel, "move_channels"), list(images), relax.TensorType(made, dtype))


def _row_region(name: str, shape: tuple[int, ...]) -> str:
    _, blocks, height, width, lanes = shape
    return f"{name}[at // {height}, 0:{blocks}, at % {height}, 0:{width}, 0:{lanes}]"


def _block_code(at: int, channels: Sequence[Channel | None], pixels: int, width: int, lanes: int, vector: str) -> str:
    """Return LLVM code of the loop over a row's pixels that writes one block of channels."""
    held: dict[Channel, dict[int, int]] = {}  # a block of an image -> {output lane: source lane}
    for lane, source in enumerate(channels):
        if source is not None:
            held.setdefault((source[0], source[1] // lanes), {})[lane] = source[1] % lanes
    parts = []
    for k, ((image, block), places) in enumerate(held.items()):
        kept = [str(lanes + places[lane]) if lane in places else str(lane) for lane in range(lanes)]
        parts.append(
            _VECTOR.format(
                b=at,
                k=k,
                vector=vector,
                source=image,
                offset=block * pixels,
                so_far=f"%sum{at}_{k - 1}" if k else "zeroinitializer",
                lanes=lanes,
                places=", ".join(f"i32 {place}" for place in kept),
            )
        )
    return _BLOCK.format(
        b=at,
        before=f"block{at - 1}" if at else "entry",
        vectors="\n".join(parts),
        vector=vector,
        offset=at * pixels,
        width=width,
        after=at + 1,
        result=f"%sum{at}_{len(held) - 1}" if held else "zeroinitializer",
    )
