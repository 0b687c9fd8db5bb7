"""Replace loops over a tile that a kernel transposes by vectors: LLVM makes none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from tvmflow.ir.tir.blocks import transform_kernels
from tvmflow.ir.tir.stmt_rewriter import (
    is_marked,
    realize_in,
    rewrite_statements,
    with_llvm,
    with_root_body,
    with_variables,
)
from tvmflow.ir.tvm_compat import IRModule, PrimFunc, dtype_of
from tvmflow.schedules.template import TRANSPOSED
from tvmflow.support.dtypes import numpy_dtype

_PAIRS = ((0, 4, 1, 5), (2, 6, 3, 7))  # of each quarter: the first and the last two numbers of two vectors in turn
_HALVES = ((0, 1, 4, 5), (2, 3, 6, 7))  # the first and the last two numbers of two vectors
_WORD = 32  # bits
_QUARTER = 4  # numbers in a part of a vector that AVX moves as a whole


def transpose_tiles(mod: IRModule) -> Any:
    """Return a module of scheduled kernels with transpositions in place of the loops that have the annotation
    TRANSPOSED.
    """
    return transform_kernels(mod, lambda kernel: is_marked(kernel, TRANSPOSED), _by_vectors)


def _by_vectors(function: PrimFunc) -> Any:
    sizes: set[tuple[int, int, int, int]] = set()

    def change(statement: Any) -> Any:
        if not isinstance(statement, tirx.For) or TRANSPOSED not in statement.annotations:
            return statement
        sizes.add(_sizes(statement))
        return _call(statement)

    changed = with_root_body(function, lambda body: rewrite_statements(body, change))
    return with_llvm(changed, "".join(_code(*one) for one in sorted(sizes)))


def _sizes(loop: Any) -> tuple[int, int, int, int]:
    """Return the numbers that a vector takes from the input, that it writes, the distance of the former, and bits."""
    bits = 8 * np.dtype(numpy_dtype(dtype_of(realize_in(loop).block.body.value))).itemsize
    return int(loop.extent), int(loop.body.extent), int(loop.annotations[TRANSPOSED][2]), bits


def _call(loop: Any) -> Any:
    """Return the call for a tile. loop: over the numbers that are neighbours in the input; in it that of the output."""
    inner, realize = loop.body, realize_in(loop)
    first = {variable: tirx.const(0, dtype_of(variable)) for variable in (loop.loop_var, inner.loop_var)}
    values = [with_variables(value, first) for value in realize.iter_values]
    places = {axis.var: value for axis, value in zip(realize.block.iter_vars, values, strict=True)}
    store = with_variables(realize.block.body, places)
    written = tirx.address_of(tirx.BufferLoad(store.buffer, store.indices))
    strides = [tirx.const(int(stride), "int64") for stride in loop.annotations[TRANSPOSED][:2]]
    name = _name(*_sizes(loop))
    return tirx.Evaluate(tirx.call_extern("int32", name, written, tirx.address_of(store.value), *strides))


def _name(across: int, rows: int, step: int, bits: int) -> str:
    return f"tvmflow_transpose_{across}x{rows}_by_{step}" + (f"_of_{bits}" if bits != _WORD else "")


def _code(across: int, rows: int, step: int, bits: int) -> str:
    """Return LLVM IR that reads `rows` vectors of `across` numbers, each `step` behind the one before, and writes
    `across` vectors of `rows`.
    """
    width = 8 if max(across, rows) <= 8 else 16
    kind, aligned = f"i{bits}", f"align {bits // 8}"
    lines: list[str] = []

    def emit(value: str) -> str:
        lines.append(f"  %v{len(lines)} = {value}")
        return f"%v{len(lines) - 1}"

    def shuffle(a: str, b: str, places: list[int], of: int = width) -> str:
        mask = ", ".join(f"i32 {place}" for place in places)
        return emit(f"shufflevector <{of} x {kind}> {a}, <{of} x {kind}> {b}, <{len(places)} x i32> <{mask}>")

    def place(base: str, step: str, at: int) -> str:
        return emit(f"getelementptr {kind}, ptr {base}, i64 {emit(f'mul i64 {step}, {at}')}")

    read = (across - 1) * step + 1
    loaded = [emit(f"load <{read} x {kind}>, ptr {place('%in', '%between', at)}, {aligned}") for at in range(rows)]
    extended = [at * step if at < across else read for at in range(width)]
    wide = [shuffle(one, "zeroinitializer", extended, read) for one in loaded]
    wide += ["zeroinitializer"] * (width - rows)
    transposed = _transposed if bits == _WORD else _exchanged
    for at, columns in enumerate(transposed(wide, width, shuffle)[:across]):
        kept = shuffle(columns, "poison", list(range(rows)))
        to = place("%out", "%apart", at)
        lines.append(f"  store <{rows} x {kind}> {kept}, ptr {to}, {aligned}")
    name, parameters = _name(across, rows, step, bits), "ptr noalias %out, ptr noalias %in, i64 %between, i64 %apart"
    head = f"define weak_odr i32 @{name}({parameters})"
    return "\n".join([f"{head} alwaysinline nounwind {{", *lines, "  ret i32 0", "}", ""])


def _transposed(rows: list[str], width: int, shuffle: Any) -> list[str]:
    """Return the columns of a square: pairs within quarters of a vector, then fours, then whole quarters."""
    quarters = range(0, width, _QUARTER)

    def within(a: str, b: str, places: tuple[int, ...]) -> str:
        return str(
            shuffle(a, b, [q + p if p < _QUARTER else width + q + p - _QUARTER for q in quarters for p in places])
        )

    fours = []
    for at in quarters:
        a, b, c, d = rows[at : at + _QUARTER]
        low, high = (tuple(within(*pair, places) for pair in ((a, b), (c, d))) for places in _PAIRS)
        fours.append([within(one, other, places) for one, other in (low, high) for places in _HALVES])
    columns = [_gather_quarters([four[at] for four in fours], width, shuffle) for at in range(_QUARTER)]
    return [columns[at % _QUARTER][at // _QUARTER] for at in range(width)]


def _exchanged(rows: list[str], width: int, shuffle: Any) -> list[str]:
    """Return the columns of a square: parts of two vectors change places, of 1, 2, 4 and more numbers, as trn1 and trn2
    of NEON do.
    """
    rows, part = list(rows), 1
    while part < width:
        for at in (at for at in range(width) if not at & part):
            pair = rows[at], rows[at + part]
            for half in (0, 1):
                places = [(width + of - part if of & part else of) + half * part for of in range(width)]
                rows[at + half * part] = shuffle(*pair, places)
        part *= 2
    return rows


def _gather_quarters(vectors: list[str], width: int, shuffle: Any) -> list[str]:
    """Return for each quarter the vector of that quarter of all vectors."""
    if len(vectors) == 1:
        return vectors
    found = []
    for parity in (0, 1):
        places = [at for at in range(2 * width) if at // _QUARTER % 2 == parity]
        halves = [shuffle(a, b, places) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        found.append(_gather_quarters(halves, width, shuffle))
    return [found[at % 2][at // 2] for at in range(len(vectors))]
