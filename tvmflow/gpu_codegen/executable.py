"""Describe the executable of a GPU network, which is linked in place of the CPU's object files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tvmflow.gpu_codegen.launches import DeviceProgram

Api = Literal["opencl", "vulkan"]
Widths = Mapping[str, Mapping[int, int]]
ALIGNMENT = 512  # bytes: a multiple of the sub-buffer alignment of known devices


@dataclass(frozen=True)
class GpuCode:
    """The programs of a network. codes: source or binary for the driver; places: function -> index in codes and name
    there.
    """

    codes: tuple[bytes, ...] = field(repr=False)
    places: Mapping[str, tuple[int, str]]


@dataclass(frozen=True)
class GpuExecutable:
    """The executable of a GPU network.

    code: returns the programs for the images that the plan chose: function -> parameter -> row length in vectors of
    four. may_be_images: function -> for each parameter whether an image can replace it; empty if all are buffers.
    defines: options of the C compiler for the host code; clml_includes: folders of headers, if it calls CLML.
    """

    api: Api
    program: DeviceProgram = field(repr=False)
    code: Callable[[Widths], GpuCode] = field(repr=False)
    may_be_images: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    defines: tuple[str, ...] = ()
    clml_includes: tuple[Path, ...] = ()
