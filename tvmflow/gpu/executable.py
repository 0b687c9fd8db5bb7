"""What is linked into the library of a network that a GPU runs, in place of the CPU's object files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tvmflow.gpu.launches import DeviceProgram

Api = Literal["opencl", "vulkan"]
ALIGNMENT = 512  # bytes: a multiple of what known devices ask of a part of a buffer


@dataclass(frozen=True)
class GpuExecutable:
    """codes: programs as the driver takes them, source or binary; places: function of the device -> its position in codes and its name there.

    options: of the driver's compiler.
    """

    api: Api
    program: DeviceProgram = field(repr=False)
    codes: tuple[bytes, ...] = field(repr=False)
    places: dict[str, tuple[int, str]]
    options: str = ""
