"""Run programs on devices: shared memory, launches, and the simulator as a device."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tvmflow.support.errors import DeviceError, ProgramError
from tvmflow.vta.isa.config import PAGE, VtaConfig
from tvmflow.vta.isa.instructions import check_steps, encode_all
from tvmflow.vta.isa.program import Launch, Program, Tensor
from tvmflow.vta.machine.counters import Counters
from tvmflow.vta.machine.execution import run_launch
from tvmflow.vta.machine.simulator import Simulator

Array = np.ndarray[Any, Any]


class Loaded(Protocol):
    """A program on a device. counted: what the device itself counted in the last run; None of one that does not
    count.
    """

    counted: Counters | None

    def run(self, inputs: list[Array]) -> list[Array]:
        """Run the program on packed int8 arrays and return its packed int8 outputs."""

    def close(self) -> None:
        """Free the memory that the program holds on the device."""


class Contiguous(Protocol):
    """Memory that CPU and accelerator both see: a view for us, an address for the accelerator."""

    address: int
    data: Array

    def flush(self) -> None:
        """Make the CPU's writes visible to the accelerator."""

    def invalidate(self) -> None:
        """Invalidate the CPU's caches, so that the accelerator's writes are read."""

    def free(self) -> None:
        """Free the memory."""


class Driver(ABC):
    """A device that runs launches over memory that it gives."""

    def load(self, program: Program) -> Loaded:
        """Put a program into memory. Raises ProgramError, DeviceError."""
        return _InMemory(self, program)

    @abstractmethod
    def allocate(self, nbytes: int) -> Contiguous:
        """Return memory from a page's beginning on. Raises DeviceError where there is none left."""

    @abstractmethod
    def launch(self, config: VtaConfig, launch: Launch, code_address: int, memory: Contiguous) -> Counters | None:
        """Run a launch, whose instructions lie at an address; return what the device counted, None of one that does not
        count.

        Raises TvmflowError.
        """


class _InMemory:
    """A program in memory of a driver, which is kept from run to run; each launch's instructions have a piece of their
    own.
    """

    def __init__(self, driver: Driver, program: Program) -> None:
        self.driver, self.program = driver, program
        self.counted: Counters | None = None
        self.pieces: list[Contiguous] = []
        try:
            self.memory = self._piece(dram_of(program))
            self.code = [self._piece(code_of(program.config, launch)) for launch in program.launches]
        except DeviceError:
            self.close()
            raise

    def _piece(self, data: Array) -> Contiguous:
        piece = self.driver.allocate(data.size)
        self.pieces.append(piece)
        piece.data[: data.size] = data
        piece.flush()
        return piece

    def run(self, inputs: list[Array]) -> list[Array]:
        write_inputs(self.memory.data, self.program, inputs)
        self.memory.flush()
        counted = [
            self.driver.launch(self.program.config, launch, code.address, self.memory)
            for launch, code in zip(self.program.launches, self.code, strict=True)
        ]
        self.memory.invalidate()
        known = [counters for counters in counted if counters is not None]
        self.counted = sum(known, Counters()) if len(known) == len(counted) else None
        return [read_tensor(self.memory.data, tensor) for tensor in self.program.outputs]

    def close(self) -> None:
        while self.pieces:
            self.pieces.pop().free()


class SimulatorDriver(Driver):
    """The simulator as a device: DRAM is kept from run to run, on-chip memory is not."""

    def __init__(self, order: str = "load-eager") -> None:
        self.order = order

    def load(self, program: Program) -> Loaded:
        check_steps((i for launch in program.launches for i in launch.instructions), "a program")
        return super().load(program)

    def allocate(self, nbytes: int) -> Contiguous:
        return _HostMemory(nbytes)

    def launch(self, config: VtaConfig, launch: Launch, code_address: int, memory: Contiguous) -> Counters | None:
        assert isinstance(memory, _HostMemory)
        machine = memory.machine = memory.machine or Simulator(config, memory.data)
        machine.counters = Counters()
        machine.forget()
        run_launch(launch, machine, self.order)
        return machine.counters


class _HostMemory:
    """Memory of this process, which the simulator sees as it is. machine: the simulator whose DRAM it is."""

    def __init__(self, nbytes: int) -> None:
        room = np.zeros(nbytes + PAGE, np.uint8)
        begin = -int(room.ctypes.data) % PAGE
        self.data = room[begin : begin + nbytes]
        self.address = int(self.data.ctypes.data)
        self.machine: Simulator | None = None

    def flush(self) -> None:
        """Do nothing: CPU and simulator share one view."""

    def invalidate(self) -> None:
        """Do nothing: CPU and simulator share one view."""

    def free(self) -> None:
        """Do nothing: the memory is freed with its last reference."""


def code_of(config: VtaConfig, launch: Launch) -> Array:
    """Return the instructions of a launch as the fetch unit reads them, uint8."""
    return encode_all(config, launch.instructions).astype("<u8").view(np.uint8).reshape(-1)


def pack_code(program: Program) -> tuple[Array, tuple[int, ...]]:
    """Return all instructions as a library without TVM carries them, uint8, and where each launch's begin: at pages,
    for the fetch unit.
    """
    parts: list[Array] = []
    places: list[int] = []
    for launch in program.launches:
        code = code_of(program.config, launch)
        places.append(sum(part.size for part in parts))
        parts.append(np.pad(code, (0, -code.size % PAGE)))
    return np.concatenate(parts), tuple(places)


def code_digest(code: Array) -> bytes:
    """Return the digest that identifies a program by its instructions (uint8, from the packed code)."""
    return hashlib.sha256(code.tobytes()).digest()


def dram_of(program: Program) -> Array:
    """Return the initial DRAM of a program."""
    memory = np.zeros(program.dram_bytes, np.uint8)
    memory[program.constants_at : program.constants_at + program.constants.size] = program.constants
    return memory


def write_inputs(memory: Array, program: Program, inputs: list[Array]) -> None:
    """Write the packed inputs of a program to DRAM. Raises ProgramError for a wrong number or shape of them."""
    if len(inputs) != len(program.inputs):
        raise ProgramError(f"{len(inputs)} inputs", f"{len(program.inputs)}")
    for tensor, values in zip(program.inputs, inputs, strict=True):
        write_tensor(memory, tensor, values)


def write_tensor(memory: Array, tensor: Tensor, values: Array) -> None:
    """Write packed int8 values to DRAM. Raises ProgramError for a wrong shape."""
    if tuple(values.shape) != tensor.shape or values.dtype != np.int8:
        raise ProgramError(f"{tensor.name} as {values.dtype} {tuple(values.shape)}", f"int8 {tensor.shape}")
    memory[tensor.address : tensor.address + tensor.nbytes] = values.reshape(-1).view(np.uint8)


def read_tensor(memory: Array, tensor: Tensor) -> Array:
    """Read packed int8 values from DRAM."""
    return memory[tensor.address : tensor.address + tensor.nbytes].view(np.int8).reshape(tensor.shape).copy()


@dataclass
class Ran:
    """What a program did in this process. cycles: estimated, of one run; counted: by the device, in all runs."""

    cycles: int = 0
    runs: int = 0
    counted: Counters | None = None

    def to_json(self) -> dict[str, Any]:
        counted = self.counted.to_json() if self.counted is not None else None
        return {"runs": self.runs, "cycles": self.cycles, "counted": counted}
