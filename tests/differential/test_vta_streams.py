"""Feed arbitrary instructions to both VTA simulators and the linter: equal verdicts, and no crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.differential.vta_cases import CONFIG, TINY
from tests.differential.vta_interpreter import Interpreter
from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.instructions import Alu, AluOp, Finish, Flags, Gemm, Instruction, Mem, encode_uops
from tvmflow.vta.isa.program import Launch, Program
from tvmflow.vta.machine.counters import count
from tvmflow.vta.machine.execution import run_launch
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.machine.simulator import Simulator

DRAM_BYTES = 4 * PAGE
DEEP_ACC = VtaConfig(log_block=2, log_uop_buff_size=7, log_inp_buff_size=6, log_wgt_buff_size=8, log_acc_buff_size=10)
DEEP_INP = VtaConfig(log_block=2, log_uop_buff_size=7, log_inp_buff_size=9, log_wgt_buff_size=7, log_acc_buff_size=8)
DESIGNS = (TINY, DEEP_ACC, DEEP_INP)
"""32 inputs and 32 accumulators; 16 and 64; 128 and 16."""


def memory_of(config: VtaConfig, seed: int) -> Any:
    """Return DRAM of random bytes, with micro-ops of small indices in its second page."""
    chance = np.random.default_rng(seed)
    dram = chance.integers(0, 256, DRAM_BYTES, dtype=np.uint8)
    small = [(int(d), int(s), int(w)) for d, s, w in chance.integers(0, 5, (PAGE // 4, 3))]
    dram[PAGE : 2 * PAGE] = encode_uops(config, small).view(np.uint8)
    return dram


def filled(config: VtaConfig) -> list[Instruction]:
    """Return loads that fill every memory."""
    elements = {m: 2 * PAGE // config.element_bytes(m) for m in Memory}
    elements[Memory.UOP] = PAGE // 4
    return [
        Mem(m, 0, elements[m], 1, config.depth(m), config.depth(m))
        for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    ]


@st.composite
def instructions(draw: st.DrawFn, config: VtaConfig) -> Instruction:
    """Any instruction that can be encoded, small numbers more often than others."""

    def number(most: int, usual: int) -> int:
        return draw(st.integers(0, min(usual, most)) | st.sampled_from((0, most)))

    if draw(st.booleans()):
        memory = draw(st.sampled_from(list(Memory)))
        page = (PAGE if memory is Memory.UOP else 2 * PAGE) // config.element_bytes(memory)
        return Mem(
            memory,
            number(65535, 20),
            draw(st.integers(page, page + 20) | st.integers(0, 2 * page) | st.just(2**32 - 1)),
            number(65535, 3),
            number(65535, 4),
            number(65535, 6),
            *(number(15, 1) for _ in range(4)),
            is_store=draw(st.booleans()),
        )
    uop, inp, wgt, acc = (config.depth(m) for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
    begin = number(uop - 1, 4)
    loops = [begin, draw(st.integers(0, begin + 3)), *(draw(st.integers(0, 4) | st.just(60)) for _ in range(2))]
    loops += [number(acc - 1, 3), number(acc - 1, 3)]
    if draw(st.booleans()):
        factors = [number(m - 1, 3) for m in (inp, inp, wgt, wgt)]
        return Gemm(*loops, *factors, reset=draw(st.booleans()))
    op, imm = draw(st.sampled_from(list(AluOp))), draw(st.none() | st.integers(-40, 40))
    return Alu(op, *loops, number(acc - 1, 3), number(acc - 1, 3), imm=imm)


@st.composite
def streams(draw: st.DrawFn) -> tuple[VtaConfig, list[Instruction], int]:
    config = draw(st.sampled_from(DESIGNS))
    stream = draw(st.lists(instructions(config), min_size=1, max_size=6))
    return config, [*(filled(config) if draw(st.booleans()) else []), *stream], draw(st.integers(0, 2**16))


@settings(max_examples=examples(80), deadline=None)
@given(streams())
def test_any_stream_gives_the_same_memory_or_an_error_on_both_machines(
    drawn: tuple[VtaConfig, list[Instruction], int],
) -> None:
    config, stream, seed = drawn
    slow, fast = Interpreter(config, memory_of(config, seed)), Simulator(config, memory_of(config, seed))
    for at, instruction in enumerate(stream):
        errors = []
        for machine in (slow, fast):
            try:
                machine.execute(instruction)
            except ProgramError as error:
                errors.append(error)
        assert len(errors) in (0, 2), (instruction, errors)
        if errors:
            return
        assert fast.counters == count(config, stream[: at + 1])
    assert np.array_equal(slow.dram, fast.dram)
    for memory, values in slow.memories.items():
        kept = fast.memories[memory].swapaxes(1, 2) if memory is Memory.WGT else fast.memories[memory]
        assert np.array_equal(values, kept) and np.array_equal(slow.written[memory], fast.written[memory] != 0)


def program_of(config: VtaConfig, *stream: Instruction) -> Program:
    constants = memory_of(config, 0)[PAGE:]
    return Program(config, (Launch("made", stream),), constants, PAGE, DRAM_BYTES, (), (), ())


@settings(max_examples=examples(60), deadline=None)
@given(streams())
def test_the_linter_judges_any_stream_and_passes_only_what_runs(
    drawn: tuple[VtaConfig, list[Instruction], int],
) -> None:
    config, stream, _ = drawn
    program = program_of(config, *stream, Finish())
    if lint(program) == []:
        for order in ("load-eager", "compute-first", "store-first"):
            run_launch(program.launches[0], Simulator(config, memory_of(config, 0)), order)


@pytest.mark.parametrize(
    "empty",
    [
        Gemm(3, 3),
        Gemm(3, 1),
        Gemm(0, 1, iter_in=0),
        Gemm(0, 1, iter_out=0),
        Alu(AluOp.ADD, 2, 1, imm=1),
        Alu(AluOp.ADD, 0, 1, 0, 3, imm=1),
        Gemm(0, 1, iter_in=0, reset=True),
    ],
)
def test_the_linter_finds_loops_that_turn_never(empty: Instruction) -> None:
    warnings = lint(program_of(TINY, filled(TINY)[0], empty, Finish()))
    assert len(warnings) == 1 and "nothing to do" in warnings[0]


AT = 2 * PAGE // 4


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        ((Mem(Memory.INP, 0, AT, 1, 4, 4),), "FINISH may come before LOAD is done"),
        ((Mem(Memory.INP),), "FINISH may come before LOAD is done"),
        ((Mem(Memory.OUT, is_store=True),), "FINISH of made leaves work"),
        (
            (
                Mem(Memory.ACC, 0, AT // 4, 1, 4, 4, flags=Flags(push_next=True)),
                Mem(Memory.INP, 0, AT, 1, 4, 4, flags=Flags(push_next=True)),
                Mem(Memory.OUT, 0, AT, 1, 4, 4, is_store=True, flags=Flags(pop_prev=True, push_prev=True)),
                Mem(Memory.UOP, flags=Flags(pop_prev=True, pop_next=True)),
            ),
            "may come before a LOAD is done with it",
        ),
        (
            (
                Mem(Memory.ACC, 0, AT // 4, 1, 4, 4, flags=Flags(push_next=True)),
                Mem(Memory.OUT, 0, AT, 1, 4, 4, is_store=True, flags=Flags(pop_prev=True, push_prev=True)),
                Mem(Memory.INP, 0, AT, 1, 4, 4, flags=Flags(push_next=True)),
                Mem(Memory.UOP, flags=Flags(pop_prev=True, pop_next=True)),
            ),
            "DRAM 0x2000",
        ),
    ],
)
def test_the_linter_finds_races_with_finish_and_through_dram(stream: tuple[Instruction, ...], text: str) -> None:
    warnings = lint(program_of(TINY, *stream, Finish()))
    assert any(text in line for line in warnings), warnings


def test_a_store_that_waits_for_the_loads_of_its_place_is_no_race() -> None:
    """LOAD INP, then compute (which waits for it), then STORE (which waits for compute) over the same bytes."""
    warnings = lint(
        program_of(
            TINY,
            Mem(Memory.INP, 0, AT, 1, 4, 4, flags=Flags(push_next=True)),
            Mem(Memory.ACC, 0, AT // 4, 1, 4, 4, flags=Flags(pop_prev=True, push_next=True)),
            Mem(Memory.OUT, 0, AT, 1, 4, 4, is_store=True, flags=Flags(pop_prev=True, push_prev=True)),
            Mem(Memory.UOP, flags=Flags(pop_next=True)),
            Finish(),
        )
    )
    assert warnings == []


ENDLESS = (
    Gemm(0, 8192, 16383, 16383),
    Gemm(0, 8192, 16383, 16383, reset=True),
    Alu(AluOp.ADD, 0, 8192, 16383, 16383, imm=1),
    Alu(AluOp.MIN, 0, 64, 16383, 16383),
)


@pytest.mark.parametrize("instruction", ENDLESS, ids=repr)
@pytest.mark.parametrize("kind", [Interpreter, Simulator])
def test_more_steps_than_the_limit_are_refused_before_anything_runs(kind: Any, instruction: Instruction) -> None:
    machine = kind(CONFIG, np.zeros(DRAM_BYTES, np.uint8))
    for memory in machine.written:
        machine.written[memory][:] = 1
    with pytest.raises(ProgramError, match=r"steps"):
        machine.execute(instruction)
    few = Gemm(0, 8, 16383, 16383, reset=True)  # below the limit each, above it together
    with pytest.raises(ProgramError, match=r"made of [\d,]+ steps"):
        run_launch(Launch("made", (few, few, few, Finish())), machine)
    assert not machine.memories[Memory.ACC].any()
    assert any("steps" in line for line in lint(program_of(CONFIG, instruction, Finish())))


@pytest.mark.parametrize("kind", [Interpreter, Simulator])
@pytest.mark.parametrize(
    "below",
    [
        Mem(Memory.INP, 0, 0, 1, 4, 4),
        Mem(Memory.INP, 0, AT // 2 - 1, 2, 4, 4),
        Mem(Memory.OUT, 0, AT // 2 - 1, 1, 1, 1, is_store=True),
    ],
)
def test_the_first_page_of_dram_is_nobodys(kind: Any, below: Mem) -> None:
    machine = kind(TINY, memory_of(TINY, 0))
    machine.written[Memory.ACC][:] = 1
    with pytest.raises(ProgramError, match="DRAM byte"):
        machine.execute(below)
    if not below.is_store:  # FINISH would leave it behind
        assert any("DRAM bytes" in line for line in lint(program_of(TINY, below, Finish())))


@pytest.mark.parametrize("kind", [Interpreter, Simulator])
def test_transfers_of_no_rows_do_nothing(kind: Any) -> None:
    machine = kind(TINY, memory_of(TINY, 0))
    before = machine.dram.copy()
    for is_store, memory in ((True, Memory.OUT), (False, Memory.INP), (False, Memory.WGT), (False, Memory.ACC_8BIT)):
        machine.execute(Mem(memory, 0, 0, 0, 5, 5, is_store=is_store))
    assert np.array_equal(machine.dram, before) and not any(w.any() for w in machine.written.values())
    machine.execute(Mem(Memory.INP, 1, 0, 0, 2, 2, 1, 0, 1, 0))  # padding alone
    assert machine.written[Memory.INP].nonzero()[0].tolist() == [1, 2, 3]
