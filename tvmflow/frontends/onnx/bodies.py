"""Find the function body that ONNX defines for a composite operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from tvmflow.frontends.onnx.nodes import RefusedNodeError, Value
from tvmflow.frontends.onnx.reference import type_proto


def body_of(node: Any, inputs: Sequence[Value], schema: Any, versions: Mapping[str, int]) -> Any:
    """Return the FunctionProto of a node, its attributes bound. Raises RefusedNodeError."""
    version = versions.get(schema.domain, 1)
    function = onnx.FunctionProto()
    if schema.has_function:
        choices = [number for number in schema.function_opset_versions if number <= version]
        function.ParseFromString(
            schema.get_function_with_opset_version(choices[-1])
            if choices
            else schema.get_function_with_opset_version(schema.function_opset_versions[0])
        )
    elif schema.has_context_dependent_function:
        choices = [number for number in schema.context_dependent_function_opset_versions if number <= version]
        number = choices[-1] if choices else schema.context_dependent_function_opset_versions[0]
        kinds = [(type_proto(value) if value is not None else onnx.TypeProto()).SerializeToString() for value in inputs]
        function.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(number, node.SerializeToString(), kinds)
        )
    else:
        raise RefusedNodeError("")
    _bind_attributes(function, node, schema)
    return function


def _bind_attributes(function: Any, node: Any, schema: Any) -> None:
    """Replace references to attributes of the function by the node's values or the schema's defaults."""
    given = {one.name: one for one in node.attribute}
    for name, one in schema.attributes.items():
        if name not in given and one.default_value.type != onnx.AttributeProto.UNDEFINED:
            given[name] = one.default_value
    _bind_nodes(function.node, given)


def _bind_nodes(nodes: Any, given: Mapping[str, Any]) -> None:
    for node in nodes:
        for place in reversed(range(len(node.attribute))):
            one = node.attribute[place]
            if one.ref_attr_name:
                name = one.name
                if one.ref_attr_name in given:
                    one.CopyFrom(given[one.ref_attr_name])
                    one.name = name
                else:
                    del node.attribute[place]
            elif one.HasField("g"):
                _bind_nodes(one.g.node, given)
