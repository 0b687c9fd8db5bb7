"""Describe an accelerator's program in a library without TVM: memory image and instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Span:
    """A range of bytes in an accelerator's memory."""

    offset: int
    size: int


@dataclass(frozen=True)
class DeviceProgram:
    """A program of the accelerator `design` with one memory of `memory_bytes`: zeros, and `image` at `image_at`.

    code: all instructions, uint8; launches: offset in bytes and number of instructions of each run. inputs, outputs:
    their ranges in the memory, in the order of the call.
    """

    design: str
    memory_bytes: int
    image_at: int
    image: Array = field(repr=False)
    code: Array = field(repr=False)
    launches: tuple[tuple[int, int], ...]
    inputs: tuple[Span, ...]
    outputs: tuple[Span, ...]
