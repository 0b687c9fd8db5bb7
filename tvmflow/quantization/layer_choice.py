"""Build the quantized network for one choice of integer layers."""

from __future__ import annotations

from tvmflow.ir.relax.emit import Arithmetic, Writer
from tvmflow.ir.relax.graph import Graph, read_graph
from tvmflow.ir.relax.layers import Network
from tvmflow.ir.relax.scales import Scale


class Quantized:
    """A network with one choice of integer layers, as a module and as the graph that the interpreter runs."""

    def __init__(
        self, network: Network, arithmetic: Arithmetic, scales: dict[str, Scale], kept: frozenset[str]
    ) -> None:
        self.network, self.arithmetic, self.scales, self.kept = network, arithmetic, scales, kept
        writer = Writer(network, arithmetic, scales, kept)
        self.module = writer.module()
        self.integers = dict(writer.integers)
        self.integer_layers = writer.integer_layers
        self.graph: Graph = read_graph(self.module)
