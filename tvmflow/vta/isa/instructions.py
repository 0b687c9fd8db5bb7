"""Encode, decode and disassemble VTA's 128-bit instructions and 32-bit micro-ops.

Words are little-endian. Field widths follow the depths of the configuration's buffers. Fields lie as a C compiler
places bit fields: none crosses bit 64, and the remaining bits are zero. A micro-op's src is an index of INP for GEMM
and of ACC for the ALU, so it is as wide as the larger of the two needs (since version 0.0.2 of the hardware). A value
that does not fit raises ProgramError; C's bit fields would truncate it silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import Memory, VtaConfig

Array = np.ndarray[Any, Any]
LOAD, STORE, GEMM, FINISH, ALU = 0, 1, 2, 3, 4
INSTRUCTION_BYTES = 16
MAX_ITERATIONS = (1 << 14) - 1
IMMEDIATE_MIN, IMMEDIATE_MAX = -(1 << 15), (1 << 15) - 1
MAX_STEPS = 1 << 32
"""What a program may cost at most: more than VGG-16 on blocks of 2, and minutes of simulation. One instruction could
run 2^41.
"""


class AluOp(IntEnum):
    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4


class Module(IntEnum):
    """The three units, each of which runs its own instructions in order."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2


@dataclass(slots=True)
class Flags:
    """Which token queues an instruction waits for and feeds. prev of COMPUTE is LOAD, next is STORE."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


@dataclass(slots=True)
class Mem:
    """LOAD (or STORE when is_store): y_size rows of x_size elements, x_stride apart in DRAM, dense in SRAM; pads are
    zeros.

    sram_base, dram_base: in elements of the memory.
    """

    memory: Memory
    sram_base: int = 0
    dram_base: int = 0
    y_size: int = 0
    x_size: int = 0
    x_stride: int = 0
    y_pad_top: int = 0
    y_pad_bottom: int = 0
    x_pad_left: int = 0
    x_pad_right: int = 0
    is_store: bool = False
    flags: Flags = field(default_factory=Flags)

    @property
    def rows(self) -> int:
        """Return rows in SRAM, padding included."""
        return self.y_pad_top + self.y_size + self.y_pad_bottom

    @property
    def columns(self) -> int:
        return self.x_pad_left + self.x_size + self.x_pad_right

    @property
    def is_nop(self) -> bool:
        return self.x_size == 0

    @property
    def steps(self) -> int:
        """Return how many on-chip elements are written or read."""
        return 0 if self.is_nop else self.rows * self.columns

    @property
    def module(self) -> Module:
        if self.is_store:
            return Module.STORE
        return Module.LOAD if self.memory in (Memory.INP, Memory.WGT) else Module.COMPUTE


@dataclass(slots=True)
class Gemm:
    """For out, in, uop: acc[dst] += inp[src] * transpose(wgt[w]); with reset acc[dst] = 0. uop_end is exclusive."""

    uop_bgn: int
    uop_end: int
    iter_out: int = 1
    iter_in: int = 1
    dst_out: int = 0
    dst_in: int = 0
    src_out: int = 0
    src_in: int = 0
    wgt_out: int = 0
    wgt_in: int = 0
    reset: bool = False
    flags: Flags = field(default_factory=Flags)

    @property
    def module(self) -> Module:
        return Module.COMPUTE

    @property
    def steps(self) -> int:
        return self.iter_out * self.iter_in * max(self.uop_end - self.uop_bgn, 0)


@dataclass(slots=True)
class Alu:
    """For out, in, uop: acc[dst] = op(acc[dst], imm or acc[src])."""

    op: AluOp
    uop_bgn: int
    uop_end: int
    iter_out: int = 1
    iter_in: int = 1
    dst_out: int = 0
    dst_in: int = 0
    src_out: int = 0
    src_in: int = 0
    imm: int | None = None
    flags: Flags = field(default_factory=Flags)

    @property
    def module(self) -> Module:
        return Module.COMPUTE

    @property
    def steps(self) -> int:
        return self.iter_out * self.iter_in * max(self.uop_end - self.uop_bgn, 0)


@dataclass(slots=True)
class Finish:
    """The last instruction of a launch."""

    flags: Flags = field(default_factory=Flags)
    steps: ClassVar[int] = 0

    @property
    def module(self) -> Module:
        return Module.COMPUTE


Instruction = Mem | Gemm | Alu | Finish
Uop = tuple[int, int, int]
"""(dst, src, wgt): indices into ACC, INP (ACC for the ALU), WGT."""


def check_steps(instructions: Iterable[Instruction], name: str = "an instruction") -> None:
    """Raise ProgramError, before anything runs, when instructions would take more than MAX_STEPS steps."""
    steps = sum(instruction.steps for instruction in instructions)
    if steps > MAX_STEPS:
        raise ProgramError(f"{name} of {steps:,} steps", f"at most {MAX_STEPS:,}", "split the program")


# -- layouts ----------------------------------------------------------------------------------------------------------

_Layout = dict[str, tuple[int, int, int]]
"""Per field: word, first bit, width."""
_PREFIX = (("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1))
_MEM = (
    ("memory", 3),
    ("sram_base", 16),
    ("dram_base", 32),
    ("y_size", 16),
    ("x_size", 16),
    ("x_stride", 16),
    ("y_pad_top", 4),
    ("y_pad_bottom", 4),
    ("x_pad_left", 4),
    ("x_pad_right", 4),
)
_MEM_NUMBERS = tuple(name for name, _ in _MEM[1:])
_LOOPS = ("uop_bgn", "uop_end", "iter_out", "iter_in", "dst_out", "dst_in", "src_out", "src_in")


def _place_fields(fields: Iterable[tuple[str, int]]) -> _Layout:
    """Place fields as C's bit fields are: one after the other, and what would cross bit 64 begins there."""
    layout: _Layout = {}
    at = 0
    for name, width in fields:
        if at // 64 != (at + width - 1) // 64:
            at = 64 * (at // 64 + 1)
        layout[name] = (at // 64, at % 64, width)
        at += width
    return layout


@lru_cache(maxsize=64)
def _layout(config: VtaConfig, opcode: int) -> _Layout:
    if opcode in (LOAD, STORE):
        return _place_fields((*_PREFIX, *_MEM))
    if opcode == FINISH:
        return _place_fields(_PREFIX)
    uop, inp, wgt, acc = (config.log_depth(m) for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
    src = inp if opcode == GEMM else acc
    widths = (uop, uop + 1, 14, 14, acc, acc, src, src)
    loops = (*_PREFIX, ("reset", 1), *zip(_LOOPS, widths, strict=True))
    if opcode == GEMM:
        return _place_fields((*loops, ("wgt_out", wgt), ("wgt_in", wgt)))
    return _place_fields((*loops, ("alu_op", 3), ("use_imm", 1), ("imm", 16)))


def _values(instruction: Instruction) -> dict[str, int]:
    flags = instruction.flags
    values = {
        "pop_prev": int(flags.pop_prev),
        "pop_next": int(flags.pop_next),
        "push_prev": int(flags.push_prev),
        "push_next": int(flags.push_next),
    }
    if isinstance(instruction, Finish):
        return {"opcode": FINISH, **values}
    if isinstance(instruction, Mem):
        values |= {name: getattr(instruction, name) for name in _MEM_NUMBERS}
        return {"opcode": STORE if instruction.is_store else LOAD, **values, "memory": instruction.memory}
    values |= {name: getattr(instruction, name) for name in _LOOPS}
    if isinstance(instruction, Gemm):
        return {
            "opcode": GEMM,
            **values,
            "reset": int(instruction.reset),
            "wgt_out": instruction.wgt_out,
            "wgt_in": instruction.wgt_in,
        }
    imm = instruction.imm or 0
    if not IMMEDIATE_MIN <= imm <= IMMEDIATE_MAX:
        raise ProgramError(f"immediate {imm} of {instruction.op.name}", f"{IMMEDIATE_MIN} to {IMMEDIATE_MAX}")
    return {
        "opcode": ALU,
        **values,
        "reset": 0,
        "alu_op": instruction.op,
        "use_imm": int(instruction.imm is not None),
        "imm": imm & 0xFFFF,
    }


def encode(config: VtaConfig, instruction: Instruction) -> tuple[int, int]:
    """Return the two 64-bit words. Raises ProgramError for a value that its field cannot hold."""
    values, words = _values(instruction), [0, 0]
    for name, (word, at, width) in _layout(config, values["opcode"]).items():
        value = int(values[name])
        if not 0 <= value < 1 << width:
            raise ProgramError(
                f"{name} = {value} in {type(instruction).__name__}", f"0 to {(1 << width) - 1} ({width} bits)"
            )
        words[word] |= value << at
    return words[0], words[1]


def encode_all(config: VtaConfig, instructions: Sequence[Instruction]) -> Array:
    """Return uint64 (n, 2)."""
    return np.array([encode(config, i) for i in instructions], np.uint64).reshape(-1, 2)


def decode(config: VtaConfig, word0: int, word1: int) -> Instruction:
    """Return the instruction of two words. Raises ProgramError for an opcode or memory that does not exist."""
    opcode = word0 & 7
    if opcode not in (LOAD, STORE, GEMM, FINISH, ALU):
        raise ProgramError(f"opcode {opcode}", "0 to 4")
    words = (word0, word1)
    v = {name: (words[word] >> at) & ((1 << width) - 1) for name, (word, at, width) in _layout(config, opcode).items()}
    flags = Flags(*(bool(v[name]) for name in ("pop_prev", "pop_next", "push_prev", "push_next")))
    if opcode == FINISH:
        return Finish(flags)
    if opcode in (LOAD, STORE):
        if v["memory"] not in list(Memory):
            raise ProgramError(f"memory type {v['memory']}", "0 to 5")
        rest = {name: v[name] for name in _MEM_NUMBERS}
        return Mem(Memory(v["memory"]), **rest, is_store=opcode == STORE, flags=flags)
    loops = {name: v[name] for name in _LOOPS}
    if opcode == GEMM:
        return Gemm(**loops, wgt_out=v["wgt_out"], wgt_in=v["wgt_in"], reset=bool(v["reset"]), flags=flags)
    if v["alu_op"] not in list(AluOp):
        raise ProgramError(f"ALU operation {v['alu_op']}", "0 to 4")
    signed = v["imm"] - (1 << 16) if v["imm"] >> 15 else v["imm"]
    return Alu(AluOp(v["alu_op"]), **loops, imm=signed if v["use_imm"] else None, flags=flags)


def decode_all(config: VtaConfig, words: Array) -> list[Instruction]:
    """Return the instructions of uint64 (n, 2)."""
    return [decode(config, int(a), int(b)) for a, b in words]


def uop_layout(config: VtaConfig) -> tuple[tuple[int, int], ...]:
    """Return (first bit, width) of a micro-op's dst, src, wgt."""
    acc, inp, wgt = (config.log_depth(m) for m in (Memory.ACC, Memory.INP, Memory.WGT))
    src = max(acc, inp)
    return (0, acc), (acc, src), (acc + src, wgt)


def encode_uops(config: VtaConfig, uops: Iterable[Uop]) -> Array:
    """Return uint32 (n,). Raises ProgramError for an index that its field cannot hold."""
    layout, words = uop_layout(config), []
    for uop in uops:
        bits = 0
        for name, value, (at, width) in zip(("dst", "src", "wgt"), uop, layout, strict=True):
            if not 0 <= value < 1 << width:
                raise ProgramError(f"{name} index {value} of a micro-op", f"0 to {(1 << width) - 1}")
            bits |= value << at
        words.append(bits)
    return np.array(words, np.uint32)


def decode_uops(config: VtaConfig, words: Array) -> Array:
    """Return int32 (n, 3): dst, src, wgt."""
    unsigned = words.astype(np.uint32)
    columns = [(unsigned >> np.uint32(at)) & np.uint32((1 << width) - 1) for at, width in uop_layout(config)]
    return np.stack(columns, axis=1).astype(np.int32)


# -- text -------------------------------------------------------------------------------------------------------------


def disassemble(instruction: Instruction) -> str:
    """Return an instruction as one readable line."""
    flags = instruction.flags
    tokens = " ".join(n for n in ("pop_prev", "pop_next", "push_prev", "push_next") if getattr(flags, n))
    return f"{_text(instruction)}{'  [' + tokens + ']' if tokens else ''}"


def _text(instruction: Instruction) -> str:
    i = instruction
    if isinstance(i, Finish):
        return "FINISH"
    if isinstance(i, Mem):
        name = f"{'STORE' if i.is_store else 'LOAD'} {i.memory.name}"
        if i.is_nop:
            return f"{name} nop"
        pads = (i.y_pad_top, i.y_pad_bottom, i.x_pad_left, i.x_pad_right)
        padding = f" pad {pads}" if any(pads) else ""
        return f"{name} sram {i.sram_base} dram {i.dram_base:#x} {i.y_size} x {i.x_size} stride {i.x_stride}{padding}"
    loops = f"uop [{i.uop_bgn}, {i.uop_end}) out {i.iter_out} in {i.iter_in} dst ({i.dst_out}, {i.dst_in})"
    if isinstance(i, Gemm):
        if i.reset:
            return f"RESET {loops}"
        return f"GEMM {loops} src ({i.src_out}, {i.src_in}) wgt ({i.wgt_out}, {i.wgt_in})"
    operand = f"imm {i.imm}" if i.imm is not None else f"src ({i.src_out}, {i.src_in})"
    return f"ALU {i.op.name} {loops} {operand}"
