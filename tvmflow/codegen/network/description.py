"""Describe a network for its library without TVM."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvmflow.codegen.network.bucket_tables import SizedOutputs
from tvmflow.codegen.network.image_tables import ImageInput
from tvmflow.frontends.source_model import State, TensorSpec


@dataclass(frozen=True)
class Network:
    """The description of a network in its library.

    cell: model@target:precision; threads: of the tuning; labels: of classes, or none. image: how images become its
    input, None if it takes none. tolerance: error of an output that the precision allows, relative to its spread.
    sized: the dynamic sizes, None if all inputs have one shape. states: inputs that an instance carries from run to
    run, with the outputs that they are. flags: of /proc/cpuinfo, without which it refuses to run.
    """

    cell: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    threads: int
    labels: tuple[str, ...] = ()
    image: ImageInput | None = None
    tolerance: float = 2.0e-3
    sized: SizedOutputs | None = None
    states: tuple[State, ...] = ()
    flags: tuple[str, ...] = ()

    def state_places(self) -> list[tuple[int, int]]:
        """Return the positions of each state among the inputs and among the outputs."""
        inputs = [spec.name for spec in self.inputs]
        return [(inputs.index(state.input), self.outputs.index(state.output)) for state in self.states]

    @property
    def symbol(self) -> str:
        """Return the name of the exported function, unique in a process."""
        return "tvmflow_network_" + self._plain

    @property
    def soname(self) -> str:
        """Return the name by which linkers and loaders find the library."""
        return f"lib{self._plain}.so"

    @property
    def module_name(self) -> str:
        """Return the file name of a module of WebAssembly."""
        return f"{self._plain}.wasm"

    @property
    def archive_name(self) -> str:
        """Return the file name of an archive of object files."""
        return f"lib{self._plain}.a"

    @property
    def _plain(self) -> str:
        return re.sub(r"[^A-Za-z0-9]+", "_", self.cell)
