"""What a library without TVM says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvmflow.codegen.network.bucket_tables import SizedOutputs
from tvmflow.codegen.network.image_tables import ImageInput
from tvmflow.frontends.source_model import TensorSpec


@dataclass(frozen=True)
class Network:
    """What a library says of itself. cell: model@target:precision; threads: that it was tuned for; labels: of classes,
    or none.

    image: how images become its input; None where it takes none. tolerance: error of an output that the precision
    allows, relative to its spread. sized: what runs choose; None where all inputs have one shape.
    """

    cell: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    threads: int
    labels: tuple[str, ...] = ()
    image: ImageInput | None = None
    tolerance: float = 2.0e-3
    sized: SizedOutputs | None = None

    @property
    def symbol(self) -> str:
        """Return the exported function's name, which no other network of a process has."""
        return "tvmflow_network_" + self._plain

    @property
    def soname(self) -> str:
        """Return the name by which the linker of an app and the system's loader know the library."""
        return f"lib{self._plain}.so"

    @property
    def _plain(self) -> str:
        return re.sub(r"[^A-Za-z0-9]+", "_", self.cell)
