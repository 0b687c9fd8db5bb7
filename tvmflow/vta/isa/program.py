"""Build static VTA programs: launches of instructions, a DRAM image, and balanced tokens.

For every element of on-chip memory, the builder keeps which instruction of another unit wrote or read it last. If a new
instruction depends on one of those, the builder adds one token: a push there and a pop here. It does so only if no
earlier token implies the same order, so pushes and pops of a queue come in the same order and are equal in number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.instructions import (
    MAX_ITERATIONS,
    Alu,
    AluOp,
    Finish,
    Gemm,
    Instruction,
    Mem,
    Module,
    Uop,
    encode_uops,
)

Array = np.ndarray[Any, Any]
QUEUES = (
    (Module.LOAD, Module.COMPUTE),
    (Module.COMPUTE, Module.LOAD),
    (Module.COMPUTE, Module.STORE),
    (Module.STORE, Module.COMPUTE),
)
"""(who pushes, who pops): l2g, g2l, g2s, s2g."""
QUEUE_NAMES = ("l2g", "g2l", "g2s", "s2g")


def pops(instruction: Instruction) -> Iterator[int]:
    """Yield the queues that an instruction waits for. Raises ProgramError for a queue that its unit does not have."""
    return _queues(instruction, instruction.flags.pop_prev, instruction.flags.pop_next, 1)


def pushes(instruction: Instruction) -> Iterator[int]:
    """Yield the queues that an instruction feeds when it is over."""
    return _queues(instruction, instruction.flags.push_prev, instruction.flags.push_next, 0)


def _queues(instruction: Instruction, previous: bool, following: bool, end: int) -> Iterator[int]:
    module = instruction.module
    for wanted, neighbour in ((previous, module - 1), (following, module + 1)):
        if not wanted:
            continue
        if neighbour not in (0, 1, 2):
            raise ProgramError(f"a token between {module.name} and nothing", "a neighbour: LOAD - COMPUTE - STORE")
        pair = (Module(neighbour), module) if end else (module, Module(neighbour))
        yield QUEUES.index(pair)


@dataclass(frozen=True)
class Launch:
    """One run of the accelerator: instructions up to a FINISH."""

    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Tensor:
    """Bytes in DRAM: int8 of packed shape (N/batch, C/block, H, W, batch, block)."""

    name: str
    address: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Program:
    """Launches in order over one DRAM of `dram_bytes`, in which `constants` lie from `constants_at` on.

    values: every value that a launch leaves in DRAM, inputs and outputs among them.
    """

    config: VtaConfig
    launches: tuple[Launch, ...]
    constants: Array
    constants_at: int
    dram_bytes: int
    values: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Dram:
    """Hands out addresses of constants and micro-ops, from `base` on."""

    def __init__(self, config: VtaConfig, base: int = PAGE) -> None:
        self.config, self.base = config, base
        self._constants: list[Array] = []
        self._constant_bytes = 0
        self._uops: list[Array] = []
        self._uop_at: dict[tuple[Uop, ...], int] = {}
        self._uop_count = 0

    def constant(self, data: Array) -> int:
        """Return the address of a constant."""
        raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        address = self.base + self._constant_bytes
        filled = np.zeros(-(-raw.size // PAGE) * PAGE, np.uint8)
        filled[: raw.size] = raw
        self._constants.append(filled)
        self._constant_bytes += filled.size
        return address

    def uops(self, uops: tuple[Uop, ...]) -> int:
        """Return where a sequence of micro-ops lies: counted from the first, since they come after all constants."""
        if uops not in self._uop_at:
            self._uop_at[uops] = self._uop_count
            self._uops.append(encode_uops(self.config, uops))
            self._uop_count += len(uops)
        return self._uop_at[uops]

    def close(self) -> tuple[Array, int]:
        """Place the micro-ops behind the constants. Returns all constant bytes and the address of the first
        micro-op.
        """
        base = self.base + self._constant_bytes
        if self._uops:
            self.constant(np.concatenate(self._uops))
        return np.concatenate(self._constants) if self._constants else np.zeros(0, np.uint8), base


def pages(nbytes: int) -> int:
    """Return bytes rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


@dataclass(frozen=True)
class Loops:
    """The two hardware loops of GEMM and ALU: how often, and what each turn adds to the indices."""

    out: int = 1
    inner: int = 1
    dst: tuple[int, int] = (0, 0)
    src: tuple[int, int] = (0, 0)
    wgt: tuple[int, int] = (0, 0)

    def span(self, first: int, last: int, factors: tuple[int, int]) -> slice:
        """Return the elements that indices first..last reach through the loops, gaps included."""
        return slice(first, last + (self.out - 1) * factors[0] + (self.inner - 1) * factors[1] + 1)


_NEVER = -1


class LaunchBuilder:
    """Builds one launch. Emit in an order that would be right one after the other; units overlap on their own.

    with_row_hazards: refuse a micro-op sequence that writes an accumulator which one of the two micro-ops before wrote.
    """

    def __init__(self, config: VtaConfig, dram: Dram, name: str, with_row_hazards: bool = True) -> None:
        self.config, self.dram, self.name = config, dram, name
        self.with_row_hazards = with_row_hazards
        self.instructions: list[Instruction] = []
        self.uop_loads: list[tuple[Mem, int]] = []
        self._last_push = [_NEVER] * len(QUEUES)  # per queue: the last instruction that pushed
        self._resident: dict[tuple[str, tuple[Uop, ...]], int] = {}
        self._uop_top = 0
        depths = {m: config.depth(m) for m in (Memory.INP, Memory.WGT, Memory.ACC)}
        self._written = {m: np.full(depths[m], _NEVER, np.int32) for m in depths}
        self._read = {m: np.full(depths[m], _NEVER, np.int32) for m in depths}

    # -- memory --

    def load(
        self,
        memory: Memory,
        sram: int,
        address: int,
        shape: tuple[int, int],
        stride: int,
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        """Load shape (rows, elements) from a byte address, rows `stride` elements apart; pads: top, bottom, left,
        right.
        """
        instruction = Mem(
            memory, sram, self._element(memory, address), *shape, stride if shape[0] > 1 else shape[1], *pads
        )
        kept = Memory.ACC if memory is Memory.ACC_8BIT else memory
        span = self._within(kept, slice(sram, sram + instruction.rows * instruction.columns))
        at = self._emit(instruction)
        if kept is Memory.ACC:
            self._wait(Module.STORE, Module.COMPUTE, self._read[kept][span], at)
            self._written[kept][span] = at
        else:
            self._wait(Module.COMPUTE, Module.LOAD, self._read[kept][span], at)
            self._written[kept][span] = at

    def store(self, sram: int, address: int, shape: tuple[int, int], stride: int) -> None:
        """Store the low bytes of accumulators to a byte address: shape (rows, elements), rows `stride` elements
        apart.
        """
        span = self._within(Memory.ACC, slice(sram, sram + shape[0] * shape[1]))
        instruction = Mem(
            Memory.OUT,
            sram,
            self._element(Memory.OUT, address),
            *shape,
            stride if shape[0] > 1 else shape[1],
            is_store=True,
        )
        at = self._emit(instruction)
        self._wait(Module.COMPUTE, Module.STORE, self._written[Memory.ACC][span], at)
        self._read[Memory.ACC][span] = at

    # -- compute --

    def gemm(self, uops: Sequence[Uop], loops: Loops, reset: bool = False, site: str = "") -> None:
        """Multiply and add, or clear with `reset`. Equal micro-ops are kept once on the chip, unless their `site`
        differs.
        """
        begin = self._resident_at(tuple(uops), site)
        instruction = Gemm(
            begin, begin + len(uops), loops.out, loops.inner, *loops.dst, *loops.src, *loops.wgt, reset=reset
        )
        low, high = _extremes(uops)
        at = self._compute(instruction, self._within(Memory.ACC, loops.span(low[0], high[0], loops.dst)))
        if not reset:
            inp = self._within(Memory.INP, loops.span(low[1], high[1], loops.src))
            wgt = self._within(Memory.WGT, loops.span(low[2], high[2], loops.wgt))
            # One token for both: an instruction can wait only once for a queue.
            loads = np.concatenate([self._written[Memory.INP][inp], self._written[Memory.WGT][wgt]])
            self._wait(Module.LOAD, Module.COMPUTE, loads, at)
            self._read[Memory.INP][inp] = at
            self._read[Memory.WGT][wgt] = at

    def alu(self, op: AluOp, uops: Sequence[Uop], loops: Loops, imm: int | None = None, site: str = "") -> None:
        """Apply an operation of the ALU with an immediate, or with another accumulator."""
        begin = self._resident_at(tuple(uops), site)
        instruction = Alu(op, begin, begin + len(uops), loops.out, loops.inner, *loops.dst, *loops.src, imm=imm)
        low, high = _extremes(uops)
        self._compute(instruction, self._within(Memory.ACC, loops.span(low[0], high[0], loops.dst)))

    def _compute(self, instruction: Gemm | Alu, written: slice) -> int:
        for name in ("iter_out", "iter_in"):
            if not 1 <= getattr(instruction, name) <= MAX_ITERATIONS:
                raise ProgramError(f"{name} = {getattr(instruction, name)}", f"1 to {MAX_ITERATIONS}")
        at = self._emit(instruction)
        self._wait(Module.STORE, Module.COMPUTE, self._read[Memory.ACC][written], at)
        self._written[Memory.ACC][written] = at
        return at

    def _resident_at(self, uops: tuple[Uop, ...], site: str) -> int:
        """Return where micro-ops lie on the chip, loading them when they do not: one LOAD each, oldest overwritten."""
        if self.with_row_hazards:
            check_row_hazard(uops)
        if (site, uops) in self._resident:
            return self._resident[site, uops]
        depth = self.config.depth(Memory.UOP)
        if len(uops) > depth:
            raise ProgramError(f"{len(uops)} micro-ops in one instruction", f"at most {depth}")
        begin = self._uop_top if self._uop_top + len(uops) <= depth else 0
        end = begin + len(uops)
        self._resident = {k: at for k, at in self._resident.items() if at + len(k[1]) <= begin or at >= end}
        self._resident[site, uops] = begin
        self._uop_top = end
        instruction = Mem(Memory.UOP, begin, 0, 1, len(uops), len(uops))
        self._emit(instruction)
        self.uop_loads.append((instruction, self.dram.uops(uops)))
        return begin

    # -- the end --

    def finish(self) -> Launch:
        """Wait for every load and store, then end."""
        wait = Mem(Memory.UOP)
        at = self._emit(wait)
        for module in (Module.LOAD, Module.STORE):
            last = max(
                (i for i, instruction in enumerate(self.instructions) if instruction.module is module), default=_NEVER
            )
            self._wait(module, Module.COMPUTE, np.array([last]), at)
        if wait.flags.pop_prev or wait.flags.pop_next:
            self._emit(Finish())
        else:
            self.instructions[-1] = Finish()
        return Launch(self.name, tuple(self.instructions))

    # -- tokens --

    def _emit(self, instruction: Instruction) -> int:
        self.instructions.append(instruction)
        return len(self.instructions) - 1

    def _wait(self, producer: Module, consumer: Module, events: Array, at: int) -> None:
        """Make instruction `at` of the consumer wait for the latest of some instructions of the producer."""
        latest = int(events.max(initial=_NEVER))
        queue = QUEUES.index((producer, consumer))
        if latest <= self._last_push[queue] or self.instructions[latest].module is not producer:
            return
        flags, waits = self.instructions[latest].flags, self.instructions[at].flags
        if consumer > producer:
            flags.push_next = waits.pop_prev = True
        else:
            flags.push_prev = waits.pop_next = True
        self._last_push[queue] = latest

    def _element(self, memory: Memory, address: int) -> int:
        size = self.config.element_bytes(memory)
        if address % size:
            raise ProgramError(f"address {address:#x} for {memory.name}", f"a multiple of {size}")
        return address // size

    def _within(self, memory: Memory, span: slice) -> slice:
        if not 0 <= span.start < span.stop <= self.config.depth(memory):
            raise ProgramError(
                f"elements [{span.start}, {span.stop}) of {memory.name} in {self.name}",
                f"within [0, {self.config.depth(memory)})",
            )
        return span


def _extremes(uops: Sequence[Uop]) -> tuple[list[int], list[int]]:
    columns = list(zip(*uops, strict=True))
    return [min(column) for column in columns], [max(column) for column in columns]


def check_row_hazard(uops: Sequence[Uop]) -> None:
    """Raise ProgramError if a micro-op writes the element that one of the two before it wrote.

    The pipeline would read the old value.
    """
    for at in range(1, len(uops)):
        if uops[at][0] in (uops[at - 1][0], uops[max(at - 2, 0)][0] if at > 1 else None):
            raise ProgramError(
                f"micro-op {at} writes accumulator {uops[at][0]}, as one of the two before it",
                "three different accumulators in a row",
            )
