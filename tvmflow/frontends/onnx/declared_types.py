"""Declare the types of an ONNX graph's outputs that a file leaves out: they follow from its inputs."""

from __future__ import annotations

from typing import Any

from onnx import ValueInfoProto, shape_inference

from tvmflow.support.errors import ModelFileError


def declare_types(model: Any, what: str) -> bool:
    """Declare the type of each output without one, and return whether there was any. Raises ModelFileError for an input
    without a type, and for an output whose type does not follow.
    """
    for value in model.graph.input:
        if not _has_type(value):
            raise ModelFileError(
                f"input {value.name} of {what} has no type", "a type for each input", "export the model again"
            )
    untyped = {value.name for value in model.graph.output if not _has_type(value)}
    if not untyped:
        return False
    inferred = shape_inference.infer_shapes(model).graph
    known = {value.name: value for value in (*inferred.input, *inferred.value_info, *inferred.output)}
    known |= {
        tensor.name: ValueInfoProto(name=tensor.name, type=_type_of(tensor)) for tensor in model.graph.initializer
    }
    missing = sorted(name for name in untyped if name not in known or not _has_type(known[name]))
    if missing:
        raise ModelFileError(
            f"output {', '.join(missing)[:200]} of {what} has no type, and it does not follow from the inputs",
            "a type for each output",
            "export the model again",
        )
    for value in model.graph.output:
        if value.name in untyped:
            value.type.CopyFrom(known[value.name].type)
    return True


def _has_type(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.elem_type != 0)


def _type_of(tensor: Any) -> Any:
    from onnx import helper

    return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
