"""Bridge the C runtime's driver interface to a device of this process: the simulator or a board.

A library without TVM is given `DriverSeam.driver`, a tvmflow_driver. Its runs are counted like those of
`tvmflow.vta.run`, under the digest of the program's instructions, which is all that the library passes.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from tvmflow.support.errors import DeviceError, ProgramError, TvmflowError
from tvmflow.support.runtime_binding import network_binding
from tvmflow.vta.isa.config import VtaConfig
from tvmflow.vta.isa.instructions import INSTRUCTION_BYTES, decode_all
from tvmflow.vta.isa.program import Launch
from tvmflow.vta.machine.counters import Counters, estimate
from tvmflow.vta.runtime.device import Contiguous, Driver, Ran, code_digest

_NAME = re.compile(
    r"([a-z0-9]{1,16})_([0-9]{1,4})x([0-9]{1,4})_i8w8a32_([0-9]{1,2})_([0-9]{1,2})_([0-9]{1,2})_([0-9]{1,2})"
)


def find_design(name: str) -> VtaConfig | None:
    """Return the design with a name (`VtaConfig.name`), None if there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    batch, block, uop, inp, wgt, acc = map(int, found.groups()[1:])
    try:
        design = VtaConfig(
            found[1],
            log_batch=batch.bit_length() - 1,
            log_block=block.bit_length() - 1,
            log_uop_buff_size=uop,
            log_inp_buff_size=inp,
            log_wgt_buff_size=wgt,
            log_acc_buff_size=acc,
        )
    except TvmflowError:
        return None
    return design if design.name == name else None


class DriverSeam:
    """A device for libraries without TVM. driver: what a network is given, as long as this lives; error: of the last
    launch that failed.

    ran: what ran, by `code_digest`; a run begins with the launch at offset 0.
    """

    def __init__(self, config: VtaConfig, device: Driver, ran: dict[bytes, Ran]) -> None:
        self.config, self.device, self.ran, self.error = config, device, ran, ""
        self.memories: dict[int, Contiguous] = {}
        self._digests: dict[int, bytes] = {}
        self._decoded: dict[tuple[bytes, int], Launch] = {}
        kind = network_binding().Driver
        self.driver = kind(
            size=ctypes.sizeof(kind),
            allocate=kind.Allocate(self._allocate),
            release=kind.Release(self._release),
            flush=kind.Touch(lambda _context, memory, _offset, _size: self.memories[memory.contents.address].flush()),
            invalidate=kind.Touch(
                lambda _context, memory, _offset, _size: self.memories[memory.contents.address].invalidate()
            ),
            launch=kind.Launch(self._launch),
        )
        self.driver.seam = self  # lives as long

    def _allocate(self, _context: Any, memory: Any) -> int:
        try:
            found = self.device.allocate(memory.contents.size)
        except DeviceError as error:
            self.error = str(error)
            return 1
        memory.contents.data, memory.contents.address = int(found.data.ctypes.data), found.address
        self.memories[found.address] = found
        return 0

    def _release(self, _context: Any, memory: Any) -> None:
        address = memory.contents.address
        self._digests.pop(address, None)
        self.memories.pop(address).free()

    def _launch(self, _context: Any, code: Any, offset: int, count: int, memory: Any) -> int:
        try:
            self._run(code.contents.address, offset, count, self.memories[memory.contents.address])
        except Exception as error:  # nothing may go through C
            self.error = f"{error.found}; expected: {error.expected}" if isinstance(error, TvmflowError) else str(error)
            return 1
        return 0

    def _run(self, code: int, offset: int, count: int, memory: Contiguous) -> None:
        data = self.memories[code].data
        if code not in self._digests:
            self._digests[code] = code_digest(data)
        digest = self._digests[code]
        ran = self.ran.setdefault(digest, Ran())
        if (digest, offset) not in self._decoded:
            words = data[offset : offset + count * INSTRUCTION_BYTES].view("<u8").reshape(-1, 2)
            if len(words) != count:
                raise ProgramError(f"{count} instructions at {offset}", f"instructions within {len(data)} bytes")
            launch = Launch(f"at {offset}", tuple(decode_all(self.config, words)))
            self._decoded[digest, offset] = launch
            ran.cycles += estimate(self.config, launch).total
        counted = self.device.launch(self.config, self._decoded[digest, offset], code + offset, memory)
        ran.runs += offset == 0
        if counted is not None:
            ran.counted = counted + (ran.counted or Counters())
