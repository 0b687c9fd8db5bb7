"""A driver of the C seam whose accelerator is the simulator in this process: what checks a library with a part on VTA."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np

from tvmflow.errors import TvmflowError
from tvmflow.vta.config import PAGE, VtaConfig
from tvmflow.vta.execution import run_launch
from tvmflow.vta.isa import INSTRUCTION_BYTES, decode_all
from tvmflow.vta.program import Launch
from tvmflow.vta.simulator import Simulator

Array = np.ndarray[Any, Any]
_NAME = re.compile(
    r"([a-z0-9]{1,16})_([0-9]{1,4})x([0-9]{1,4})_i8w8a32_([0-9]{1,2})_([0-9]{1,2})_([0-9]{1,2})_([0-9]{1,2})"
)


def design_named(name: str) -> VtaConfig | None:
    """Return the design of a name as `VtaConfig.name`; None where there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    batch, block, uop, inp, wgt, acc = map(int, found.groups()[1:])
    try:
        design = VtaConfig(
            found[1], log_batch=batch.bit_length() - 1, log_block=block.bit_length() - 1, log_uop_buff_size=uop,
            log_inp_buff_size=inp, log_wgt_buff_size=wgt, log_acc_buff_size=acc,
        )  # fmt: skip
    except TvmflowError:
        return None
    return design if design.name == name else None


class SimulatedBoard:
    """An accelerator in memory of this process. driver: what a network is given; error: of the last launch that failed."""

    def __init__(self, binding: Any, config: VtaConfig) -> None:
        self.config, self.error = config, ""
        self._memories: dict[int, Array] = {}
        self._machines: dict[int, Simulator] = {}
        self._decoded: dict[tuple[int, int], Launch] = {}
        kind = binding.Driver
        self.driver = kind(
            size=ctypes.sizeof(kind), allocate=kind.Allocate(self._allocate), release=kind.Release(self._release),
            flush=kind.Touch(), invalidate=kind.Touch(), launch=kind.Launch(self._launch),
        )  # fmt: skip
        self.driver.board = self  # lives as long

    def _allocate(self, _context: Any, memory: Any) -> int:
        room = np.zeros(memory.contents.size + PAGE, np.uint8)
        begin = -int(room.ctypes.data) % PAGE
        found = room[begin : begin + memory.contents.size]
        memory.contents.data = memory.contents.address = int(found.ctypes.data)
        self._memories[memory.contents.address] = found
        return 0

    def _release(self, _context: Any, memory: Any) -> None:
        address = memory.contents.address
        self._memories.pop(address, None)
        self._machines.pop(address, None)
        self._decoded = {place: launch for place, launch in self._decoded.items() if place[0] != address}

    def _launch(self, _context: Any, code: Any, offset: int, count: int, memory: Any) -> int:
        try:
            self._run(code.contents.address, offset, count, memory.contents.address)
        except Exception as error:  # nothing may go through C
            self.error = str(error)
            return 1
        return 0

    def _run(self, code: int, offset: int, count: int, memory: int) -> None:
        if (code, offset) not in self._decoded:
            words = self._memories[code][offset : offset + count * INSTRUCTION_BYTES].view("<u8").reshape(count, 2)
            self._decoded[code, offset] = Launch(f"at {offset}", tuple(decode_all(self.config, words)))
        if memory not in self._machines:
            self._machines[memory] = Simulator(self.config, self._memories[memory])
        machine = self._machines[memory]
        machine.forget()
        run_launch(self._decoded[code, offset], machine, "load-eager")
