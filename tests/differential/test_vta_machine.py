"""Compare the fast VTA simulator with the interpreter, instruction by instruction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.differential.vta_cases import (
    CONFIG,
    ORDERS,
    OUT,
    TINY,
    image,
    program_of,
    run_both,
)
from tests.differential.vta_interpreter import Interpreter
from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import PAGE, Memory
from tvmflow.vta.isa.instructions import Alu, AluOp, Finish, Flags, Gemm, Instruction, Mem, encode_uops
from tvmflow.vta.isa.program import Dram, Launch, LaunchBuilder, Loops, Program
from tvmflow.vta.machine.execution import order_instructions
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.machine.simulator import Simulator
from tvmflow.vta.runtime.device import dram_of


def test_store_wraps_and_saturates_only_when_told() -> None:
    """VTA's save_load_out, relu and shift tests in one: 32-bit numbers in, shifted, clipped and not, stored as
    bytes.
    """
    values = np.random.default_rng(0).integers(-(2**20), 2**20, (36, 1, 16)).astype(np.int32)
    dram = Dram(CONFIG, OUT + PAGE)
    builder = LaunchBuilder(CONFIG, dram, "alu")
    builder.load(Memory.ACC, 0, dram.constant(values), (6, 6), 6)
    builder.alu(AluOp.SHR, [(0, 0, 0)], Loops(1, 36, (0, 1), (0, 1)), 3)
    builder.store(0, OUT, (6, 6), 6)
    builder.alu(AluOp.MAX, [(0, 0, 0)], Loops(1, 36, (0, 1), (0, 1)), 0)
    builder.alu(AluOp.MIN, [(0, 0, 0)], Loops(1, 36, (0, 1), (0, 1)), 127)
    builder.store(0, OUT + 1024, (1, 36), 36)
    memory = run_both(CONFIG, program_of(CONFIG, dram, builder))
    shifted = values >> 3
    assert np.array_equal(memory[OUT : OUT + 576].view(np.int8), shifted.astype(np.int8).reshape(-1))
    assert np.array_equal(
        memory[OUT + 1024 : OUT + 1600].view(np.int8), np.clip(shifted, 0, 127).astype(np.int8).reshape(-1)
    )


@pytest.mark.parametrize("pads", [(2, 0, 0, 0), (0, 2, 0, 0), (0, 0, 2, 0), (0, 0, 0, 2), (1, 1, 1, 1)])
def test_padded_load(pads: tuple[int, int, int, int]) -> None:
    values = image((3, 5, 1, 16))
    dram = Dram(CONFIG, OUT + PAGE)
    builder = LaunchBuilder(CONFIG, dram, "pad")
    top, bottom, left, right = pads
    height, width = 3 + top + bottom, 5 + left + right
    builder.load(Memory.ACC_8BIT, 4, dram.constant(values), (3, 5), 5, pads)
    builder.alu(AluOp.SHR, [(4, 4, 0)], Loops(1, height * width, (0, 1), (0, 1)), 0)
    builder.store(4, OUT, (height, width), width)
    memory = run_both(CONFIG, program_of(CONFIG, dram, builder))
    expected = np.pad(values, ((top, bottom), (left, right), (0, 0), (0, 0)))
    assert np.array_equal(memory[OUT : OUT + expected.size].view(np.int8), expected.reshape(-1))


@pytest.mark.parametrize("op", list(AluOp))
@pytest.mark.parametrize("imm", [None, -3, 0, 5, 31, -31, 40, -40, 127])
def test_alu_against_numpy(op: AluOp, imm: int | None) -> None:
    chance = np.random.default_rng(op)
    x, y = (chance.integers(-16, 16, (64, 1, 16)).astype(np.int32) << 20 for _ in range(2))
    y = y >> 20 if op is AluOp.SHR else y
    dram = Dram(CONFIG, OUT + PAGE)
    builder = LaunchBuilder(CONFIG, dram, "alu")
    builder.load(Memory.ACC, 0, dram.constant(np.concatenate([x, y])), (1, 128), 128)
    builder.alu(op, [(0, 64, 0)], Loops(8, 8, (8, 1), (8, 1)), imm)
    program = program_of(CONFIG, dram, builder)
    machine = Interpreter(CONFIG, dram_of(program))
    for instruction in order_instructions(program.launches[0]):
        machine.execute(instruction)
    right = y.astype(np.int64) if imm is None else np.full(x.shape, imm, np.int64)
    wide = x.astype(np.int64)
    expected = {
        AluOp.MIN: np.minimum(wide, right),
        AluOp.MAX: np.maximum(wide, right),
        AluOp.ADD: wide + right,
        AluOp.MUL: wide * right,
        AluOp.SHR: np.where(right >= 0, wide >> np.minimum(np.abs(right), 31), wide << np.minimum(np.abs(right), 32)),
    }[op]
    assert np.array_equal(machine.memories[Memory.ACC][:64], expected.astype(np.int64).astype(np.int32))
    run_both(CONFIG, program)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A random program: everything loaded once, then loads, GEMMs, ALU work and stores anywhere."""
    config, chance = TINY, np.random.default_rng(draw(st.integers(0, 2**32)))
    dram = Dram(config, OUT + PAGE)
    data = {
        Memory.INP: chance.integers(-128, 128, (64, 1, 4), dtype=np.int8),
        Memory.WGT: chance.integers(-128, 128, (32, 4, 4), dtype=np.int8),
        Memory.ACC: chance.integers(-(2**31), 2**31, (64, 1, 4)).astype(np.int32),
        Memory.ACC_8BIT: image((64, 1, 4), 1),
    }
    at = {memory: dram.constant(values) for memory, values in data.items()}
    builder = LaunchBuilder(config, dram, "random", with_row_hazards=False)
    for memory in (Memory.INP, Memory.WGT, Memory.ACC):
        builder.load(memory, 0, at[memory], (1, config.depth(memory)), 1)
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("load", "gemm", "reset", "alu", "alu", "store")))
        if kind == "load":
            memory = draw(st.sampled_from(list(at)))
            depth = config.depth(Memory.ACC if memory is Memory.ACC_8BIT else memory)
            rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            pads = tuple(draw(st.integers(0, 1)) for _ in range(4))
            size = (rows + pads[0] + pads[1]) * (columns + pads[2] + pads[3])
            if size <= depth:
                builder.load(
                    memory,
                    draw(st.integers(0, depth - size)),
                    at[memory],
                    (rows, columns),
                    draw(st.integers(columns, 6)),
                    (pads[0], pads[1], pads[2], pads[3]),
                )
        elif kind == "store":
            rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4))
            address = OUT + 4 * draw(st.integers(0, 16))
            builder.store(draw(st.integers(0, 32 - rows * columns)), address, (rows, columns), draw(st.integers(1, 6)))
        else:
            loops = Loops(draw(st.integers(1, 3)), draw(st.integers(1, 3)), *(draw(_factors) for _ in range(3)))
            uops = draw(
                st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(0, 3)), min_size=1, max_size=4)
            )
            if kind == "alu":
                op = draw(st.sampled_from(list(AluOp)))
                builder.alu(op, uops, loops, draw(st.none() | st.integers(-40, 40)))
            else:
                builder.gemm(uops, loops, reset=kind == "reset")
    return program_of(config, dram, builder)


_factors = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=examples(30), deadline=None)
@given(programs(), st.sampled_from(ORDERS))
def test_random_programs_run_alike_on_both_machines_in_any_order(program: Program, order: str) -> None:
    assert np.array_equal(run_both(TINY, program), run_both(TINY, program, order))
    assert lint(program) == []


def launch_of(*instructions: Instruction) -> Launch:
    return Launch("made", tuple(instructions))


def test_deadlock_and_leftovers_are_told_with_heads_and_counts() -> None:
    waits = Mem(Memory.UOP, flags=Flags(pop_prev=True))
    with pytest.raises(ProgramError, match=r"deadlock.*COMPUTE: LOAD UOP nop  \[pop_prev\] \(2 left\).*l2g 0"):
        list(order_instructions(launch_of(waits, Finish())))
    with pytest.raises(ProgramError, match=r"leaves work.*l2g 1"):
        list(order_instructions(launch_of(Mem(Memory.INP, flags=Flags(push_next=True)), Finish())))
    with pytest.raises(ProgramError, match="STORE: STORE OUT nop"):
        list(order_instructions(launch_of(Mem(Memory.OUT, is_store=True), Finish()), "compute-first"))
    with pytest.raises(ProgramError, match="between LOAD and nothing"):
        list(order_instructions(launch_of(Mem(Memory.INP, flags=Flags(push_prev=True)), Finish())))


BAD = [
    Mem(Memory.INP, 30, 1024, 1, 4, 4),
    Mem(Memory.INP, 0, 1 << 28, 1, 4, 4),
    Mem(Memory.OUT, 30, 1024, 1, 4, 4, is_store=True),
    Mem(Memory.OUT, 20, 1024, 1, 4, 4, is_store=True),
    Mem(Memory.OUT, 0, 1024, 1, 4, 4, 1, is_store=True),
    Mem(Memory.OUT, 0, 1024, 1, 4, 4),
    Mem(Memory.INP, 0, 1023, 1, 4, 4),
    Mem(Memory.OUT, 0, 0, 1, 4, 4, is_store=True),
    Gemm(1, 2),
    Gemm(0, 1, iter_out=40, dst_out=1),
    Gemm(0, 1, iter_out=9, src_out=1),
    Gemm(0, 1, iter_out=5, wgt_out=1),
    Gemm(0, 1, iter_out=40, src_out=1),
    Gemm(0, 1, iter_out=40, wgt_out=1),
    Gemm(31, 33),
    Alu(AluOp.ADD, 0, 1, iter_out=10, dst_out=1, imm=1),
    Alu(AluOp.ADD, 0, 1, iter_out=40, src_out=1, imm=1),
    Alu(AluOp.ADD, 0, 1, iter_out=10, src_out=1),
]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_what_is_out_of_range_or_never_written_is_an_error_on_both_machines(bad: Instruction) -> None:
    """8 inputs, 4 weights, 8 accumulators and micro-op 0 are there; the instruction reaches for something else."""
    messages = []
    for kind in (Interpreter, Simulator):
        machine = kind(TINY, np.zeros(2 * PAGE, np.uint8))
        machine.dram[6144:6148] = encode_uops(TINY, [(0, 0, 0)]).view(np.uint8)
        for load in (
            Mem(Memory.UOP, 0, 1536, 1, 1, 1),
            Mem(Memory.INP, 0, 1024, 1, 8, 8),
            Mem(Memory.WGT, 0, 256, 1, 4, 4),
            Mem(Memory.ACC, 0, 256, 1, 8, 8),
        ):
            machine.execute(load)
        with pytest.raises(ProgramError) as caught:
            machine.execute(bad)
        messages.append(caught.value.found)
    assert len(messages) == 2
