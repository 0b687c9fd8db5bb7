"""Schedule sums and max pools in optimized mode.

Values are multiplied by an identity block to copy them into the accumulator.
"""

from __future__ import annotations

import itertools

from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.convolution import Axis
from tvmflow.vta.compiler.dma import Place, Slots, copy_in, load_image, spans, store_tile
from tvmflow.vta.compiler.requantize import apply_tail, tail_ops
from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import MAX_ITERATIONS, AluOp
from tvmflow.vta.isa.program import LaunchBuilder, Loops
from tvmflow.vta.isa.region import Tail


def schedule_sum(
    builder: LaunchBuilder, inputs: list[tuple[int, int]], out: int, vectors: int, tail: Tail, identities: list[int]
) -> None:
    """Emit a sum of values that lie alike. inputs: (address, which identity); out: address; identities: addresses of
    blocks.

    An identity block times 2^k shifts its value left by k.
    """
    config = builder.config
    for at, address in enumerate(identities):
        builder.load(Memory.WGT, at, address, (1, 1), 1)
    slots = Slots(0, config.depth(Memory.INP) // 2, 2)
    regions = Slots(0, config.depth(Memory.ACC) // 2, 2)
    size = config.element_bytes(Memory.INP)
    step = min(slots.size, regions.size, MAX_ITERATIONS)
    for first, count in spans(vectors, step):
        base = regions.take()[0]
        builder.gemm([(base, 0, 0)], Loops(1, count, (0, 1)), reset=True)
        for address, identity in inputs:
            slot = slots.take()[0]
            builder.load(Memory.INP, slot, address + first * size, (1, count), count)
            copy_in(builder, slot, base, count, identity)
        apply_tail(builder, tail_ops(tail, False), base, 1, count)
        builder.store(base, out + first * size, (1, count), count)


def schedule_pool(
    builder: LaunchBuilder, axes: tuple[Axis, Axis], n: int, data: Place, out: Place, identity: int
) -> None:
    """Emit a max pool, one block of channels after the other, as many rows at once as fit."""
    config, (rows, columns) = builder.config, axes
    builder.load(Memory.WGT, 0, identity, (1, 1), 1)
    _, width = columns.window(0, out.width)
    slots = Slots(0, config.depth(Memory.INP) // 2, 2)
    tile = max(
        (
            h
            for h in range(1, out.height + 1)
            if _pool_fits(config, rows.window(0, h)[1] * width, h * out.width, slots.size)
        ),
        default=0,
    )
    if not tile:
        raise ProgramError(f"a pool over rows of {width} vectors", f"rows that fit {config.name}")
    for image, block in itertools.product(range(n), range(data.blocks)):
        for row, count in spans(out.height, tile):
            slot = slots.take()[0]
            first, height = rows.window(row, count)
            column, _ = columns.window(0, out.width)
            base, vectors = height * width, count * out.width
            load_image(builder, slot, data, (image, block), 1, (first, height, column, width))
            builder.gemm([(0, 0, 0)], Loops(1, base + vectors, (0, 1)), reset=True)
            copy_in(builder, slot, 0, height * width, 0)
            builder.alu(AluOp.ADD, [(base, 0, 0)], Loops(1, vectors, (0, 1)), -128)
            for (_, dy), (_, dx) in itertools.product(rows.phases[0], columns.phases[0]):
                src = (dy - rows.phases[0][0][1]) * width + dx - columns.phases[0][0][1]
                loops = Loops(count, out.width, (out.width, 1), (rows.src * width, columns.src))
                if count == 1:
                    loops = Loops(1, out.width, (0, 1), (0, columns.src))
                builder.alu(AluOp.MAX, [(base, src, 0)], loops)
            store_tile(builder, base, out, (image, block), 1, (row, count, 0, out.width))


def _pool_fits(config: VtaConfig, inputs: int, outputs: int, slot: int) -> bool:
    reach = min(
        config.depth(Memory.ACC), config.depth(Memory.INP)
    )  # the source index of an ALU micro-op has INP's width
    return inputs <= min(slot, reach) and inputs + outputs <= config.depth(Memory.ACC) and inputs <= MAX_ITERATIONS
