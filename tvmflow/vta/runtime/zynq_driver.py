"""Run programs on the VTA of a Zynq board: contiguous memory and memory-mapped registers.

Registers are those of VTA's HLS design. pynq, ultra96 and zcu104 have the same driver with different register
addresses. No board was available: the driver follows the published register map and the protocol of VTA's own driver,
and is tested with a fake that behaves like the registers (tests/devices/test_vta_board.py). The fetch unit reads
instructions from `insn_addr`; load, compute and store units add their base registers to the addresses in instructions,
so a program runs at any memory location without changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tvmflow.support.errors import DeviceError, DeviceLostError, UnknownNameError
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.program import Launch, Program
from tvmflow.vta.machine.counters import Counters
from tvmflow.vta.machine.lint import check_program
from tvmflow.vta.runtime.device import Contiguous, Driver, Loaded

Array = np.ndarray[Any, Any]

FETCH, LOAD, COMPUTE, STORE = 0x0000, 0x1000, 0x2000, 0x3000
"""Where the four units have their registers, from the board's base on; each has a page of REGISTER_BYTES."""
REGISTER_BYTES = 0x1000
BASES = {"pynq": 0x43C00000, "ultra96": 0xA0000000, "zcu104": 0xA0000000}
"""Physical base address of the registers, for each board whose designs speak this protocol."""
CONTROL = 0x00
START, AUTORESTART = 0x01, 0x81
INSN_COUNT, INSN_ADDR = 0x10, 0x18
INP_ADDR, WGT_ADDR = 0x10, 0x18
DONE_READ, UOP_ADDR, BIAS_ADDR = 0x18, 0x20, 0x28
OUT_ADDR = 0x10
DONE = 1
SETTLE_S = 1e-6
"""How long the original waits before it looks at the done flag, which may be that of the launch before."""
TIMEOUT_S = 10.0


class Registers(Protocol):
    """Reads and writes 32-bit registers by their place behind the board's base address."""

    def read(self, address: int) -> int: ...

    def write(self, address: int, value: int) -> None: ...


Allocate = Callable[[int], Contiguous]


class BoardDriver(Driver):
    """A board as a device. The design has no counters."""

    def __init__(self, registers: Registers, allocate: Allocate, timeout_s: float = TIMEOUT_S) -> None:
        self.registers, self._allocate, self.timeout_s = registers, allocate, timeout_s

    @staticmethod
    def of_this_board(target: str) -> BoardDriver:
        """Return the driver of the board that runs this. Raises UnknownNameError, DeviceError when this is none."""
        if target not in BASES:
            raise UnknownNameError(f"a driver for VTA on {target!r}", legal=BASES)
        allocate = cma_allocator()
        return BoardDriver(MappedRegisters(BASES[target]), allocate)

    def load(self, program: Program) -> Loaded:
        """Put a program into memory. What the linter finds is refused: a board would read and write whatever it is told
        to.
        """
        check_program(program)
        return super().load(program)

    def allocate(self, nbytes: int) -> Contiguous:
        return self._allocate(nbytes)

    def launch(self, config: VtaConfig, launch: Launch, code_address: int, memory: Contiguous) -> Counters | None:
        """Point every unit at its memory, start the four of them, wait until compute says that FINISH is over."""
        registers = self.registers
        registers.write(FETCH + INSN_COUNT, len(launch.instructions))
        registers.write(FETCH + INSN_ADDR, code_address)
        for register in (LOAD + INP_ADDR, LOAD + WGT_ADDR, COMPUTE + UOP_ADDR, COMPUTE + BIAS_ADDR, STORE + OUT_ADDR):
            registers.write(register, memory.address)
        registers.write(FETCH + CONTROL, START)
        for unit in (LOAD, COMPUTE, STORE):
            registers.write(unit + CONTROL, AUTORESTART)
        time.sleep(SETTLE_S)
        deadline = time.monotonic() + self.timeout_s
        while registers.read(COMPUTE + DONE_READ) != DONE:
            if time.monotonic() > deadline:
                raise DeviceLostError(
                    f"the accelerator did not finish {launch.name} within {self.timeout_s:g} s",
                    "the done flag of its compute unit",
                    "load the bitstream of the program's configuration again",
                )
        return None


class MappedRegisters:
    """Registers through /dev/mem. Needs root, on a board whose bitstream holds a VTA. Raises DeviceError."""

    def __init__(self, base: int) -> None:
        self._pages: dict[int, Array] = {}
        try:
            handle = os.open("/dev/mem", os.O_RDWR | os.O_SYNC)
        except OSError as error:
            raise DeviceError(
                f"no access to /dev/mem ({error.strerror})", "root on a Zynq board", "or --driver sim"
            ) from None
        try:
            for unit in (FETCH, LOAD, COMPUTE, STORE):
                page = mmap.mmap(handle, REGISTER_BYTES, offset=base + unit)
                self._pages[unit] = np.frombuffer(page, "<u4")  # one access of 32 bits for each register, never bytes
        except (OSError, ValueError) as error:
            raise DeviceError(f"no registers at {base:#x} ({error})", "a Zynq board with a VTA bitstream") from None
        finally:
            os.close(handle)

    def read(self, address: int) -> int:
        return int(self._pages[address & ~(REGISTER_BYTES - 1)][address % REGISTER_BYTES // 4])

    def write(self, address: int, value: int) -> None:
        self._pages[address & ~(REGISTER_BYTES - 1)][address % REGISTER_BYTES // 4] = value


class _CmaMemory:
    """Memory of libcma, which pynq's images carry; not cached, so that flushing is nothing to do."""

    def __init__(self, library: Any, nbytes: int) -> None:
        pointer = library.cma_alloc(nbytes, 0)
        if not pointer:
            raise DeviceError(f"no {nbytes} contiguous bytes left", "memory of the CMA pool", "restart the server")
        self._library, self._pointer = library, pointer
        self.address = int(library.cma_get_phy_addr(pointer))
        self.data = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))

    def flush(self) -> None:
        """Do nothing: the memory is not cached."""

    def invalidate(self) -> None:
        """Do nothing: the memory is not cached."""

    def free(self) -> None:
        """Return the memory to the pool; `data` must not be accessed after this."""
        self.data = np.zeros(0, np.uint8)
        self._library.cma_free(self._pointer)


def cma_allocator() -> Allocate:
    """Return an allocator over libcma. Raises DeviceError where there is none."""
    for path in (Path("/usr/lib/libcma.so"), Path("/usr/lib/libsds_lib.so")):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(str(path))
            library.cma_alloc.restype, library.cma_alloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
            library.cma_free.restype, library.cma_free.argtypes = None, [ctypes.c_void_p]
            library.cma_get_phy_addr.restype = ctypes.c_uint32
            library.cma_get_phy_addr.argtypes = [ctypes.c_void_p]
            return lambda nbytes: _CmaMemory(library, nbytes)
    raise DeviceError("no libcma on this machine", "an image for pynq", "or --driver sim")
