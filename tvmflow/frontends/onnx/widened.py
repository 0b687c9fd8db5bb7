"""Write ONNX models of bfloat16 in float32.

ONNX Runtime has no kernels of bfloat16 on CPUs, and the importer computes in float32 as well. No value is lost, and a
cast to bfloat16 inside a network is no rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

from tvmflow.frontends.onnx.files import subgraphs_of

_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"})


def without_bfloat16(model: ModelProto) -> ModelProto | None:
    """Return a model with float32 in the place of bfloat16; None if it has none, or if it is the type of an input."""
    kinds = [value.type.tensor_type.elem_type for value in model.graph.input]
    if TensorProto.BFLOAT16 in kinds or not any(_has_bfloat16(graph) for graph in _graphs(model)):
        return None
    changed = ModelProto()
    changed.CopyFrom(model)
    for graph in _graphs(changed):
        for tensor in graph.initializer:
            _widen(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
        for attribute in _attributes(graph):
            if attribute.type == AttributeProto.TENSOR:
                _widen(attribute.t)
            elif _names_bfloat16(attribute):
                attribute.i = TensorProto.FLOAT
    return changed


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    found = [model.graph]
    while found:
        graph = found.pop()
        yield graph
        found += [inner for attribute in _attributes(graph) for inner in subgraphs_of(attribute)]


def _attributes(graph: GraphProto) -> Iterator[Any]:
    return (attribute for node in graph.node for attribute in node.attribute)


def _has_bfloat16(graph: GraphProto) -> bool:
    tensors = [*graph.initializer, *(one.t for one in _attributes(graph) if one.type == AttributeProto.TENSOR)]
    return any(tensor.data_type == TensorProto.BFLOAT16 for tensor in tensors) or any(
        _names_bfloat16(attribute) for attribute in _attributes(graph)
    )


def _names_bfloat16(attribute: Any) -> bool:
    return (
        attribute.name in _TYPE_ATTRIBUTES
        and attribute.type == AttributeProto.INT
        and attribute.i == TensorProto.BFLOAT16
    )


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.BFLOAT16:
        values = np.asarray(numpy_helper.to_array(tensor)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
