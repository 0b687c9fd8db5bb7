"""The static plan of a network: every kernel call in order, every value at its place in one arena.

What TVM's virtual machine decides while it runs (where a value lies, which memory is free again) is decided here, from
the lowered main function. Two values share bytes only if one is dead before the other is written; `check` proves that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tvmflow.backends.device_program import DeviceProgram
from tvmflow.codegen.network.textures import Texture
from tvmflow.gpu_codegen.launches import Argument, Launch
from tvmflow.ir.relax.serialization import bytes_of

Place = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True)
class Memory:
    """Bytes that kernels read and write. index: of the input, output or constant; offset: in the arena or among the
    constants.
    """

    place: Place
    size: int
    index: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Value:
    """A tensor as a kernel sees it: a part of a memory. memory: its position in `Plan.memories`; offset: in bytes."""

    memory: int
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return bytes_of(self.shape, self.dtype)


@dataclass(frozen=True)
class Step:
    """A call of a kernel. arguments: positions in `Plan.values`, what it reads first; the last `written` are its
    outputs.

    program: position in `Plan.programs` where the accelerator computes it, None for a function of the CPU. launch: what
    the GPU does, whose arguments are `arguments` in another order: positions in it. loops: extents of the function's
    parallel loops, in the order in which it begins them.
    """

    kernel: str
    arguments: tuple[int, ...]
    written: int
    program: int | None = None
    launch: Launch | None = None
    order: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()

    @property
    def given(self) -> tuple[int, ...]:
        """Return the arguments as the function has them."""
        return tuple(self.arguments[at] for at in self.order) if self.launch else self.arguments


def launch_step(launch: Launch, value_of: Callable[[Argument], int]) -> Step:
    """Return the step of a launch. value_of: argument -> position in `Plan.values`."""
    found = [value_of(argument) for argument in launch.arguments]
    reads = [at for at, written in enumerate(launch.written) if not written]
    positions = [*reads, *(at for at, written in enumerate(launch.written) if written)]
    order = tuple(positions.index(at) for at in range(len(found)))
    arguments = tuple(found[at] for at in positions)
    return Step(launch.name, arguments, len(found) - len(reads), launch=launch, order=order)


@dataclass(frozen=True)
class PlacedProgram:
    """A program of the accelerator. image, code: positions in `Plan.memories` of what it starts with and of its
    instructions.
    """

    program: DeviceProgram
    image: int
    code: int


@dataclass(frozen=True)
class Plan:
    """inputs, outputs: positions in `values`. copies: (from, to) values to be copied at the end, outputs that are no
    kernel's own.

    textures: position in `memories` -> what it is on a GPU in place of a buffer.
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
        """Return the vectors in a row of each parameter of a GPU's function that is a texture."""
        found: dict[str, dict[int, int]] = {}
        for step in self.steps:
            textures = {k: self.textures.get(self.values[at].memory) for k, at in enumerate(step.given)}
            found[step.kernel] = {k: texture.width for k, texture in textures.items() if texture}
        return found

    @property
    def design(self) -> str:
        """Return the name of the accelerator's design, "" where the CPU computes everything."""
        return self.programs[0].program.design if self.programs else ""

    @property
    def arena_bytes(self) -> int:
        return max((m.offset + m.size for m in self.memories if m.place == "arena"), default=0)
