"""The kernel of a batched product of matrices that are both computed, read from wherever they lie."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvmflow.ir.relax.views import Index
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.passes.legalize.bfloat16 import rounded_text
from tvmflow.passes.legalize.padded_image import tileable_width

_WIDE = 16  # lanes of AVX-512, whose registers are twice as many, too

_SMALL_BYTES = 1 << 14  # of an image that one thread has finished before others begin
OPAQUE = 8  # TVM's number for the pattern of a kernel that is fused with nothing


def buffer_of(shape: tuple[int, ...], dtype: str) -> str:
    """Return the type of a parameter, its extents as TVM's own kernels have them: others are not fused with these."""
    return f'T.Buffer(({"".join(f"T.int64({extent}), " for extent in shape)}), "{dtype}")'


@dataclass(frozen=True)
class Operand:
    """An array that a kernel reads or writes. index: of its axes by batch, row and column of a matrix."""

    shape: tuple[int, ...]
    dtype: str
    index: Index

    @property
    def buffer(self) -> str:
        """Return the type of the kernel's parameter."""
        return buffer_of(self.shape, self.dtype)

    def read(self, name: str, *coordinates: str, dtype: str = "float32") -> str:
        """Return a value of an array of a name as float32, or as bfloat16 by the processor's instruction."""
        value = f"{name}[{self.index.text(*coordinates)}]"
        if self.dtype == dtype:
            return value
        value = value if self.dtype == "float32" else f'T.Cast("float32", {value})'
        return value if dtype == "float32" else rounded_text(value)


def filled_rows(rows: int, lanes: int) -> int:
    """Return how many rows are computed for so many: whole tiles, smaller ones where registers are too few for sums of
    many rows.
    """
    return tileable_width(rows, narrow=lanes < _WIDE)


def within(column: str, count: int, filled: int, value: str, other: str) -> str:
    """Return a value for columns that there are, another for those that fill up the last block."""
    return value if count == filled else f"T.if_then_else({column} < {count}, {value}, {other})"


def line_loop(nbytes: int) -> str:
    """Return the loop over the lines of an image of so many bytes: over threads where it is not small."""
    return "T.parallel" if nbytes > _SMALL_BYTES else "T.serial"


def function_of(source: str, parts: dict[str, Any]) -> Any:
    """Return the PrimFunc that a text in TVMScript is once its {names} are replaced."""
    return parsed(source.format(**parts)).without_attr("global_symbol")


@dataclass(frozen=True)
class Product:
    """a: (batch, rows, depth), b: (batch, depth, columns). shape: of the output, (..., rows, columns); lanes: columns
    of a block.
    """

    a: Operand
    b: Operand
    sizes: tuple[int, int, int, int]
    factor: float
    shape: tuple[int, ...]
    dtype: str
    lanes: int


_SOURCE = """
@T.prim_func(s_tir=True)
def batched_product(a: {a_buffer}, b: {b_buffer}, out: {out_buffer}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 4}})
    columns = T.sblock_alloc_buffer(({G}, {NB}, {K}, {L}))
    rows = T.sblock_alloc_buffer(({G}, {M}, {K}))
    product = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}))
    sums = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}))
    for g, n, k, l in T.grid({G}, {NB}, {K}, {L}):
        with T.sblock("batched_product_columns"):
            vg, vb, vk, vl = T.axis.remap("SSSS", [g, n, k, l])
            columns[vg, vb, vk, vl] = {column}
    for g, m, k in T.grid({G}, {M}, {K}):
        with T.sblock("batched_product_rows"):
            vg, vm, vk = T.axis.remap("SSS", [g, m, k])
            rows[vg, vm, vk] = {row}
    for g, m, n, l, k in T.grid({G}, {M}, {NB}, {L}, {K}):
        with T.sblock("batched_product"):
            vg, vm, vb, vl, vk = T.axis.remap("SSSSR", [g, m, n, l, k])
            with T.init():
                product[vg, vm, vb, vl] = T.float32(0)
            product[vg, vm, vb, vl] = product[vg, vm, vb, vl] + rows[vg, vm, vk] * columns[vg, vb, vk, vl]
    for g, m, n, l in T.grid({G}, {M}, {NB}, {L}):
        with T.sblock("batched_product_sums"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, n, l])
            sums[vg, vm, vb, vl] = product[vg, vm, vb, vl]
    for {loops} in T.grid({extents}):
        with T.sblock("batched_product_out"):
            {axes} = T.axis.remap("{kinds}", [{loops}])
            out[{axes}] = {value}
"""


@cache
def product_kernel(of: Product) -> Any:
    """Return the PrimFunc of a, b and the output."""
    (batch, rows, depth, columns), lanes = of.sizes, of.lanes
    filled, blocks = filled_rows(rows, lanes), -(-columns // lanes)
    names = [f"i{axis}" for axis in range(len(of.shape))]
    axes = [f"v{name}" for name in names]
    group = "0"
    for axis, extent in zip(axes[:-2], of.shape[:-2], strict=True):
        group = f"({group}) * {extent} + {axis}" if group != "0" else axis
    row = "vm" if filled == rows else f"T.min(vm, {rows - 1})"
    column = f"vb * {lanes} + vl"
    value = f"sums[{group}, {axes[-2]}, {axes[-1]} // {lanes}, {axes[-1]} % {lanes}]"
    factor = f" * T.float32({of.factor!r})" if of.factor != 1.0 else ""
    return function_of(
        _SOURCE,
        {
            "a_buffer": of.a.buffer,
            "b_buffer": of.b.buffer,
            "out_buffer": buffer_of(of.shape, of.dtype),
            "G": batch,
            "M": filled,
            "K": depth,
            "L": lanes,
            "NB": blocks,
            "column": within(column, columns, blocks * lanes, of.b.read("b", "vg", "vk", column), "T.float32(0)"),
            "row": of.a.read("a", "vg", row, "vk") + factor,
            "loops": ", ".join(names),
            "extents": ", ".join(map(str, of.shape)),
            "axes": ", ".join(axes),
            "kinds": "S" * len(axes),
            "value": value if of.dtype == "float32" else f'T.Cast("{of.dtype}", {value})',
        },
    )
