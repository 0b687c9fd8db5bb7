"""Lower a batched matmul of two computed operands to a kernel that reads them where they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvmflow.ir.relax.views import Index
from tvmflow.ir.tir.tvm_script import parsed
from tvmflow.passes.legalize.bfloat16 import format_bfloat16_cast
from tvmflow.passes.legalize.padded_image import tileable_width

_WIDE = 16  # lanes of AVX-512, which also has twice as many registers

_SMALL_BYTES = 1 << 14  # size of an image up to which one thread finishes before others start
OPAQUE = 8  # TVM's OpPatternKind of a kernel that is never fused


def buffer_type(shape: tuple[int, ...], dtype: str) -> str:
    """Return the type of a parameter in TVMScript, with int64 extents, as FuseTIR requires."""
    return f'T.Buffer(({"".join(f"T.int64({extent}), " for extent in shape)}), "{dtype}")'


@dataclass(frozen=True)
class Operand:
    """An array that a kernel reads or writes. index: its index by batch, row and column of a matrix."""

    shape: tuple[int, ...]
    dtype: str
    index: Index

    @property
    def buffer(self) -> str:
        """Return the type of the kernel's parameter in TVMScript."""
        return buffer_type(self.shape, self.dtype)

    def read(self, name: str, *coordinates: str, dtype: str = "float32") -> str:
        """Return the TVMScript expression of an element as float32, or as bfloat16 rounded by the processor's
        instruction.
        """
        value = f"{name}[{self.index.text(*coordinates)}]"
        if self.dtype == dtype:
            return value
        value = value if self.dtype == "float32" else f'T.Cast("float32", {value})'
        return value if dtype == "float32" else format_bfloat16_cast(value)


def round_up_rows(rows: int, lanes: int) -> int:
    """Return the number of rows rounded up to whole tiles, to smaller ones on processors with few registers."""
    return tileable_width(rows, narrow=lanes < _WIDE)


def select_inside(column: str, count: int, filled: int, value: str, other: str) -> str:
    """Return `value` for columns less than `count`, `other` for the padding of the last block."""
    return value if count == filled else f"T.if_then_else({column} < {count}, {value}, {other})"


def choose_line_loop(nbytes: int) -> str:
    """Return the loop over the lines of an image of this size: parallel unless it is small."""
    return "T.parallel" if nbytes > _SMALL_BYTES else "T.serial"


def parse_kernel(source: str, parts: dict[str, Any]) -> Any:
    """Return the PrimFunc of a TVMScript text with {names} replaced."""
    return parsed(source.format(**parts)).without_attr("global_symbol")


@dataclass(frozen=True)
class BatchMatmul:
    """A batched matmul of a (batch, rows, depth) and b (batch, depth, columns).

    shape: of the output, (..., rows, columns); lanes: columns of a block; tiled: type of the sums of tiled_product, ''
    where the processor has none or columns fill no block.
    """

    a: Operand
    b: Operand
    sizes: tuple[int, int, int, int]
    factor: float
    shape: tuple[int, ...]
    dtype: str
    lanes: int
    tiled: str = ""


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
def batch_matmul_kernel(of: BatchMatmul) -> Any:
    """Return the PrimFunc of a, b and the output."""
    (batch, rows, depth, columns), lanes = of.sizes, of.lanes
    filled, blocks = round_up_rows(rows, lanes), -(-columns // lanes)
    extents = {"G": batch, "M": filled, "K": depth, "L": lanes, "NB": blocks}
    row = "vm" if filled == rows else f"T.min(vm, {rows - 1})"
    column = f"vb * {lanes} + vl"
    factor = f" * T.float32({of.factor!r})" if of.factor != 1.0 else ""
    return parse_kernel(
        _SOURCE,
        {
            "a_buffer": of.a.buffer,
            "b_buffer": of.b.buffer,
            "out_buffer": buffer_type(of.shape, of.dtype),
            # int64 like the loops of fused epilogues: TVM fails on bounds that mix the two.
            **{name: f"T.int64({extent})" for name, extent in extents.items()},
            "column": select_inside(
                column, columns, blocks * lanes, of.b.read("b", "vg", "vk", column), "T.float32(0)"
            ),
            "row": of.a.read("a", "vg", row, "vk") + factor,
            **output_parts(of, "float32"),
        },
    )


def output_parts(of: BatchMatmul, kind: str) -> dict[str, str]:
    """Return the parts of a kernel's text that write its output from sums of a type."""
    names = [f"i{axis}" for axis in range(len(of.shape))]
    axes = [f"v{name}" for name in names]
    group = "0"
    for axis, extent in zip(axes[:-2], of.shape[:-2], strict=True):
        group = f"({group}) * {extent} + {axis}" if group != "0" else axis
    value = f"sums[{group}, {axes[-2]}, {axes[-1]} // {of.lanes}, {axes[-1]} % {of.lanes}]"
    return {
        "loops": ", ".join(names),
        "extents": ", ".join(f"T.int64({extent})" for extent in of.shape),
        "axes": ", ".join(axes),
        "kinds": "S" * len(axes),
        "value": value if of.dtype == kind else f'T.Cast("{of.dtype}", {value})',
    }
