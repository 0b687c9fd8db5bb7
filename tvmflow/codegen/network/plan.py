"""Describe the static plan of a network: kernel calls in order, and the memory of each value.

TVM's virtual machine allocates memory while it runs. Here it is allocated statically, from the lowered main function.
Two values share bytes only if one is dead before the other is written; `check` proves that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tvmflow.backends.device_program import DeviceProgram
from tvmflow.codegen.network.textures import Texture
from tvmflow.gpu_codegen.clml_operators import ClmlOperator
from tvmflow.gpu_codegen.launches import Argument, Launch
from tvmflow.ir.relax.serialization import bytes_of

Place = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True)
class Memory:
    """Bytes that kernels read and write. index: of the input, output or constant; offset: in the arena or the
    constants.
    """

    place: Place
    size: int
    index: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Value:
    """A tensor as a kernel reads it: a part of a memory. memory: index in `Plan.memories`; offset: in bytes."""

    memory: int
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return bytes_of(self.shape, self.dtype)


@dataclass(frozen=True)
class Step:
    """A call of a kernel. arguments: indices in `Plan.values`, inputs first; the last `written` are its outputs.

    program: index in `Plan.programs` if the accelerator computes it, None for a CPU function. launch: the GPU's launch;
    order: indices of its arguments in `arguments`. layer: the operator of CLML that computes it. loops: extents of the
    function's parallel loops, in the order of execution.
    """

    kernel: str
    arguments: tuple[int, ...]
    written: int
    program: int | None = None
    launch: Launch | None = None
    order: tuple[int, ...] = ()
    layer: ClmlOperator | None = None
    loops: tuple[int, ...] = ()

    @property
    def given(self) -> tuple[int, ...]:
        """Return the arguments in the order of the function's parameters."""
        return tuple(self.arguments[at] for at in self.order) if self.launch else self.arguments


def launch_step(launch: Launch, value_of: Callable[[Argument], int]) -> Step:
    """Return the step of a launch. value_of: argument -> index in `Plan.values`."""
    found = [value_of(argument) for argument in launch.arguments]
    reads = [at for at, written in enumerate(launch.written) if not written]
    positions = [*reads, *(at for at, written in enumerate(launch.written) if written)]
    order = tuple(positions.index(at) for at in range(len(found)))
    arguments = tuple(found[at] for at in positions)
    return Step(launch.name, arguments, len(found) - len(reads), launch=launch, order=order)


@dataclass(frozen=True)
class PlacedProgram:
    """A program of the accelerator. image, code: indices in `Plan.memories` of its initial memory and instructions."""

    program: DeviceProgram
    image: int
    code: int


@dataclass(frozen=True)
class Plan:
    """The plan of a network.

    inputs, outputs: indices in `values`. copies: (from, to) values to copy at the end, for outputs that no kernel
    writes. textures: index in `memories` -> the texture that replaces a buffer on a GPU.
    """

    memories: tuple[Memory, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    constants: tuple[np.ndarray[Any, Any], ...] = field(repr=False)
    programs: tuple[PlacedProgram, ...] = ()
    textures: Mapping[int, Texture] = field(default_factory=dict)

    @property
    def widths(self) -> dict[str, dict[int, int]]:
        """Return the row length, in vectors, of each texture parameter, by GPU function."""
        found: dict[str, dict[int, int]] = {}
        for step in self.steps:
            textures = {k: self.textures.get(self.values[at].memory) for k, at in enumerate(step.given)}
            found[step.kernel] = {k: texture.width for k, texture in textures.items() if texture}
        return found

    @property
    def design(self) -> str:
        """Return the name of the accelerator's design, "" if the CPU computes everything."""
        return self.programs[0].program.design if self.programs else ""

    @property
    def arena_bytes(self) -> int:
        return max((m.offset + m.size for m in self.memories if m.place == "arena"), default=0)
