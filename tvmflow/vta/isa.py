"""VTA's instructions: 128 bits each, little-endian, and micro-ops of 32 bits; encode, decode, disassemble.

Field widths follow the depths of the configuration's buffers. No field crosses bit 64: the bits that this leaves over are
zero. A value that does not fit raises ProgramError; C's bit fields would cut it silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from tvmflow.errors import ProgramError
from tvmflow.vta.config import Memory, VtaConfig

Array = np.ndarray[Any, Any]
LOAD, STORE, GEMM, FINISH, ALU = 0, 1, 2, 3, 4
INSTRUCTION_BYTES = 16
MAX_ITERATIONS = (1 << 14) - 1
IMMEDIATE_MIN, IMMEDIATE_MAX = -(1 << 15), (1 << 15) - 1


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
    """LOAD (or STORE when is_store): y_size rows of x_size elements, x_stride apart in DRAM, dense in SRAM; pads are zeros.

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
        return self.iter_out * self.iter_in * (self.uop_end - self.uop_bgn)


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
        return self.iter_out * self.iter_in * (self.uop_end - self.uop_bgn)


@dataclass(slots=True)
class Finish:
    """The last instruction of a launch."""

    flags: Flags = field(default_factory=Flags)

    @property
    def module(self) -> Module:
        return Module.COMPUTE


Instruction = Mem | Gemm | Alu | Finish
Uop = tuple[int, int, int]
"""(dst, src, wgt): indices into ACC, INP (ACC for the ALU), WGT."""


# -- layouts ----------------------------------------------------------------------------------------------------------

_Layout = tuple[tuple[tuple[str, int, int], ...], tuple[tuple[str, int, int], ...]]
_PREFIX = [("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1)]
_MEM = (
    [*_PREFIX, ("memory", 3), ("sram_base", 16), ("dram_base", 32)],
    [
        ("y_size", 16), ("x_size", 16), ("x_stride", 16), ("y_pad_top", 4), ("y_pad_bottom", 4), ("x_pad_left", 4),
        ("x_pad_right", 4),
    ],
)  # fmt: skip


def _placed(words: tuple[list[tuple[str, int]], list[tuple[str, int]]]) -> _Layout:
    """Return, for both words, (name, first bit, width)."""
    result = []
    for word in words:
        at, fields = 0, []
        for name, width in word:
            fields.append((name, at, width))
            at += width
        assert at <= 64
        result.append(tuple(fields))
    return result[0], result[1]


@lru_cache(maxsize=64)
def _layout(config: VtaConfig, opcode: int) -> _Layout:
    if opcode in (LOAD, STORE):
        return _placed(_MEM)
    if opcode == FINISH:
        return _placed(([*_PREFIX], []))
    uop, inp, wgt, acc = (config.log_depth(m) for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
    first = [
        *_PREFIX, ("reset", 1), ("uop_bgn", uop), ("uop_end", uop + 1), ("iter_out", 14), ("iter_in", 14),
    ]  # fmt: skip
    second = [("dst_out", acc), ("dst_in", acc), ("src_out", inp), ("src_in", inp)]
    if opcode == GEMM:
        return _placed((first, [*second, ("wgt_out", wgt), ("wgt_in", wgt)]))
    return _placed((first, [*second, ("alu_op", 3), ("use_imm", 1), ("imm", 16)]))


def _values(instruction: Instruction) -> dict[str, int]:
    flags = instruction.flags
    found = {
        "pop_prev": int(flags.pop_prev), "pop_next": int(flags.pop_next), "push_prev": int(flags.push_prev),
        "push_next": int(flags.push_next),
    }  # fmt: skip
    if isinstance(instruction, Finish):
        return {"opcode": FINISH, **found}
    if isinstance(instruction, Mem):
        names = ("sram_base", "dram_base", *(name for name, _ in _MEM[1]))
        opcode = STORE if instruction.is_store else LOAD
        return {"opcode": opcode, **found, "memory": instruction.memory, **{n: getattr(instruction, n) for n in names}}
    found |= {
        name: getattr(instruction, name)
        for name in ("uop_bgn", "uop_end", "iter_out", "iter_in", "dst_out", "dst_in", "src_out", "src_in")
    }
    if isinstance(instruction, Gemm):
        return {
            "opcode": GEMM, **found, "reset": int(instruction.reset), "wgt_out": instruction.wgt_out,
            "wgt_in": instruction.wgt_in,
        }  # fmt: skip
    imm = instruction.imm or 0
    if not IMMEDIATE_MIN <= imm <= IMMEDIATE_MAX:
        raise ProgramError(f"immediate {imm} of {instruction.op.name}", f"{IMMEDIATE_MIN} to {IMMEDIATE_MAX}")
    return {
        "opcode": ALU, **found, "reset": 0, "alu_op": instruction.op, "use_imm": int(instruction.imm is not None),
        "imm": imm & 0xFFFF,
    }  # fmt: skip


def encode(config: VtaConfig, instruction: Instruction) -> tuple[int, int]:
    """Return the two 64-bit words. Raises ProgramError for a value that its field cannot hold."""
    values = _values(instruction)
    words = []
    for word in _layout(config, values["opcode"]):
        bits = 0
        for name, at, width in word:
            value = int(values[name])
            if not 0 <= value < 1 << width:
                raise ProgramError(
                    f"{name} = {value} in {type(instruction).__name__}", f"0 to {(1 << width) - 1} ({width} bits)"
                )
            bits |= value << at
        words.append(bits)
    return words[0], words[1]


def encode_all(config: VtaConfig, instructions: Sequence[Instruction]) -> Array:
    """Return uint64 (n, 2)."""
    return np.array([encode(config, i) for i in instructions], np.uint64).reshape(-1, 2)


def decode(config: VtaConfig, word0: int, word1: int) -> Instruction:
    """Return the instruction of two words. Raises ProgramError for an opcode or memory that does not exist."""
    opcode = word0 & 7
    if opcode not in (LOAD, STORE, GEMM, FINISH, ALU):
        raise ProgramError(f"opcode {opcode}", "0 to 4")
    v = {
        name: (word >> at) & ((1 << width) - 1)
        for word, fields in zip((word0, word1), _layout(config, opcode), strict=True)
        for name, at, width in fields
    }
    flags = Flags(*(bool(v[name]) for name in ("pop_prev", "pop_next", "push_prev", "push_next")))
    if opcode == FINISH:
        return Finish(flags)
    if opcode in (LOAD, STORE):
        if v["memory"] not in list(Memory):
            raise ProgramError(f"memory type {v['memory']}", "0 to 5")
        rest = {name: v[name] for name in ("sram_base", "dram_base", *(name for name, _ in _MEM[1]))}
        return Mem(Memory(v["memory"]), **rest, is_store=opcode == STORE, flags=flags)
    loops = {
        name: v[name]
        for name in ("uop_bgn", "uop_end", "iter_out", "iter_in", "dst_out", "dst_in", "src_out", "src_in")
    }
    if opcode == GEMM:
        return Gemm(**loops, wgt_out=v["wgt_out"], wgt_in=v["wgt_in"], reset=bool(v["reset"]), flags=flags)
    if v["alu_op"] not in list(AluOp):
        raise ProgramError(f"ALU operation {v['alu_op']}", "0 to 4")
    signed = v["imm"] - (1 << 16) if v["imm"] >> 15 else v["imm"]
    return Alu(AluOp(v["alu_op"]), **loops, imm=signed if v["use_imm"] else None, flags=flags)


def decode_all(config: VtaConfig, words: Array) -> list[Instruction]:
    """Return the instructions of uint64 (n, 2)."""
    return [decode(config, int(a), int(b)) for a, b in words]


def encode_uops(config: VtaConfig, uops: Iterable[Uop]) -> Array:
    """Return uint32 (n,). Raises ProgramError for an index that its field cannot hold."""
    widths = [config.log_depth(m) for m in (Memory.ACC, Memory.INP, Memory.WGT)]
    words = []
    for uop in uops:
        bits, at = 0, 0
        for name, value, width in zip(("dst", "src", "wgt"), uop, widths, strict=True):
            if not 0 <= value < 1 << width:
                raise ProgramError(f"{name} index {value} of a micro-op", f"0 to {(1 << width) - 1}")
            bits |= value << at
            at += width
        words.append(bits)
    return np.array(words, np.uint32)


def decode_uops(config: VtaConfig, words: Array) -> Array:
    """Return int32 (n, 3): dst, src, wgt."""
    columns, at = [], 0
    for memory in (Memory.ACC, Memory.INP, Memory.WGT):
        width = config.log_depth(memory)
        columns.append((words.astype(np.uint32) >> np.uint32(at)) & np.uint32((1 << width) - 1))
        at += width
    return np.stack(columns, axis=1).astype(np.int32)


# -- text -------------------------------------------------------------------------------------------------------------


def disassemble(instruction: Instruction) -> str:
    """Return one line that a person can read."""
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
