"""Lower a batched matmul of two computed operands to the product of a 1x1 convolution, for arm64's tiles.

Rows are an image of one row in blocks of eight channels, which are zeros behind the last one in both operands.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvmflow.passes.legalize.batch_matmul import (
    BatchMatmul,
    Operand,
    buffer_type,
    output_parts,
    parse_kernel,
    round_up_rows,
    select_inside,
)

_SOURCE = """
@T.prim_func(s_tir=True)
def batched_product(a: {a_buffer}, b: {b_buffer}, out: {out_buffer}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 4}})
    columns = T.sblock_alloc_buffer(({G}, {NB}, {KB}, {I}, {I}, {L}, {L}), "{X}")
    rows = T.sblock_alloc_buffer(({G}, {KB}, {I}, {M}, {L}), "{X}")
    product = T.sblock_alloc_buffer(({G}, {NB}, {I}, {M}, {L}), "{X}")
    sums = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}), "{X}")
    for g, d, u, n, l in T.grid({G}, {KB}, {L}, {NB}, {L}):
        with T.sblock("batched_product_columns"):
            vg, vd, vu, vb, vl = T.axis.remap("SSSSS", [g, d, u, n, l])
            columns[vg, vb, vd, {O}, {O}, vu, vl] = {column}
    for g, d, r, m, u in T.grid({G}, {KB}, {I}, {M}, {L}):
        with T.sblock("batched_product_rows"):
            vg, vd, vr, vm, vu = T.axis.remap("SSSSS", [g, d, r, m, u])
            rows[vg, vd, vr, vm, vu] = {row}
    for g, n, r, m, l, d, u in T.grid({G}, {NB}, {I}, {M}, {L}, {KB}, {L}):
        with T.sblock("batched_product"):
            vg, vb, vr, vm, vl, vd, vu = T.axis.remap("SSSSSRR", [g, n, r, m, l, d, u])
            with T.init():
                product[vg, vb, vr, vm, vl] = T.{X}(0)
            product[vg, vb, vr, vm, vl] = (
                product[vg, vb, vr, vm, vl] + rows[vg, vd, vr, vm, vu] * columns[vg, vb, vd, {O}, {O}, vu, vl]
            )
    for g, m, n, l in T.grid({G}, {M}, {NB}, {L}):
        with T.sblock("batched_product_sums"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, n, l])
            sums[vg, vm, vb, vl] = product[vg, vb, {O}, vm, vl]
    for {loops} in T.grid({extents}):
        with T.sblock("batched_product_out"):
            {axes} = T.axis.remap("{kinds}", [{loops}])
            out[{axes}] = {value}
"""


@cache
def tiled_product_kernel(of: BatchMatmul) -> Any:
    """Return the PrimFunc of a, b and the output."""
    (batch, rows, depth, columns), lanes, kind = of.sizes, of.lanes, of.tiled
    filled, blocks, deep = round_up_rows(rows, lanes), -(-columns // lanes), -(-depth // lanes)
    row = "vm" if filled == rows else f"T.min(vm, {rows - 1})"
    column, place, zero = f"vb * {lanes} + vl", f"vd * {lanes} + vu", f"T.{kind}(0)"
    read = select_inside(place, depth, deep * lanes, _read(of.b, "b", kind, (place, column), 1.0), zero)
    extents = {"G": batch, "M": filled, "KB": deep, "NB": blocks, "L": lanes, "I": 1}
    return parse_kernel(
        _SOURCE,
        {
            "a_buffer": of.a.buffer,
            "b_buffer": of.b.buffer,
            "out_buffer": buffer_type(of.shape, of.dtype),
            **{name: f"T.int64({extent})" for name, extent in extents.items()},
            "O": "T.int64(0)",
            "X": kind,
            "column": select_inside(column, columns, blocks * lanes, read, zero),
            "row": select_inside(place, depth, deep * lanes, _read(of.a, "a", kind, (row, place), of.factor), zero),
            **output_parts(of, kind),
        },
    )


def _read(operand: Operand, name: str, kind: str, place: tuple[str, str], factor: float) -> str:
    """Return an element, times a factor, in the type of the products."""
    if factor == 1.0:
        return (
            f"{name}[{operand.index.text('vg', *place)}]"
            if operand.dtype == kind
            else _cast(operand.read(name, "vg", *place), kind)
        )
    return _cast(f"{operand.read(name, 'vg', *place)} * T.float32({factor!r})", kind)


def _cast(value: str, kind: str) -> str:
    return value if kind == "float32" else f'T.Cast("{kind}", {value})'
