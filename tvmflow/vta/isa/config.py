"""Configure a VTA design: block sizes and buffers, as a frozen value.

The fields and their names are those of VTA's `vta_config.json`. There is no global state: two designs can be used in
one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from functools import cached_property
from typing import Any

from tvmflow.support.errors import ParamsError, UnknownNameError

HW_VER = "0.0.2"
PAGE = 4096
"""Bytes. Buffers in DRAM begin at multiples of this; page 0 is nobody's, as in VTA's own allocator."""
RUN_FUNCTION, COUNTERS_FUNCTION = "tvmflow.vta.run", "tvmflow.vta.machine.counters"
CONFIGURE_FUNCTION = "tvmflow.vta.configure"
"""What a device with a VTA provides to the libraries that it loads, and to whoever asks it."""


class Memory(IntEnum):
    """On-chip memories, numbered as instructions name them. OUT and ACC_8BIT are the accumulator seen as bytes."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5


@dataclass(frozen=True)
class Board:
    """clock_mhz: of the accelerator; bus_bytes: what its memory port moves in a cycle; is_simulator: may use MUL and
    ACC_8BIT loads.
    """

    clock_mhz: float
    bus_bytes: int
    is_simulator: bool = False


BOARDS = {
    "sim": Board(100.0, 8, is_simulator=True),
    "tsim": Board(100.0, 8),
    "pynq": Board(100.0, 8),
    "ultra96": Board(333.0, 16),
    "zcu104": Board(333.0, 16),
    "de10nano": Board(100.0, 8),
    "intelfocl": Board(
        100.0, 8, is_simulator=True
    ),  # its design loads 8-bit accumulators and multiplies, as the simulator does
}


@dataclass(frozen=True)
class VtaConfig:
    """log_*: base 2; widths in bits, block sizes in lanes, buffers in bytes. Raises ParamsError when no VTA can be
    so.
    """

    target: str = "sim"
    hw_ver: str = HW_VER
    log_inp_width: int = 3
    log_wgt_width: int = 3
    log_acc_width: int = 5
    log_batch: int = 0
    log_block: int = 4
    log_uop_buff_size: int = 15
    log_inp_buff_size: int = 15
    log_wgt_buff_size: int = 18
    log_acc_buff_size: int = 17

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            kind, legal = (str, "text") if name in ("target", "hw_ver") else (int, "a whole number")
            if type(value) is not kind:
                raise ParamsError(f"VTA field {name} is {type(value).__name__}", legal)
        if self.target not in BOARDS:
            raise UnknownNameError(f"VTA target {self.target!r}", legal=BOARDS)
        if (self.log_inp_width, self.log_wgt_width, self.log_acc_width) != (3, 3, 5):
            raise ParamsError(
                f"VTA widths 2^{self.log_inp_width}, 2^{self.log_wgt_width}, 2^{self.log_acc_width} bits",
                "8-bit inputs and weights, 32-bit accumulators (3, 3, 5)",
            )
        if not (0 <= self.log_batch <= 4 and 1 <= self.log_block <= 6):
            raise ParamsError(
                f"VTA log_batch {self.log_batch}, log_block {self.log_block}", "log_batch 0 to 4, log_block 1 to 6"
            )
        for memory in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC):
            if not 1 <= self.log_depth(memory) <= 16:
                raise ParamsError(
                    f"VTA's {memory.name} buffer holds 2^{self.log_depth(memory)} elements",
                    "2^1 to 2^16: the instructions count no further",
                    "change log_block, log_batch or the buffer's size",
                )
        self._check_fields()

    def _check_fields(self) -> None:
        """Raise ParamsError when the fields that grow with the buffers do not fit into an instruction."""
        uop, inp, wgt, acc = (self.log_depth(m) for m in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC))
        for what, bits, room in (
            ("micro-op", acc + max(acc, inp) + wgt, 32),
            ("first word of GEMM", 8 + 2 * uop + 1 + 28, 64),
            ("second word of GEMM", 2 * (acc + inp + wgt), 64),
            ("second word of ALU", 4 * acc + 20, 64),
        ):
            if bits > room:
                raise ParamsError(f"VTA's {what} needs {bits} bits", f"at most {room}", "make the buffers smaller")
        if self.hw_ver != HW_VER and acc != inp:
            raise ParamsError(
                f"hw_ver {self.hw_ver!r} with 2^{inp} inputs and 2^{acc} accumulators",
                f"hw_ver {HW_VER!r}: older designs name accumulators with other bits, unless both memories "
                f"are equally deep",
            )

    # -- derived --

    @property
    def batch(self) -> int:
        return 1 << self.log_batch

    @property
    def block(self) -> int:
        return 1 << self.log_block

    @property
    def board(self) -> Board:
        return BOARDS[self.target]

    @cached_property
    def _element_log(self) -> dict[Memory, int]:
        vector = self.log_batch + self.log_block
        return {
            Memory.UOP: 2,
            Memory.WGT: 2 * self.log_block,
            Memory.INP: vector,
            Memory.ACC: vector + 2,
            Memory.OUT: vector,
            Memory.ACC_8BIT: vector,
        }

    def element_bytes(self, memory: Memory) -> int:
        """Return the bytes of one element in DRAM: a micro-op, a weight block, a vector."""
        return 1 << self._element_log[memory]

    def log_depth(self, memory: Memory) -> int:
        sizes = {
            Memory.UOP: self.log_uop_buff_size,
            Memory.WGT: self.log_wgt_buff_size,
            Memory.INP: self.log_inp_buff_size,
        }
        kept = memory if memory in sizes else Memory.ACC
        return sizes.get(memory, self.log_acc_buff_size) - self._element_log[kept]

    def depth(self, memory: Memory) -> int:
        """Return how many elements the on-chip memory holds."""
        return 1 << self.log_depth(memory)

    @property
    def name(self) -> str:
        """Return the name of the design's bitstream, with its target in front."""
        buffers = f"{self.log_uop_buff_size}_{self.log_inp_buff_size}_{self.log_wgt_buff_size}_{self.log_acc_buff_size}"
        return f"{self.target}_{self.batch}x{self.block}_i8w8a32_{buffers}"

    def to_json(self) -> dict[str, Any]:
        """Return the content of a `vta_config.json`."""
        return {name.upper(): value for name, value in asdict(self).items()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> VtaConfig:
        """Read the content of a `vta_config.json`; what is absent has VTA's default. Raises ParamsError."""
        if not callable(getattr(data, "items", None)):
            raise ParamsError(f"a VTA configuration that is {type(data).__name__}", "an object of VTA's fields")
        legal = [field.name for field in fields(VtaConfig)]
        pairs = list(data.items())
        values = {str(name).lower(): value for name, value in pairs}
        if len(values) != len(pairs):
            raise ParamsError("VTA fields written twice, in capitals and without", "every field once")
        unknown = sorted(set(values) - set(legal))
        if unknown:
            raise ParamsError(f"unknown VTA fields {', '.join(unknown)[:200]}", "fields of " + ", ".join(legal))
        return VtaConfig(**values)
