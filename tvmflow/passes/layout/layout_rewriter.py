"""Rewriting a network in which values have a twin in another layout: operators that do not care are computed on it, the
plain value is made only where it is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tvm import relax

from tvmflow.ir.relax.emit import call_again, constant, straight_line
from tvmflow.ir.relax.graph import Graph, Step


class TwoLayouts(ABC):
    """plain: values that exist as they were, by name; shapes: of all of them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = relax.BlockBuilder()
        self.plain: dict[str, Any] = {}
        self.shapes = {name: kind.shape for name, kind in graph.kinds().items()}

    def module(self) -> Any:
        return straight_line(self.builder, self.graph, self._body)

    def _body(self, parameters: dict[str, Any]) -> list[Any]:
        self.plain |= parameters
        for step in self.graph.steps:
            if step.refs:
                self._step(step)
            else:
                self._emit_plain(step)
        return [self._as_plain(name) for name in self.graph.outputs]

    def _emit_plain(self, step: Step) -> None:
        """Compute a step as it was."""
        value = constant(step.args[0], step.dtype) if step.op == "constant" else call_again(step, self._as_plain)
        self.plain[step.name] = self.builder.emit(value, step.name)

    @abstractmethod
    def _step(self, step: Step) -> None:
        """Compute a step in one of the layouts."""

    @abstractmethod
    def _as_plain(self, name: str) -> Any:
        """Return a value in the plain layout."""
