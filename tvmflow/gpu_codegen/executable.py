"""What is linked into the library of a network that a GPU runs, in place of the CPU's object files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tvmflow.gpu_codegen.launches import DeviceProgram

Api = Literal["opencl", "vulkan"]
Widths = Mapping[str, Mapping[int, int]]
ALIGNMENT = 512  # bytes: a multiple of what known devices ask of a part of a buffer


@dataclass(frozen=True)
class GpuCode:
    """codes: programs as the driver takes them, source or binary; places: function of the device -> its position in
    codes and its name there.
    """

    codes: tuple[bytes, ...] = field(repr=False)
    places: Mapping[str, tuple[int, str]]


@dataclass(frozen=True)
class GpuExecutable:
    """code: what the driver is given, for the images that the plan chose: function of the device -> parameter ->
    vectors of four in its row.

    may_be_images: function of the device -> for each parameter whether an image can take its place; empty where there
    are only buffers.
    """

    api: Api
    program: DeviceProgram = field(repr=False)
    code: Callable[[Widths], GpuCode] = field(repr=False)
    may_be_images: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
