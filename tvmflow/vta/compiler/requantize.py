"""Requantize on the ALU: shift, bias, rounding, clip."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmflow.vta.isa.instructions import IMMEDIATE_MAX, AluOp
from tvmflow.vta.isa.program import LaunchBuilder, Loops
from tvmflow.vta.isa.region import Tail

Array = np.ndarray[Any, Any]


def tail_ops(tail: Tail, has_bias: bool) -> list[tuple[AluOp, int | None]]:
    """Return the ALU operations of a tail; None as operand is the bias, which then holds the rounding too."""
    ops: list[tuple[AluOp, int | None]] = []
    if tail.left:
        ops.append((AluOp.SHR, -tail.left))
    if has_bias:
        ops.append((AluOp.ADD, None))
    elif tail.half:
        ops.append((AluOp.ADD, tail.half))
    if tail.right:
        ops.append((AluOp.SHR, tail.right))
    if tail.saturates:
        ops += [(AluOp.MAX, tail.low), (AluOp.MIN, tail.high)]
    elif tail.low >= 0:
        ops.append((AluOp.MAX, tail.low))
    return ops


def needs_bias(tail: Tail) -> bool:
    """Whether a tail adds a vector from DRAM; a rounding too large for an immediate is one as well."""
    return (tail.bias is not None and bool(np.any(tail.bias))) or tail.half > IMMEDIATE_MAX


def bias_vector(tail: Tail, channels: int) -> Array:
    """Return int32 (C,): the bias with the rounding in it."""
    bias = np.zeros(channels, np.int32) if tail.bias is None else tail.bias.astype(np.int32)
    return bias + np.int32(tail.half)


def apply_tail(
    builder: LaunchBuilder, ops: list[tuple[AluOp, int | None]], base: int, blocks: int, vectors: int, bias: int = 0
) -> None:
    """Apply operations to `blocks` times `vectors` accumulators from `base` on; biases of the blocks lie from `bias`
    on.
    """
    for op, operand in ops:
        if operand is None:
            loops = Loops(blocks, vectors, (vectors if blocks > 1 else 0, 1), (1 if blocks > 1 else 0, 0))
            builder.alu(op, [(base, bias, 0)], loops)
        else:
            builder.alu(op, [(base, 0, 0)], Loops(1, blocks * vectors, (0, 1)), operand)
