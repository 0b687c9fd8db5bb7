"""Run programs on the VTA of a Zynq board: contiguous memory and memory-mapped registers, as its HLS design has them.

No board was at hand: what is here follows the published register map and the protocol of VTA's own pynq driver, and is tested
against a fake that behaves like the registers (tests/devices/test_vta.py). The fetch unit reads instructions from `insn_addr`;
load, compute and store units add their base registers to the addresses in instructions, so a program runs wherever its memory
lies, without being changed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvmflow.errors import DeviceError, DeviceLostError
from tvmflow.vta.isa import encode_all
from tvmflow.vta.program import Launch, Program
from tvmflow.vta.runtime import dram_of, read_tensor, write_tensor

Array = np.ndarray[Any, Any]

FETCH, LOAD, COMPUTE, STORE = 0x43C00000, 0x43C10000, 0x43C20000, 0x43C30000
"""Physical base addresses of the four units on pynq; each has a page of registers."""
CONTROL = 0x00
START, AUTORESTART = 0x01, 0x81
INSN_COUNT, INSN_ADDR = 0x10, 0x18
INP_ADDR, WGT_ADDR = 0x10, 0x18
DONE_READ, UOP_ADDR, BIAS_ADDR = 0x18, 0x20, 0x28
OUT_ADDR = 0x10
DONE = 1
TIMEOUT_S = 10.0


class Registers(Protocol):
    """Reads and writes 32-bit registers by physical address."""

    def read(self, address: int) -> int: ...

    def write(self, address: int, value: int) -> None: ...


class Contiguous(Protocol):
    """Physically contiguous memory: a view for us, an address for the accelerator."""

    address: int
    data: Array

    def flush(self) -> None:
        """Make what we wrote visible to the accelerator."""

    def invalidate(self) -> None:
        """Forget what our caches hold, so that what the accelerator wrote is read."""


Allocate = Callable[[int], Contiguous]


class PynqDriver:
    """A driver for the runtime: one program has one piece of contiguous memory, and one for its instructions."""

    def __init__(self, registers: Registers, allocate: Allocate, timeout_s: float = TIMEOUT_S) -> None:
        self.registers, self.allocate, self.timeout_s = registers, allocate, timeout_s

    @staticmethod
    def of_this_board() -> PynqDriver:
        """Return the driver of the board that runs this. Raises DeviceError when this is none."""
        allocate = cma_allocator()
        return PynqDriver(MappedRegisters(), allocate)

    def load(self, program: Program) -> Callable[[list[Array]], list[Array]]:
        memory = self.allocate(program.dram_bytes)
        memory.data[:] = dram_of(program)
        code = [self._code(program, launch) for launch in program.launches]
        memory.flush()

        def run(inputs: list[Array]) -> list[Array]:
            for tensor, values in zip(program.inputs, inputs, strict=True):
                write_tensor(memory.data, tensor, values)
            memory.flush()
            for launch, instructions in zip(program.launches, code, strict=True):
                self._launch(launch, instructions, memory)
            memory.invalidate()
            return [read_tensor(memory.data, tensor) for tensor in program.outputs]

        return run

    def _code(self, program: Program, launch: Launch) -> Contiguous:
        words = encode_all(program.config, launch.instructions).astype("<u8").view(np.uint8).reshape(-1)
        memory = self.allocate(words.size)
        memory.data[: words.size] = words
        memory.flush()
        return memory

    def _launch(self, launch: Launch, code: Contiguous, memory: Contiguous) -> None:
        """Point every unit at its memory, start the four of them, wait until compute says that FINISH is over."""
        write = self.registers.write
        write(FETCH + INSN_COUNT, len(launch.instructions))
        write(FETCH + INSN_ADDR, code.address)
        for register in (LOAD + INP_ADDR, LOAD + WGT_ADDR, COMPUTE + UOP_ADDR, COMPUTE + BIAS_ADDR, STORE + OUT_ADDR):
            write(register, memory.address)
        write(FETCH + CONTROL, START)
        for unit in (LOAD, COMPUTE, STORE):
            write(unit + CONTROL, AUTORESTART)
        deadline = time.monotonic() + self.timeout_s
        while self.registers.read(COMPUTE + DONE_READ) != DONE:
            if time.monotonic() > deadline:
                raise DeviceLostError(
                    f"the accelerator did not finish {launch.name} within {self.timeout_s:g} s",
                    "the done flag of its compute unit", "load the bitstream of the program's configuration again",
                )  # fmt: skip


class MappedRegisters:
    """Registers through /dev/mem. Needs root, on a board whose bitstream holds a VTA. Raises DeviceError."""

    def __init__(self) -> None:
        self._pages: dict[int, mmap.mmap] = {}
        try:
            handle = os.open("/dev/mem", os.O_RDWR | os.O_SYNC)
        except OSError as error:
            raise DeviceError(
                f"no access to /dev/mem ({error.strerror})", "root on a Zynq board", "or --driver sim"
            ) from None
        try:
            for base in (FETCH, LOAD, COMPUTE, STORE):
                self._pages[base] = mmap.mmap(handle, mmap.PAGESIZE, offset=base)
        except (OSError, ValueError) as error:
            raise DeviceError(f"no registers at {FETCH:#x} ({error})", "a Zynq board with a VTA bitstream") from None
        finally:
            os.close(handle)

    def read(self, address: int) -> int:
        page, offset = self._pages[address & ~0xFFFF], address & 0xFFFF
        return int.from_bytes(page[offset : offset + 4], "little")

    def write(self, address: int, value: int) -> None:
        page, offset = self._pages[address & ~0xFFFF], address & 0xFFFF
        page[offset : offset + 4] = value.to_bytes(4, "little")


class _CmaMemory:
    """Memory of libcma, which pynq's images carry; not cached, so that flushing is nothing to do."""

    def __init__(self, library: Any, nbytes: int) -> None:
        import ctypes

        pointer = library.cma_alloc(nbytes, 0)
        if not pointer:
            raise DeviceError(f"no {nbytes} contiguous bytes left", "memory of the CMA pool", "restart the server")
        self.address = int(library.cma_get_phy_addr(pointer))
        self.data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))

    def flush(self) -> None:
        """Nothing: the memory is not cached."""

    def invalidate(self) -> None:
        """Nothing: the memory is not cached."""


def cma_allocator() -> Allocate:
    """Return an allocator over libcma. Raises DeviceError where there is none."""
    import ctypes

    for path in (Path("/usr/lib/libcma.so"), Path("/usr/lib/libsds_lib.so")):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))
            library.cma_alloc.restype, library.cma_alloc.argtypes = ctypes.c_void_p, [ctypes.c_uint32, ctypes.c_uint32]
            library.cma_get_phy_addr.restype = ctypes.c_uint32
            library.cma_get_phy_addr.argtypes = [ctypes.c_void_p]
            return lambda nbytes: _CmaMemory(library, nbytes)
    raise DeviceError("no libcma on this machine", "an image for pynq", "or --driver sim")
