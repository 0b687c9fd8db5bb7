"""Lower attention to a kernel whose two products are those of 1x1 convolutions, for arm64's tiles.

Queries, scores and outputs are images of one row in blocks of eight channels. Scores are logarithms to base 2, by the
factor of the keys or, behind other steps, by one of their own. Keys behind the last one are copies of it, whose weights
are subtracted from the total, so that no score is compared with the number of keys; where something is added to scores,
these are minus infinity instead.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from tvmflow.passes.legalize.attention import TOTALS, Attention, fits_padding, named_steps, parameters_of
from tvmflow.passes.legalize.batch_matmul import Operand, parse_kernel, select_inside
from tvmflow.schedules.intrinsics.arm_functions import POWER

MOST_KEYS_OF_HALF = 1024  # their sum of values in float16 stays a number if these are below 64
_LOWEST = {"float32": "-3.4028234663852886e38", "float16": "-65504.0"}

_SOURCE = """
@T.prim_func(s_tir=True)
def attention({parameters}) -> None:
    T.func_attr({{"tirx.noalias": True, "op_pattern": 8}})
    keys = T.sblock_alloc_buffer(({G}, {NB}, {KB}, {I}, {I}, {L}, {L}), "{X}")
    values = T.sblock_alloc_buffer(({G}, {DB}, {NB}, {I}, {I}, {L}, {L}), "{X}")
    queries = T.sblock_alloc_buffer(({G}, {KB}, {I}, {M}, {L}), "{X}")
    product = T.sblock_alloc_buffer(({G}, {NB}, {I}, {M}, {L}), "{X}")
    scores = T.sblock_alloc_buffer(({G}, {NB}, {I}, {M}, {L}), "{X}")
    most_of_lane = T.sblock_alloc_buffer(({G}, {M}, {L}), "{X}")
    most = T.sblock_alloc_buffer(({G}, {M}), "{X}")
    weights = T.sblock_alloc_buffer(({G}, {NB}, {I}, {M}, {L}), "{X}")
    total_of_lane = T.sblock_alloc_buffer(({G}, {M}, {L}))
    total = T.sblock_alloc_buffer(({G}, {M}))
    factor = T.sblock_alloc_buffer(({G}, {M}))
    mixed = T.sblock_alloc_buffer(({G}, {DB}, {I}, {M}, {L}), "{X}")
    for g, b, d, u, l in T.grid({G}, {NB}, {KB}, {L}, {L}):
        with T.sblock("attention_keys"):
            vg, vb, vd, vu, vl = T.axis.remap("SSSSS", [g, b, d, u, l])
            keys[vg, vb, vd, {O}, {O}, vu, vl] = {key}
    for g, b, n, u, l in T.grid({G}, {DB}, {NB}, {L}, {L}):
        with T.sblock("attention_values"):
            vg, vb, vn, vu, vl = T.axis.remap("SSSSS", [g, b, n, u, l])
            values[vg, vb, vn, {O}, {O}, vu, vl] = {value}
    for g, d, r, m, u in T.grid({G}, {KB}, {I}, {M}, {L}):
        with T.sblock("attention_queries"):
            vg, vd, vr, vm, vu = T.axis.remap("SSSSS", [g, d, r, m, u])
            queries[vg, vd, vr, vm, vu] = {query}
    for g, b, r, m, l, d, u in T.grid({G}, {NB}, {I}, {M}, {L}, {KB}, {L}):
        with T.sblock("attention_product"):
            vg, vb, vr, vm, vl, vd, vu = T.axis.remap("SSSSSRR", [g, b, r, m, l, d, u])
            with T.init():
                product[vg, vb, vr, vm, vl] = T.{X}(0)
            product[vg, vb, vr, vm, vl] = (
                product[vg, vb, vr, vm, vl] + queries[vg, vd, vr, vm, vu] * keys[vg, vb, vd, {O}, {O}, vu, vl]
            )
    for g, m, b, l in T.grid({G}, {M}, {NB}, {L}):
        with T.sblock("attention_scores"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, b, l])
            scores[vg, vb, {O}, vm, vl] = {score}
    for g, m, l, b in T.grid({G}, {M}, {L}, {NB}):
        with T.sblock("attention_most_of_lane"):
            vg, vm, vl, vb = T.axis.remap("SSSR", [g, m, l, b])
            with T.init():
                most_of_lane[vg, vm, vl] = T.{X}({lowest})
            most_of_lane[vg, vm, vl] = {larger_of_lane}
    for g, m, l in T.grid({G}, {M}, {L}):
        with T.sblock("attention_most"):
            vg, vm, vl = T.axis.remap("SSR", [g, m, l])
            with T.init():
                most[vg, vm] = T.{X}({lowest})
            most[vg, vm] = T.max(most[vg, vm], most_of_lane[vg, vm, vl])
    for g, m, b, l in T.grid({G}, {M}, {NB}, {L}):
        with T.sblock("attention_weights"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, b, l])
            weights[vg, vb, {O}, vm, vl] = T.call_intrin("{X}", "{power}", scores[vg, vb, {O}, vm, vl] - most[vg, vm])
{totals}    for g, b, r, m, l, n, u in T.grid({G}, {DB}, {I}, {M}, {L}, {NB}, {L}):
        with T.sblock("attention_mixed"):
            vg, vb, vr, vm, vl, vn, vu = T.axis.remap("SSSSSRR", [g, b, r, m, l, n, u])
            with T.init():
                mixed[vg, vb, vr, vm, vl] = T.{X}(0)
            mixed[vg, vb, vr, vm, vl] = (
                mixed[vg, vb, vr, vm, vl] + weights[vg, vn, vr, vm, vu] * values[vg, vb, vn, {O}, {O}, vu, vl]
            )
    for g, m, b, l in T.grid({G}, {M}, {DB}, {L}):
        with T.sblock("attention"):
            vg, vm, vb, vl = T.axis.remap("SSSS", [g, m, b, l])
            {inside}out[{out}] = {mixed}
""".replace("{totals}", TOTALS)


@cache
def tiled_attention_kernel(attention: Attention) -> Any:
    """Return the PrimFunc of q, k, v, the operands of the steps and the output."""
    return parse_kernel(_SOURCE, _template_values(attention))


def _template_values(of: Attention) -> dict[str, Any]:
    (score_blocks, out_blocks), lanes, kind = of.blocks, of.lanes, of.tiled
    depth_blocks = -(-of.depth // lanes)
    row = "vm" if of.rows == of.queries else f"T.min(vm, {of.queries - 1})"
    column, depth, place = f"vb * {lanes} + vl", f"vd * {lanes} + vu", f"vn * {lanes} + vu"
    zero, pads = f"T.{kind}(0)", 0 if of.steps else score_blocks * lanes - of.keys
    scale = of.scale if of.steps else of.scale / math.log(2)
    copied = f"T.min({column}, {of.keys - 1})" if pads else column
    key = _cast(f"{of.k.read('k', 'vg', copied, depth)} * T.float32({scale!r})", kind)
    key = select_inside(depth, of.depth, depth_blocks * lanes, key, zero)
    if of.steps:
        key = select_inside(column, of.keys, score_blocks * lanes, key, zero)
    value = select_inside(place, of.keys, score_blocks * lanes, _read(of.v, "v", kind, place, column), zero)
    total = "total[vg, vm]"
    if pads:
        last = f"T.int64({score_blocks - 1}), T.int64(0), vm, T.int64({lanes - 1})"
        total += f" - T.float32({float(pads)}) * {_wide(f'weights[vg, {last}]', kind)}"
    inverse = f"T.float32(1) / ({total})"
    if of.safe:
        inverse = f"T.Select({total} > T.float32(0), {inverse}, T.float32(0))"
    conditions = []
    if not fits_padding(of):
        conditions = [f"vm < {of.queries}"] if of.rows > of.queries else []
        conditions += [f"{column} < {of.width}"] if of.width % lanes else []
    # Lanes of float16 would bind the sums to half of the registers, which leaves the tile too few.
    mixed = f"{_wide('mixed[vg, vb, T.int64(0), vm, vl]', kind)} * factor[vg, vm]"
    return {
        "parameters": parameters_of(of),
        "X": kind,
        "I": "T.int64(1)",
        "O": "T.int64(0)",
        "G": f"T.int64({of.batch})",
        "M": f"T.int64({of.rows})",
        "L": f"T.int64({lanes})",
        "NB": f"T.int64({score_blocks})",
        "DB": f"T.int64({out_blocks})",
        "KB": f"T.int64({depth_blocks})",
        "key": key,
        "value": select_inside(column, of.width, out_blocks * lanes, value, zero),
        "query": select_inside(depth, of.depth, depth_blocks * lanes, _read(of.q, "q", kind, row, depth), zero),
        "score": _score(of, row, column),
        "lowest": _LOWEST[kind],
        "larger_of_lane": f'T.call_intrin("{kind}", "tvmflow.larger", most_of_lane[vg, vm, vl], '
        "scores[vg, vb, T.int64(0), vm, vl])",
        "power": POWER,
        "added": _wide("weights[vg, vb, T.int64(0), vm, vl]", kind),
        "factor": inverse,
        "inside": f"if {' and '.join(conditions)}:\n                " if conditions else "",
        "out": of.out.index.text("vg", "vm", column),
        "mixed": _cast(mixed, of.out.dtype),
    }


def _score(of: Attention, row: str, column: str) -> str:
    """Return a score, to base 2."""
    score = "product[vg, vb, T.int64(0), vm, vl]"
    if not of.steps:
        return score
    score = _wide(score, of.tiled)
    for name, step in named_steps(of).items():
        read = step.operand.read(name, "vg", row, column)
        score = f"({score}) * {read}" if step.multiplies else f"{score} + {read}"
    score = _cast(f"({score}) * T.float32({1 / math.log(2)!r})", of.tiled)
    return select_inside(column, of.keys, of.blocks[0] * of.lanes, score, f'T.{of.tiled}("-inf")')


def _read(operand: Operand, name: str, kind: str, row: str, column: str) -> str:
    """Return an element in the type of the products."""
    if operand.dtype == kind:
        return f"{name}[{operand.index.text('vg', row, column)}]"
    return _cast(operand.read(name, "vg", row, column), kind)


def _cast(value: str, kind: str) -> str:
    """Return a float32 expression in a type."""
    return value if kind == "float32" else f'T.Cast("{kind}", {value})'


def _wide(value: str, kind: str) -> str:
    """Return an expression of a type in float32."""
    return value if kind == "float32" else f'T.Cast("float32", {value})'
