"""FoldKnownSteps: what FoldConstants does not know and depends on constants only is computed by the definition, step by step.

Products of embeddings of positions with weights, for example: the passes behind this one may rely on it that each step reads a value of the network.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmflow.ir.relax.emit import call_again, constant, straight_line
from tvmflow.ir.relax.graph import Graph, Step, read_graph
from tvmflow.ir.relax.numpy_interpreter import run_step, value_of
from tvmflow.support.errors import TvmflowError


@tvm.transform.module_pass(opt_level=0, name="FoldKnownSteps")
class FoldKnownSteps:
    """IRModule -> IRModule; unchanged where every step reads an input or what is computed of one."""

    def transform_module(self, mod: Any, _context: Any) -> Any:
        graph = read_graph(mod)
        if all(step.refs or step.op == "constant" for step in graph.steps):
            return mod
        known: dict[str, Any] = {}
        rest = [step for step in graph.steps if not _compute(step, known)]
        return _without(graph, known, rest)


def _compute(step: Step, known: dict[str, Any]) -> bool:
    """Add the value of a step to those that are known; return whether it is."""
    if not all(name in known for name in step.refs):
        return False
    try:
        known[step.name] = run_step(step, [value_of(argument, known) for argument in step.args])
    except (TvmflowError, RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # the definition does not know it either: TVM compiles it
    return True


def _without(graph: Graph, known: dict[str, Any], rest: list[Step]) -> Any:
    """Return the module of the other steps, to which the known values are constants."""
    builder, kinds = relax.BlockBuilder(), graph.kinds()
    values: dict[str, Any] = {}

    def value_at(name: str) -> Any:
        if name not in values:
            values[name] = constant(known[name], kinds[name].dtype)
        return values[name]

    def body(parameters: dict[str, Any]) -> list[Any]:
        values.update(parameters)
        for step in rest:
            values[step.name] = builder.emit(call_again(step, value_at), step.name)
        return [value_at(name) for name in graph.outputs]

    return straight_line(builder, graph, body)
