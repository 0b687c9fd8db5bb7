"""Count the cost of a program: the reference's counters, DRAM bytes, instructions, estimated cycles.

A program is static, so `count` needs no run; the simulator updates the same counters while it executes. The first seven
are counted as VTA's functional simulator does: padding, instruction fetch, resets and no-ops are not counted, and 8-bit
loads into the accumulator count four bytes per element.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from tvmflow.vta.isa.config import Memory, VtaConfig
from tvmflow.vta.isa.instructions import INSTRUCTION_BYTES, Alu, Gemm, Instruction, Mem, Module
from tvmflow.vta.isa.program import QUEUES, Launch, pops, pushes

_COUNTED_AS = {Memory.ACC_8BIT: Memory.ACC}
_COUNTER = {
    Memory.INP: "inp_load_nbytes",
    Memory.WGT: "wgt_load_nbytes",
    Memory.ACC: "acc_load_nbytes",
    Memory.ACC_8BIT: "acc_load_nbytes",
    Memory.UOP: "uop_load_nbytes",
    Memory.OUT: "out_store_nbytes",
}


@dataclass
class Counters:
    """*_nbytes: bytes; gemm_counter, alu_counter: micro-ops executed; dram_nbytes: what really moves, instructions
    included.
    """

    inp_load_nbytes: int = 0
    wgt_load_nbytes: int = 0
    acc_load_nbytes: int = 0
    uop_load_nbytes: int = 0
    out_store_nbytes: int = 0
    gemm_counter: int = 0
    alu_counter: int = 0
    insn_count: int = 0
    insn_nbytes: int = 0
    dram_nbytes: int = 0

    @property
    def five_bytes(self) -> int:
        """Return the sum of the five byte counters of the reference."""
        return (
            self.inp_load_nbytes
            + self.wgt_load_nbytes
            + self.acc_load_nbytes
            + self.uop_load_nbytes
            + self.out_store_nbytes
        )

    def fetched(self) -> None:
        """Count the fetch of one instruction."""
        self.insn_count += 1
        self.insn_nbytes += INSTRUCTION_BYTES
        self.dram_nbytes += INSTRUCTION_BYTES

    def moved(self, config: VtaConfig, memory: Memory, nbytes: int) -> None:
        """Count bytes that went between DRAM and a memory."""
        counted = nbytes // config.element_bytes(memory) * config.element_bytes(_COUNTED_AS.get(memory, memory))
        name = _COUNTER[memory]
        setattr(self, name, getattr(self, name) + counted)
        self.dram_nbytes += nbytes

    def add(self, config: VtaConfig, instruction: Instruction) -> None:
        """Count one instruction by what it says."""
        self.fetched()
        if isinstance(instruction, Mem):
            nbytes = instruction.x_size * instruction.y_size * config.element_bytes(instruction.memory)
            self.moved(config, instruction.memory, nbytes)
        elif isinstance(instruction, Gemm):
            self.gemm_counter += 0 if instruction.reset else instruction.steps
        elif isinstance(instruction, Alu):
            self.alu_counter += instruction.steps

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def count(config: VtaConfig, instructions: Iterable[Instruction]) -> Counters:
    """Return the counters of some instructions."""
    counters = Counters()
    for instruction in instructions:
        counters.add(config, instruction)
    return counters


@dataclass(frozen=True)
class Cycles:
    """total: from first to last; load, compute, store: cycles in which the unit works; gemm, alu: parts of compute."""

    total: int
    load: int
    compute: int
    store: int
    gemm: int
    alu: int

    @property
    def utilization(self) -> float:
        """Return the share of cycles in which the GEMM core multiplies."""
        return self.gemm / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "utilization": self.utilization}


DMA_LATENCY, START_LATENCY = 64, 8
"""Cycles until a transfer's first byte; cycles to decode and fill the pipeline of GEMM or ALU. Round numbers for
designs like pynq's: they matter for comparisons between schedules, not as a promise about a board.
"""


def estimate(config: VtaConfig, launch: Launch) -> Cycles:
    """Return cycles by a discrete simulation of the three units and their tokens.

    GEMM and resets take 1 cycle a micro-op, ALU 2; a transfer its latency and its bytes over the width of the port,
    each unit having a port of its own.
    """
    queues: list[deque[int]] = [deque() for _ in QUEUES]
    heads: dict[Module, deque[Instruction]] = {module: deque() for module in Module}
    for instruction in launch.instructions:
        heads[instruction.module].append(instruction)
    free, busy = dict.fromkeys(Module, 0), dict.fromkeys(Module, 0)
    gemm = alu = 0
    progress = True
    while progress:
        progress = False
        for module in Module:
            while heads[module] and all(queues[q] for q in pops(heads[module][0])):
                instruction = heads[module].popleft()
                started = max([free[module], *(queues[q].popleft() for q in pops(instruction))])
                cost = cycles_of(config, instruction)
                free[module] = started + cost
                busy[module] += cost
                if isinstance(instruction, Gemm) and not instruction.reset:
                    gemm += instruction.steps
                elif isinstance(instruction, Alu):
                    alu += cost
                for q in pushes(instruction):
                    queues[q].append(free[module])
                progress = True
    return Cycles(max(free.values()), busy[Module.LOAD], busy[Module.COMPUTE], busy[Module.STORE], gemm, alu)


def cycles_of(config: VtaConfig, instruction: Instruction) -> int:
    """Return for how many cycles one instruction occupies its unit."""
    if isinstance(instruction, Mem):
        if instruction.is_nop:
            return 1
        nbytes = instruction.x_size * instruction.y_size * config.element_bytes(instruction.memory)
        padding = instruction.rows * instruction.columns - instruction.x_size * instruction.y_size
        return DMA_LATENCY + -(-nbytes // config.board.bus_bytes) + padding
    if isinstance(instruction, Gemm):
        return START_LATENCY + instruction.steps
    return START_LATENCY + 2 * instruction.steps if isinstance(instruction, Alu) else 1
