"""What an accelerator computes of a network, as the library without TVM carries it: memory images and instructions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Span:
    """Bytes of an accelerator's memory."""

    offset: int
    size: int


@dataclass(frozen=True)
class DeviceProgram:
    """A program of the accelerator `design` over one memory of `memory_bytes`, which starts as zeros with `image` at
    `image_at`.

    code: all instructions, uint8; launches: where the instructions of each run of the accelerator begin in it, bytes,
    and how many they are. inputs, outputs: where in the memory values lie, in the order of the call.
    """

    design: str
    memory_bytes: int
    image_at: int
    image: Array = field(repr=False)
    code: Array = field(repr=False)
    launches: tuple[tuple[int, int], ...]
    inputs: tuple[Span, ...]
    outputs: tuple[Span, ...]
