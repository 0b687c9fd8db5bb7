"""Check a program without running it: bounds, races, balance of tokens, limits of the device kind.

Races are found by vector clocks: tokens are counted queues, so the k-th pop waits for the k-th push in any order of the
units. Two accesses of different units to one on-chip element or one span of DRAM, of which one is a write, must be
ordered by tokens, and everything must be ordered before FINISH. A transfer's span of DRAM reaches from its first byte
to its last, including gaps between rows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.instructions import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Mem,
    Module,
    check_steps,
    decode_uops,
    disassemble,
)
from tvmflow.vta.isa.program import QUEUES, Launch, Program, check_row_hazard, pops, pushes
from tvmflow.vta.machine.execution import order_instructions

Array = np.ndarray[Any, Any]
SHIFT_MIN, SHIFT_MAX = -16, 15


@dataclass(frozen=True)
class DeviceRules:
    """What a device kind allows beyond the instruction set: what the simulator does and the published design does
    not.
    """

    mul: bool
    acc_8bit: bool
    wide_shifts: bool
    stores_unprocessed: bool
    row_hazards: bool

    @staticmethod
    def of(config: VtaConfig) -> DeviceRules:
        """Return the rules of a configuration's target."""
        free = config.board.is_simulator
        return DeviceRules(free, free, free, free, free)


def lint(program: Program, rules: DeviceRules | None = None) -> list[str]:
    """Return the errors of a program, one line each; an empty list if there are none."""
    faults: list[str] = []
    for launch in program.launches:
        try:
            faults += [f"{launch.name}: {text}" for text in _Linter(program, launch, rules).run()]
        except ProgramError as error:
            faults.append(f"{launch.name}: {error.found}")
    return faults


def check_program(program: Program) -> None:
    """Raise ProgramError when a program breaks the rules of its own target."""
    faults = lint(program, DeviceRules.of(program.config))
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ProgramError(f"{faults[0]}{more}", f"a program that {program.config.target} can run")


@dataclass
class _Access:
    """Per element of a memory: the last instruction of a unit that did something to it, counted within the unit, from
    1.
    """

    by: Module
    writes: bool
    last: Array


class _Spans:
    """Spans of DRAM that transfers touched, each with its unit and number there."""

    def __init__(self) -> None:
        self.low, self.high = 1 << 62, 0
        self.rows: list[tuple[int, int, Module, int]] = []

    def add(self, span: tuple[int, int], by: Module, number: int) -> None:
        self.low, self.high = min(self.low, span[0]), max(self.high, span[1])
        self.rows.append((*span, by, number))

    def reach(self, span: tuple[int, int], clock: Array) -> bool:
        """Return whether one of them overlaps a span and may not be over yet."""
        first, last = span
        if first >= self.high or last <= self.low:
            return False
        return any(first < end and start < last and number > clock[by] for start, end, by, number in self.rows)


class _Linter:
    def __init__(self, program: Program, launch: Launch, rules: DeviceRules | None) -> None:
        self.program, self.config, self.launch = program, program.config, launch
        self.rules = rules or DeviceRules.of(program.config)
        depth = self.config.depth
        kinds = (
            (Memory.INP, Module.LOAD, True),
            (Memory.INP, Module.COMPUTE, False),
            (Memory.WGT, Module.LOAD, True),
            (Memory.WGT, Module.COMPUTE, False),
            (Memory.ACC, Module.COMPUTE, True),
            (Memory.ACC, Module.STORE, False),
        )
        self.accesses = {
            (memory, by): _Access(by, writes, np.zeros(depth(memory), np.int64)) for memory, by, writes in kinds
        }
        self.uops = np.zeros((depth(Memory.UOP), 3), np.int32)
        self.has_uop = np.zeros(depth(Memory.UOP), bool)
        self.processed = np.zeros(depth(Memory.ACC), bool)
        self.clocks = {module: np.zeros(len(Module), np.int64) for module in Module}
        self.tokens: list[deque[Array]] = [deque() for _ in QUEUES]
        self.loaded, self.stored = _Spans(), _Spans()
        self.faults: list[str] = []

    def run(self) -> list[str]:
        instructions = self.launch.instructions
        if not instructions or not isinstance(instructions[-1], Finish):
            self.faults.append("does not end with FINISH")
            return self.faults
        if instructions[-1].flags.pop_prev or instructions[-1].flags.pop_next:
            self.faults.append("FINISH waits for a token")
        check_steps(instructions, self.launch.name)
        for instruction in order_instructions(self.launch):
            self._step(instruction)
        for module in (Module.LOAD, Module.STORE):
            own = sum(instruction.module is module for instruction in instructions)
            if self.clocks[Module.COMPUTE][module] < own:
                self._note(f"FINISH may come before {module.name} is done")
        return self.faults

    def _step(self, instruction: Instruction) -> None:
        module = instruction.module
        clock = self.clocks[module].copy()  # clock[m]: how many instructions of m are over before this one starts
        for queue in pops(instruction):
            clock = np.maximum(clock, self.tokens[queue].popleft())
        number = int(self.clocks[module][module]) + 1
        self._check_instruction(instruction, clock, number)
        after = clock.copy()
        after[module] = number
        self.clocks[module] = after
        for queue in pushes(instruction):
            self.tokens[queue].append(after)

    def _check_instruction(self, i: Instruction, clock: Array, number: int) -> None:
        if isinstance(i, Mem) and i.steps:
            (self._store if i.is_store else self._load)(i, clock, number)
        elif isinstance(i, Gemm | Alu):
            self._compute(i, clock, number)

    def _note(self, text: str) -> None:
        self.faults.append(text)

    # -- access --

    def _touch(self, memory: Memory, by: Module, elements: Any, clock: Array, number: int) -> None:
        mine = self.accesses[memory, by]
        for (other_memory, other_by), other in self.accesses.items():
            if other_memory is memory and other_by is not by and (mine.writes or other.writes):
                late = other.last[elements] > clock[other_by]
                if np.any(late):
                    what = "write" if mine.writes else "read"
                    self._note(f"{by.name} may {what} {memory.name} before {other_by.name} is done with it")
        mine.last[elements] = number

    def _inside(self, memory: Memory, low: int, high: int) -> bool:
        if 0 <= low and high < self.config.depth(memory):
            return True
        self._note(f"{memory.name} elements {low} to {high} of {self.config.depth(memory)}")
        return False

    def _dram(self, i: Mem) -> tuple[int, int]:
        """Return [first, last) bytes, noting what lies outside."""
        if i.y_size == 0:
            return 0, 0
        size = self.config.element_bytes(i.memory)
        first = i.dram_base * size
        last = (i.dram_base + (i.y_size - 1) * i.x_stride + i.x_size) * size
        if first < PAGE or last > self.program.dram_bytes:
            self._note(f"DRAM bytes {first:#x} to {last:#x} of {self.program.dram_bytes:#x}")
        return first, last

    def _load(self, i: Mem, clock: Array, number: int) -> None:
        memory = Memory.ACC if i.memory is Memory.ACC_8BIT else i.memory
        if i.memory is Memory.ACC_8BIT and not self.rules.acc_8bit:
            self._note(f"an 8-bit load into the accumulator, which {self.config.target} cannot do")
        if memory is Memory.OUT:
            self._note("a LOAD into OUT")
            return
        first, last = self._dram(i)
        if self.stored.reach((first, last), clock):
            self._note(f"a LOAD of DRAM {first:#x} that may come before its STORE")
        self.loaded.add((first, last), i.module, number)
        if not self._inside(memory, i.sram_base, i.sram_base + i.rows * i.columns - 1):
            return
        span = slice(i.sram_base, i.sram_base + i.rows * i.columns)
        if memory is Memory.UOP:
            self._load_uops(i, span)
            return
        self._touch(memory, i.module, span, clock, number)
        if memory is Memory.ACC:
            self.processed[span] = False

    def _load_uops(self, i: Mem, span: slice) -> None:
        constants = self.program.constants
        words = constants[: constants.size // 4 * 4].view(np.uint32)
        at = i.dram_base - self.program.constants_at // self.config.element_bytes(Memory.UOP)
        taken = words[at : at + i.x_size] if at >= 0 else words[:0]
        if i.y_size != 1 or len(taken) != i.x_size or i.columns != i.x_size:
            self._note("micro-ops that are not constants of the program in one row")
            return
        self.uops[span], self.has_uop[span] = decode_uops(self.config, taken), True

    def _store(self, i: Mem, clock: Array, number: int) -> None:
        if i.memory is not Memory.OUT or i.rows != i.y_size or i.columns != i.x_size:
            self._note("a STORE of something else than OUT, or with padding")
        first, last = self._dram(i)
        if not self._inside(Memory.ACC, i.sram_base, i.sram_base + i.y_size * i.x_size - 1):
            return
        span = slice(i.sram_base, i.sram_base + i.y_size * i.x_size)
        if not self.rules.stores_unprocessed and not self.processed[span].all():
            self._note("a STORE of accumulators that neither GEMM nor ALU made: real designs keep stores apart")
        self._touch(Memory.ACC, Module.STORE, span, clock, number)
        if self.loaded.reach((first, last), clock):
            self._note(f"a STORE to DRAM {first:#x} that may come before a LOAD is done with it")
        self.stored.add((first, last), Module.STORE, number)

    # -- compute --

    def _compute(self, i: Gemm | Alu, clock: Array, number: int) -> None:
        if not i.steps:
            self._note(f"{disassemble(i)}: nothing to do, and real designs count past its end")
            return
        if not self._inside(Memory.UOP, i.uop_bgn, i.uop_end - 1):
            return
        if not self.has_uop[i.uop_bgn : i.uop_end].all():
            self._note("a micro-op that was not loaded")
            return
        if not self.rules.row_hazards:
            check_row_hazard([tuple(uop) for uop in self.uops[i.uop_bgn : i.uop_end].tolist()])
        written = self._elements(i, Memory.ACC, 0, (i.dst_out, i.dst_in))
        if written is None:
            return
        self._touch(Memory.ACC, Module.COMPUTE, written, clock, number)
        self.processed[written] = True
        if isinstance(i, Alu):
            self._alu(i)
        elif not i.reset:
            for memory, column, factors in (
                (Memory.INP, 1, (i.src_out, i.src_in)),
                (Memory.WGT, 2, (i.wgt_out, i.wgt_in)),
            ):
                read = self._elements(i, memory, column, factors)
                if read is not None:
                    self._touch(memory, Module.COMPUTE, read, clock, number)

    def _elements(self, i: Gemm | Alu, memory: Memory, column: int, factors: tuple[int, int]) -> Array | None:
        """Return which elements the loops reach, bool (depth,), or None, with a note, when some are beyond the end."""
        base = self.uops[i.uop_bgn : i.uop_end, column]
        last = int(base.max()) + (i.iter_out - 1) * factors[0] + (i.iter_in - 1) * factors[1]
        if not self._inside(memory, int(base.min()), last):
            return None
        reached = np.zeros(self.config.depth(memory), bool)
        reached[base] = True
        for turns, factor in ((i.iter_out, factors[0]), (i.iter_in, factors[1])):
            done = 1
            while factor and done < turns:  # what `done` turns reach, and the same again, shifted
                step = min(done, turns - done)
                reached[step * factor :] |= reached[: len(reached) - step * factor].copy()
                done += step
        return reached

    def _alu(self, i: Alu) -> None:
        if i.op is AluOp.MUL and not self.rules.mul:
            self._note(f"MUL, which {self.config.target} cannot do")
        if (
            i.op is AluOp.SHR
            and i.imm is not None
            and not self.rules.wide_shifts
            and not SHIFT_MIN <= i.imm <= SHIFT_MAX
        ):
            self._note(f"a shift by {i.imm}; {self.config.target} knows {SHIFT_MIN} to {SHIFT_MAX}")
        self._elements(i, Memory.ACC, 1, (i.src_out, i.src_in))
