"""FoldKnownSteps: what FoldConstants does not know and depends on constants only is computed by the definition, step by step.

Products of embeddings of positions with weights, for example: the passes behind this one may rely on it that each step reads a value of the network.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmflow.errors import TvmflowError
from tvmflow.ir.definition import run_step, value_of
from tvmflow.ir.emit import call_again, constant, straight_line
from tvmflow.ir.graph import Graph, Step, read_graph


@tvm.transform.module_pass(opt_level=0, name="FoldKnownSteps")
class FoldKnownSteps:
    """IRModule -> IRModule; unchanged where every step reads an input or what is computed of one."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        graph = read_graph(mod)
        if all(step.refs or step.op == "constant" for step in graph.steps):
            return mod
        known: dict[str, Any] = {}
        rest = [step for step in graph.steps if not _compute(step, known)]
        return _Emitter(graph, known, rest).module()


def _compute(step: Step, known: dict[str, Any]) -> bool:
    """Add the value of a step to those that are known; return whether it is."""
    if not all(name in known for name in step.refs):
        return False
    try:
        known[step.name] = run_step(step, [value_of(argument, known) for argument in step.args])
    except (TvmflowError, RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # the definition does not know it either: TVM compiles it
    return True


class _Emitter:
    def __init__(self, graph: Graph, known: dict[str, Any], rest: list[Step]) -> None:
        self.graph, self.known, self.rest = graph, known, rest
        self.builder = relax.BlockBuilder()
        self.kinds = graph.kinds()
        self.values: dict[str, Any] = {}

    def module(self) -> Any:
        return straight_line(self.builder, self.graph, self._body)

    def _body(self, parameters: dict[str, Any]) -> list[Any]:
        self.values |= parameters
        for step in self.rest:
            self.values[step.name] = self.builder.emit(call_again(step, self._value), step.name)
        return [self._value(name) for name in self.graph.outputs]

    def _value(self, name: str) -> Any:
        if name not in self.values:
            self.values[name] = constant(self.known[name], self.kinds[name].dtype)
        return self.values[name]
