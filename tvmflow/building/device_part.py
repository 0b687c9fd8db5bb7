"""What an accelerator computes of a network, as the library without TVM carries it: memory images and instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmflow.errors import ProgramError, StageError
from tvmflow.vta.config import PAGE
from tvmflow.vta.isa import INSTRUCTION_BYTES, encode_all
from tvmflow.vta.program import Program, Tensor
from tvmflow.vta.region import from_blob
from tvmflow.vta.runtime import program_from

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Span:
    """Bytes of the accelerator's memory."""

    offset: int
    size: int


@dataclass(frozen=True)
class DeviceProgram:
    """A program of the accelerator `design` over one memory of `memory_bytes`, which starts as zeros with `image` at `image_at`.

    code: all instructions, uint8; launches: where the instructions of each run of the accelerator begin in it, a multiple of PAGE, and how
    many they are. inputs, outputs: where in the memory values lie, packed int8.
    """

    design: str
    memory_bytes: int
    image_at: int
    image: Array = field(repr=False)
    code: Array = field(repr=False)
    launches: tuple[tuple[int, int], ...]
    inputs: tuple[Span, ...]
    outputs: tuple[Span, ...]


def device_program(blob: bytes) -> DeviceProgram:
    """Return the program in a blob that `build` put into a network. Raises StageError for any other."""
    try:
        program = program_from(*from_blob(blob))
    except ProgramError as error:
        raise StageError(f"a call of the accelerator without a program: {error.found}", error.expected) from None
    code, launches = _code(program)
    return DeviceProgram(
        program.config.name, program.dram_bytes, program.constants_at, program.constants, code, launches,
        tuple(map(_span, program.inputs)), tuple(map(_span, program.outputs)),
    )  # fmt: skip


def _span(tensor: Tensor) -> Span:
    return Span(tensor.address, tensor.nbytes)


def _code(program: Program) -> tuple[Array, tuple[tuple[int, int], ...]]:
    """Return the instructions of all launches, each from the beginning of a page on, as the fetch unit is given them."""
    parts, launches, end = [], [], 0
    for launch in program.launches:
        words = encode_all(program.config, launch.instructions).astype("<u8").view(np.uint8).reshape(-1)
        launches.append((end, words.size // INSTRUCTION_BYTES))
        parts.append(np.pad(words, (0, -words.size % PAGE)))
        end += parts[-1].size
    return np.concatenate(parts), tuple(launches)
