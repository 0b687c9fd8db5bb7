"""Rewrite a network so that values exist in a second layout.

Operators that work in either layout are computed in the second one. The plain value is computed only where an operator
reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tvm import relax

from tvmflow.ir.relax.emit import build_main, constant, rebuild_call
from tvmflow.ir.relax.graph import Graph, Step


class LayoutRewriter(ABC):
    """Rewrite the steps of a graph in two layouts.

    plain: values in their original layout, by name; shapes: the original shapes of all values; kept: steps that are
    computed in the original layout in any case.
    """

    kept: frozenset[str] = frozenset()

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = relax.BlockBuilder()
        self.plain: dict[str, Any] = {}
        self.shapes = {name: kind.shape for name, kind in graph.kinds().items()}

    def rewrite(self) -> Any:
        """Return the rewritten IRModule."""
        return build_main(self.builder, self.graph, self._emit_body)

    def _emit_body(self, parameters: dict[str, Any]) -> list[Any]:
        self.plain |= parameters
        for step in self.graph.steps:
            if step.refs and step.name not in self.kept:
                self._rewrite_step(step)
            else:
                self._emit_plain(step)
        return [self._get_plain(name) for name in self.graph.outputs]

    def _emit_plain(self, step: Step) -> None:
        """Emit a step in the original layout."""
        value = constant(step.args[0], step.dtype) if step.op == "constant" else rebuild_call(step, self._get_plain)
        self.plain[step.name] = self.builder.emit(value, step.name)

    @abstractmethod
    def _rewrite_step(self, step: Step) -> None:
        """Emit a step in one of the layouts."""

    @abstractmethod
    def _get_plain(self, name: str) -> Any:
        """Return a value in the original layout, converted on first use."""
