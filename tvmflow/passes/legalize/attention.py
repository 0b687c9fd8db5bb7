"""Lower attention, softmax(scale * Q K^T * factors + biases) V, to one kernel.

The scores stay in the cache of a core. K^T is packed once for each head, in blocks of columns that fill a vector, so
that any number of keys is vectorized. Columns behind the last key are zeros with scores of minus infinity. Rows of
queries are padded to whole tiles. Operands are read and written where their producers and consumers store them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tvmflow.passes.legalize.batch_matmul import Operand, parse_kernel, round_up_rows, select_inside
from tvmflow.passes.legalize.bfloat16 import format_bfloat16_cast

LOWEST = "T.float32(-3.4028234663852886e38)"


class Step(NamedTuple):
    """An operand that is added to the scores or, if `multiplies`, multiplied by them: (batch, queries, keys)."""

    operand: Operand
    multiplies: bool


@dataclass(frozen=True)
class Attention:
    """The operands and sizes of an attention.

    q: (batch, queries, depth); k: (batch, keys, depth); v: (batch, keys, width); steps: applied to the scores in order;
    out: (batch, queries, width); safe: whether a row of minus infinity gives zeros instead of NaN; lanes: columns of a
    block; paired: whether both matmuls multiply pairs of bfloat16; tiled: type of the products of tiled_attention, ''
    where the processor has none.
    """

    batch: int
    queries: int
    keys: int
    depth: int
    width: int
    q: Operand
    k: Operand
    v: Operand
    steps: tuple[Step, ...]
    out: Operand
    scale: float
    safe: bool
    lanes: int
    paired: bool = False
    tiled: str = ""

    @property
    def rows(self) -> int:
        """Return the computed rows: the queries, perhaps rounded up."""
        return round_up_rows(self.queries, self.lanes)

    @property
    def blocks(self) -> tuple[int, int]:
        """Return the numbers of column blocks of the scores and of the output."""
        return -(-self.keys // self.lanes), -(-self.width // self.lanes)


# Of the weights of a row, here and in tiled_attention.
TOTALS = """\
    for g, m, l, b in T.grid({G}, {M}, {L}, {NB}):
        with T.sblock("attention_total_of_lane"):
            vg, vm, vl, vb = T.axis.remap("SSSR", [g, m, l, b])
            with T.init():
                total_of_lane[vg, vm, vl] = T.float32(0)
            total_of_lane[vg, vm, vl] = total_of_lane[vg, vm, vl] + {added}
    for g, m, l in T.grid({G}, {M}, {L}):
        with T.sblock("attention_total"):
            vg, vm, vl = T.axis.remap("SSR", [g, m, l])
            with T.init():
                total[vg, vm] = T.float32(0)
            total[vg, vm] = total[vg, vm] + total_of_lane[vg, vm, vl]
    for g, m in T.grid({G}, {M}):
        with T.sblock("attention_factor"):
            vg, vm = T.axis.remap("SS", [g, m])
            factor[vg, vm] = {factor}
"""
_SOURCE = """
@T.prim_func(s_tir=True)
def attention({parameters}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 8}})
{arrays}
    product = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}))
    scores = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}))
    most_of_lane = T.sblock_alloc_buffer(({G}, {M}, {L}))
    most = T.sblock_alloc_buffer(({G}, {M}))
    {weights}
    total_of_lane = T.sblock_alloc_buffer(({G}, {M}, {L}))
    total = T.sblock_alloc_buffer(({G}, {M}))
    factor = T.sblock_alloc_buffer(({G}, {M}))
    mixed = T.sblock_alloc_buffer(({G}, {M}, {DB}, {L}))
{packed}
    for g, m, d in T.grid({G}, {M}, {D}):
        with T.sblock("attention_queries"):
            vg, vm, vd = T.axis.remap("SSS", [g, m, d])
            queries[vg, vm, vd] = {query}
{product}
    for g, m, b, l in T.grid({G}, {M}, {NB}, {L}):
        with T.sblock("attention_scores"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, b, l])
            scores[vg, vm, vb, vl] = {score}
    for g, m, l, b in T.grid({G}, {M}, {L}, {NB}):
        with T.sblock("attention_most_of_lane"):
            vg, vm, vl, vb = T.axis.remap("SSSR", [g, m, l, b])
            with T.init():
                most_of_lane[vg, vm, vl] = {lowest}
            most_of_lane[vg, vm, vl] = T.max(most_of_lane[vg, vm, vl], scores[vg, vm, vb, vl])
    for g, m, l in T.grid({G}, {M}, {L}):
        with T.sblock("attention_most"):
            vg, vm, vl = T.axis.remap("SSR", [g, m, l])
            with T.init():
                most[vg, vm] = {lowest}
            most[vg, vm] = T.max(most[vg, vm], most_of_lane[vg, vm, vl])
    for g, m, b, l in T.grid({G}, {M}, {NB}, {L}):
        with T.sblock("attention_weights"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, b, l])
            weights[vg, vm, vb, vl] = {weight}
{totals}{mixing}
    for g, m, b, l in T.grid({G}, {M}, {DB}, {L}):
        with T.sblock("attention"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, b, l])
            {inside}out[{out}] = {mixed}
""".replace("{totals}", TOTALS)

_EXP = "T.exp(scores[vg, vm, vb, vl] - most[vg, vm])"
_PLAIN = {
    "arrays": """
    keys = T.sblock_alloc_buffer(({G}, {NB}, {D}, {L}))
    values = T.sblock_alloc_buffer(({G}, {DB}, {N}, {L}))
    queries = T.sblock_alloc_buffer(({G}, {M}, {D}))""",
    "weights": "weights = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}))",
    "packed": """
    for g, b, d, l in T.grid({G}, {NB}, {D}, {L}):
        with T.sblock("attention_keys"):
            vg, vb, vd, vl = T.axis.remap("SSSS", [g, b, d, l])
            keys[vg, vb, vd, vl] = {key}
    for g, b, n, l in T.grid({G}, {DB}, {N}, {L}):
        with T.sblock("attention_values"):
            vg, vb, vn, vl = T.axis.remap("SSSS", [g, b, n, l])
            values[vg, vb, vn, vl] = {value}""",
    "product": """
    for g, m, b, l, d in T.grid({G}, {M}, {NB}, {L}, {D}):
        with T.sblock("attention_product"):
            vg, vm, vb, vl, vd = T.axis.remap("SSSSR", [g, m, b, l, d])
            with T.init():
                product[vg, vm, vb, vl] = T.float32(0)
            product[vg, vm, vb, vl] = product[vg, vm, vb, vl] + queries[vg, vm, vd] * keys[vg, vb, vd, vl]""",
    "mixing": """
    for g, m, b, l, n in T.grid({G}, {M}, {DB}, {L}, {N}):
        with T.sblock("attention_mixed"):
            vg, vm, vb, vl, vn = T.axis.remap("SSSSR", [g, m, b, l, n])
            with T.init():
                mixed[vg, vm, vb, vl] = T.float32(0)
            mixed[vg, vm, vb, vl] = mixed[vg, vm, vb, vl] + (
                weights[vg, vm, vn // {L}, vn % {L}] * values[vg, vb, vn, vl]
            )""",
    "weight": _EXP,
    "added": "weights[vg, vm, vb, vl]",
}
# The pairs of a dot product are adjacent: two channels of a key, two values of a channel.
_PAIRED = {
    "arrays": """
    keys = T.sblock_alloc_buffer(({G}, {NB}, {DP}, {L}, 2), "bfloat16")
    values = T.sblock_alloc_buffer(({G}, {DB}, {NP}, {L}, 2), "bfloat16")
    queries = T.sblock_alloc_buffer(({G}, {M}, {D}), "bfloat16")""",
    "weights": 'weights = T.sblock_alloc_buffer(({G}, {M}, {NB}, {L}), "bfloat16")',
    "packed": """
    for g, b, d, l, p in T.grid({G}, {NB}, {DP}, {L}, T.int64(2)):
        with T.sblock("attention_keys"):
            vg, vb, vd, vl, vp = T.axis.remap("SSSSS", [g, b, d, l, p])
            keys[vg, vb, vd, vl, vp] = {key}
    for g, b, n, l, p in T.grid({G}, {DB}, {NP}, {L}, T.int64(2)):
        with T.sblock("attention_values"):
            vg, vb, vn, vl, vp = T.axis.remap("SSSSS", [g, b, n, l, p])
            values[vg, vb, vn, vl, vp] = {value}""",
    "product": """
    for g, m, b, l, d, p in T.grid({G}, {M}, {NB}, {L}, {DP}, T.int64(2)):
        with T.sblock("attention_product"):
            vg, vm, vb, vl, vd, vp = T.axis.remap("SSSSRR", [g, m, b, l, d, p])
            with T.init():
                product[vg, vm, vb, vl] = T.float32(0)
            product[vg, vm, vb, vl] = product[vg, vm, vb, vl] + (
                T.Cast("float32", queries[vg, vm, vd * 2 + vp]) * T.Cast("float32", keys[vg, vb, vd, vl, vp])
            )""",
    "mixing": """
    for g, m, b, l, n, p in T.grid({G}, {M}, {DB}, {L}, {NP}, T.int64(2)):
        with T.sblock("attention_mixed"):
            vg, vm, vb, vl, vn, vp = T.axis.remap("SSSSRR", [g, m, b, l, n, p])
            with T.init():
                mixed[vg, vm, vb, vl] = T.float32(0)
            mixed[vg, vm, vb, vl] = mixed[vg, vm, vb, vl] + (
                T.Cast("float32", weights[vg, vm, vn // {L2}, vn % {L2} * 2 + vp])
                * T.Cast("float32", values[vg, vb, vn, vl, vp])
            )""",
    "weight": format_bfloat16_cast(_EXP),
    "added": 'T.Cast("float32", weights[vg, vm, vb, vl])',
}


@cache
def attention_kernel(attention: Attention) -> Any:
    """Return the PrimFunc of q, k, v, the operands of the steps and the output."""
    parts = _template_values(attention)
    variant = _PAIRED if attention.paired else _PLAIN
    return parse_kernel(
        _SOURCE, {**parts, **{name: text.format(**parts).lstrip("\n") for name, text in variant.items()}}
    )


def _template_values(of: Attention) -> dict[str, Any]:
    (score_blocks, out_blocks), lanes = of.blocks, of.lanes
    steps = named_steps(of)
    row = "vm" if of.rows == of.queries else f"T.min(vm, {of.queries - 1})"
    column = f"vb * {lanes} + vl"

    multiplied = "bfloat16" if of.paired else "float32"
    zero, scale = f"T.{multiplied}(0)", f" * T.float32({of.scale!r})"
    depths, places = (2 * -(-count // 2) if of.paired else count for count in (of.depth, of.keys))
    depth, place = ("vd * 2 + vp", "vn * 2 + vp") if of.paired else ("vd", "vn")
    key = of.k.read("k", "vg", column, depth, dtype=multiplied) + ("" if of.paired else scale)
    key = select_inside(depth, of.depth, depths, key, zero)
    value = select_inside(place, of.keys, places, of.v.read("v", "vg", place, column, dtype=multiplied), zero)
    score = "product[vg, vm, vb, vl]" + (scale if of.paired else "")
    for name, step in steps.items():
        read = step.operand.read(name, "vg", row, column)
        score = f"({score}) * {read}" if step.multiplies else f"{score} + {read}"
    extents = {
        "G": of.batch,
        "M": of.rows,
        "N": places,
        "D": depths,
        "L": lanes,
        "NB": score_blocks,
        "DB": out_blocks,
        "DP": depths // 2,
        "NP": places // 2,
        "L2": lanes // 2,
    }
    mixed = "mixed[vg, vm, vb, vl] * factor[vg, vm]"
    conditions = []
    out = of.out.index.text("vg", "vm", column)
    if not fits_padding(of):
        conditions = [f"vm < {of.queries}"] if of.rows > of.queries else []
        conditions += [f"{column} < {of.width}"] if of.width % lanes else []
    return {
        "parameters": parameters_of(of),
        **{name: f"T.int64({extent})" if of.paired else extent for name, extent in extents.items()},
        "key": select_inside(column, of.keys, score_blocks * lanes, key, zero),
        "value": select_inside(column, of.width, out_blocks * lanes, value, zero),
        "query": select_inside("vd", of.depth, depths, of.q.read("q", "vg", row, "vd", dtype=multiplied), zero),
        "score": select_inside(column, of.keys, score_blocks * lanes, score, 'T.float32("-inf")'),
        "lowest": LOWEST,
        "factor": "T.Select(total[vg, vm] > T.float32(0), T.float32(1) / total[vg, vm], T.float32(0))"
        if of.safe
        else "T.float32(1) / total[vg, vm]",
        "inside": f"if {' and '.join(conditions)}:\n                " if conditions else "",
        "out": out,
        "mixed": _cast_output(of, mixed),
    }


def named_steps(of: Attention) -> dict[str, Step]:
    return {f"{'factor' if step.multiplies else 'bias'}{at}": step for at, step in enumerate(of.steps)}


def parameters_of(of: Attention) -> str:
    """Return the parameters of the kernel in TVMScript."""
    arrays = {"q": of.q, "k": of.k, "v": of.v, **{name: step.operand for name, step in named_steps(of).items()}}
    return ", ".join(f"{name}: {one.buffer}" for name, one in {**arrays, "out": of.out}.items())


def _cast_output(of: Attention, value: str) -> str:
    if of.out.dtype == "float32":
        return value
    return (
        format_bfloat16_cast(value)
        if of.paired and of.out.dtype == "bfloat16"
        else f'T.Cast("{of.out.dtype}", {value})'
    )


@cache
def fits_padding(of: Attention) -> bool:
    """Whether padded rows and columns have elements of their own in the output."""
    sizes = (of.batch, of.rows, of.blocks[1] * of.lanes)
    if int(np.prod(sizes)) != int(np.prod(of.out.shape)):
        return False
    index = of.out.index.at(*np.ogrid[: sizes[0], : sizes[1], : sizes[2]])
    if any(int(at.max()) >= extent for at, extent in zip(index, of.out.shape, strict=True)):
        return False
    flat = np.ravel_multi_index(np.broadcast_arrays(*index), of.out.shape)
    return bool(np.unique(flat).size == flat.size)
