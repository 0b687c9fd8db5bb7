"""Run VTA instructions in numpy, one element at a time.

This file defines what each instruction does: the fast simulator is tested against it, so clarity is more important than
speed. It does not know tokens, schedules or networks. Reads of on-chip elements that were never written, and accesses
outside of a memory, raise ProgramError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tvmflow.support.errors import ProgramError
from tvmflow.vta.isa.config import PAGE, Memory, VtaConfig
from tvmflow.vta.isa.instructions import Alu, AluOp, Finish, Gemm, Instruction, Mem, check_steps, decode_uops

Array = np.ndarray[Any, Any]


class Interpreter:
    """The state of a VTA: DRAM as bytes, and the on-chip memories with a mask of the elements that were written."""

    def __init__(self, config: VtaConfig, dram: Array) -> None:
        batch, block = config.batch, config.block
        self.config, self.dram = config, dram
        self.memories: dict[Memory, Array] = {
            Memory.UOP: np.zeros(config.depth(Memory.UOP), np.uint32),
            Memory.INP: np.zeros((config.depth(Memory.INP), batch, block), np.int8),
            Memory.WGT: np.zeros((config.depth(Memory.WGT), block, block), np.int8),
            Memory.ACC: np.zeros((config.depth(Memory.ACC), batch, block), np.int32),
        }
        self.written = {memory: np.zeros(len(array), bool) for memory, array in self.memories.items()}

    def execute(self, instruction: Instruction) -> None:
        check_steps([instruction])
        if isinstance(instruction, Mem):
            if instruction.steps:
                (self._store if instruction.is_store else self._load)(instruction)
        elif isinstance(instruction, Gemm):
            self._gemm(instruction)
        elif isinstance(instruction, Alu):
            self._alu(instruction)
        else:
            assert isinstance(instruction, Finish)

    # -- memory --

    def _dram_element(self, memory: Memory, index: int) -> Array:
        size = self.config.element_bytes(memory)
        if not PAGE <= index * size <= len(self.dram) - size:
            raise ProgramError(
                f"{memory.name} element {index} at DRAM byte {index * size:#x}", f"{PAGE:#x} to {len(self.dram):#x}"
            )
        return self.dram[index * size : (index + 1) * size]

    def _load(self, i: Mem) -> None:
        if i.memory is Memory.OUT:
            raise ProgramError("a LOAD into OUT", "UOP, WGT, INP, ACC or ACC_8BIT")
        memory = Memory.ACC if i.memory is Memory.ACC_8BIT else i.memory
        target = self.memories[memory]
        for row in range(i.rows):
            for column in range(i.columns):
                at = i.sram_base + row * i.columns + column
                self._check(memory, at)
                y, x = row - i.y_pad_top, column - i.x_pad_left
                if 0 <= y < i.y_size and 0 <= x < i.x_size:
                    raw = self._dram_element(i.memory, i.dram_base + y * i.x_stride + x)
                    as_stored = np.int8 if i.memory is Memory.ACC_8BIT else target.dtype
                    target[at] = raw.view(as_stored).reshape(target.shape[1:])
                else:
                    target[at] = 0
                self.written[memory][at] = True

    def _store(self, i: Mem) -> None:
        if i.memory is not Memory.OUT or i.rows != i.y_size or i.columns != i.x_size:
            raise ProgramError(
                f"a STORE of {i.memory.name} with padding {i.rows - i.y_size, i.columns - i.x_size}",
                "OUT, without padding",
            )
        for y in range(i.y_size):
            for x in range(i.x_size):
                vector = self._read(Memory.ACC, i.sram_base + y * i.x_size + x)
                low = (vector & 0xFF).astype(np.uint8)  # cut off, not saturated
                self._dram_element(Memory.OUT, i.dram_base + y * i.x_stride + x)[:] = low.reshape(-1)

    def _check(self, memory: Memory, at: int) -> None:
        if not 0 <= at < len(self.memories[memory]):
            raise ProgramError(f"{memory.name} element {at}", f"0 to {len(self.memories[memory]) - 1}")

    def _read(self, memory: Memory, at: int) -> Array:
        self._check(memory, at)
        if not self.written[memory][at]:
            raise ProgramError(f"a read of {memory.name} element {at}, which nothing has written")
        element: Array = self.memories[memory][at]
        return element

    def _write(self, memory: Memory, at: int, value: Array | int) -> None:
        self._check(memory, at)
        self.memories[memory][at] = value
        self.written[memory][at] = True

    # -- compute --

    def _steps(self, i: Gemm | Alu) -> Iterator[tuple[int, int, int]]:
        """Yield (dst, src, wgt) in the order of execution: out, in, micro-op."""
        wgt_out, wgt_in = (i.wgt_out, i.wgt_in) if isinstance(i, Gemm) else (0, 0)
        for out in range(i.iter_out):
            for inner in range(i.iter_in):
                for at in range(i.uop_bgn, i.uop_end):
                    dst, src, wgt = decode_uops(self.config, np.array([self._read(Memory.UOP, at)]))[0].tolist()
                    yield (
                        dst + out * i.dst_out + inner * i.dst_in,
                        src + out * i.src_out + inner * i.src_in,
                        wgt + out * wgt_out + inner * wgt_in,
                    )

    def _gemm(self, i: Gemm) -> None:
        for dst, src, wgt in self._steps(i):
            if i.reset:
                self._write(Memory.ACC, dst, 0)
                continue
            inputs = self._read(Memory.INP, src).astype(np.int64)  # (batch, k)
            weights = self._read(Memory.WGT, wgt).astype(np.int64)  # (o, k)
            total = self._read(Memory.ACC, dst) + inputs @ weights.T
            self._write(Memory.ACC, dst, _wrap_int32(total))

    def _alu(self, i: Alu) -> None:
        for dst, src, _ in self._steps(i):
            x = self._read(Memory.ACC, dst).astype(np.int64)
            if i.imm is None:
                y = self._read(Memory.ACC, src).astype(np.int64)
            else:
                self._check(Memory.ACC, src)  # in range even when it is not read
                y = np.full_like(x, i.imm)
            self._write(Memory.ACC, dst, _wrap_int32(alu(i.op, x, y)))


def alu(op: AluOp, x: Array, y: Array) -> Array:
    """Return op(x, y) on int64; the caller wraps to 32 bits. A negative amount of SHR shifts left; beyond 31 all bits
    leave.
    """
    if op is AluOp.MIN:
        return np.minimum(x, y)
    if op is AluOp.MAX:
        return np.maximum(x, y)
    if op is AluOp.ADD:
        return x + y
    if op is AluOp.MUL:
        return x * y
    right = x >> np.clip(y, 0, 31)
    left = np.where(y <= -32, 0, x << np.clip(-y, 0, 31))
    return np.where(y >= 0, right, left)


def _wrap_int32(values: Array) -> Array:
    """Return the low 32 bits of int64 as int32."""
    return np.asarray((values & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
