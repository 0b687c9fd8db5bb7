"""Test that simulator and linter find token errors, races and violations of hardware designs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.differential.vta_cases import (
    BOARD,
    image,
    layer_values,
    random_conv,
)
from tvmflow.support.errors import ProgramError
from tvmflow.vta.compiler.compiler import compile_region
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.instructions import Alu, AluOp, Finish, Instruction, Mem
from tvmflow.vta.isa.program import Launch, Program, check_row_hazard
from tvmflow.vta.isa.region import MaxPool, Region, Sum, Tail
from tvmflow.vta.machine.execution import order_instructions, run_launch
from tvmflow.vta.machine.lint import lint
from tvmflow.vta.machine.simulator import Simulator
from tvmflow.vta.runtime.device import dram_of


def small_program() -> Program:
    operators = (
        random_conv("a", "x", (32, 32), 3),
        random_conv("b", "a", (32, 32), 3, relu=False, seed=1),
        Sum("s", ("b", "x"), (0, 0), Tail(low=0)),
        MaxPool("p", "s", (2, 2), (2, 2), (0,) * 4),
    )
    return compile_region(TINY_BLOCKS, Region({"x": (1, 32, 12, 12)}, operators, ("p",)), "optimized")


TINY_BLOCKS = VtaConfig(log_inp_buff_size=11, log_wgt_buff_size=15, log_acc_buff_size=13)


def token_ends(program: Program) -> Iterator[tuple[int, int, str]]:
    for number, launch in enumerate(program.launches):
        for at, instruction in enumerate(launch.instructions):
            for name in ("pop_prev", "pop_next", "push_prev", "push_next"):
                if getattr(instruction.flags, name):
                    yield number, at, name


def test_dropping_any_one_end_of_a_token_is_caught() -> None:
    program = small_program()
    ends = list(token_ends(program))
    assert len(ends) > 100 and lint(program) == []
    for number, at, name in ends:
        broken = copy.deepcopy(program.launches[number])
        setattr(broken.instructions[at].flags, name, False)
        with pytest.raises(ProgramError, match=r"deadlock|leaves work"):
            list(order_instructions(broken))


def test_dropping_both_ends_of_a_token_is_a_race_that_the_linter_finds() -> None:
    """Remove the k-th push and the k-th pop of a queue: balance holds, but nothing orders the two any more."""
    program = small_program()
    opposite = {"push_next": "pop_prev", "push_prev": "pop_next"}
    missed = tried = 0
    for number, launch in enumerate(program.launches):
        for module, name in ((0, "push_next"), (1, "push_prev"), (1, "push_next"), (2, "push_prev")):
            other = module + (1 if name == "push_next" else -1)
            pushes = [i for i, x in enumerate(launch.instructions) if x.module == module and getattr(x.flags, name)]
            pops = [
                i for i, x in enumerate(launch.instructions) if x.module == other and getattr(x.flags, opposite[name])
            ]
            assert len(pushes) == len(pops)
            for push, pop in zip(pushes, pops, strict=True):
                if isinstance(launch.instructions[pop], Mem) and launch.instructions[pop].is_nop:  # type: ignore[union-attr]
                    continue  # the wait before FINISH: no access of its own
                broken = copy.deepcopy(launch)
                setattr(broken.instructions[push].flags, name, False)
                setattr(broken.instructions[pop].flags, opposite[name], False)
                launches = (*program.launches[:number], broken, *program.launches[number + 1 :])
                tried += 1
                missed += lint(replace(program, launches=launches)) == []
    assert tried > 50 and missed == 0


def test_linter_finds_what_real_designs_cannot_do() -> None:
    program = small_program()

    def with_instruction(instruction: Instruction) -> list[str]:
        launch = program.launches[0]
        changed = Launch(launch.name, (*launch.instructions[:-1], instruction, Finish()))
        return lint(replace(program, launches=(changed,)), BOARD)

    begin = next(i.uop_bgn for i in program.launches[0].instructions if isinstance(i, Alu))
    assert any("MUL" in text for text in with_instruction(Alu(AluOp.MUL, begin, begin + 1, imm=2)))
    assert any("a shift by 16" in text for text in with_instruction(Alu(AluOp.SHR, begin, begin + 1, imm=16)))
    assert any("8-bit load" in text for text in with_instruction(Mem(Memory.ACC_8BIT, 0, PAGE // 16, 1, 1, 1)))
    assert any("DRAM bytes" in text for text in with_instruction(Mem(Memory.ACC, 0, 0, 1, 1, 1)))
    assert any("elements" in text for text in with_instruction(Mem(Memory.ACC, 127, PAGE // 64, 1, 2, 2)))
    unfinished = replace(program, launches=(Launch("open", program.launches[0].instructions[:-1]),))
    assert any("does not end with FINISH" in text for text in lint(unfinished))


def test_two_micro_ops_may_not_write_one_accumulator_in_a_row() -> None:
    check_row_hazard([(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 0, 0)])
    for uops in ([(0, 0, 0), (0, 1, 0)], [(0, 0, 0), (1, 0, 0), (0, 1, 0)]):
        with pytest.raises(ProgramError, match="accumulator 0"):
            check_row_hazard(uops)


def test_poisoned_memory_does_not_show() -> None:
    """What a program leaves in DRAM and on the chip does not reach the next run."""
    program = small_program()
    x = {"x": image((1, 32, 12, 12))}
    shapes = {"a": (1, 32, 12, 12), "s": (1, 32, 12, 12), "p": (1, 32, 6, 6)}
    clean = layer_values(program, x, shapes)  # type: ignore[arg-type]
    memory = dram_of(program)
    memory[PAGE : program.constants_at] = 0xAA
    from tvmflow.vta.isa.region import pack, unpack
    from tvmflow.vta.runtime.device import read_tensor, write_tensor

    write_tensor(memory, program.inputs[0], pack(program.config, x["x"]))
    machine = Simulator(program.config, memory)
    for values in machine.memories.values():
        values[...] = 77
    for launch in program.launches:
        machine.forget()
        run_launch(launch, machine)
    assert np.array_equal(unpack(read_tensor(memory, program.outputs[0]), (1, 32, 6, 6)), clean["p"])
