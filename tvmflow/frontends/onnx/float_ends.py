"""Give ONNX models of other floats inputs and outputs of float32, by casts in the graph.

Files of float16, bfloat16 and float64 often have their inputs and outputs in the same type. Data, libraries and apps
hold float32: the casts belong to the model, for its own framework as for the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, helper

from tvmflow.frontends.onnx.files import subgraphs_of

_OTHER_FLOATS = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


def with_float_ends(model: ModelProto, inputs: Iterable[str]) -> ModelProto | None:
    """Return a model whose named inputs and all outputs are float32 where they were other floats; None if none were."""
    changed = ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    wanted, taken = set(inputs), _names(graph)
    before, after, converted = [], [], set()
    for value in graph.input:
        if value.name in wanted and _is_other_float(value):
            stored = _free_name(value.name, taken)
            _rename(graph, {value.name: stored})
            before.append(helper.make_node("Cast", [value.name], [stored], to=value.type.tensor_type.elem_type))
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            converted.add(value.name)
    for value in graph.output:
        if _is_other_float(value):
            if value.name not in converted:  # an output that is an input
                stored = _free_name(value.name, taken)
                _rename(graph, {value.name: stored}, made=True)
                after.append(helper.make_node("Cast", [stored], [value.name], to=TensorProto.FLOAT))
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    if not before and not after:
        return None
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return changed


def _is_other_float(value: Any) -> bool:
    return value.type.tensor_type.elem_type in _OTHER_FLOATS


def _names(graph: GraphProto) -> set[str]:
    """Return the names of all values of a graph and of its subgraphs."""
    found = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update(node.input, node.output)
        for part in _subgraphs(node):
            found |= _names(part)
    return found


def _free_name(name: str, taken: set[str]) -> str:
    stored = f"{name}_as_stored"
    while stored in taken:
        stored += "_"
    taken.add(stored)
    return stored


def _rename(graph: GraphProto, names: Mapping[str, str], *, made: bool = False) -> None:
    """Rename values where nodes read them, in subgraphs too; made: also where they are made."""
    for node in graph.node:
        _replace(node.input, names)
        if made:
            _replace(node.output, names)
        for part in _subgraphs(node):
            own = {value.name for value in (*part.input, *part.initializer)}
            own |= {name for inner in part.node for name in inner.output}
            outer = {name: new for name, new in names.items() if name not in own}
            _rename(part, outer)
            for value in part.output:
                value.name = outer.get(value.name, value.name)
    if made:
        for tensor in graph.initializer:
            tensor.name = names.get(tensor.name, tensor.name)


def _replace(values: Any, names: Mapping[str, str]) -> None:
    for at, name in enumerate(values):
        values[at] = names.get(name, name)


def _subgraphs(node: Any) -> list[Any]:
    return [part for attribute in node.attribute for part in subgraphs_of(attribute)]
