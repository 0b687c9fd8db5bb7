"""Evaluate nodes on constants by ONNX's reference, and infer types by ONNX's own inference."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tvmflow.frontends.onnx.nodes import Value, dims, dtype_of
from tvmflow.support.dtypes import numpy_dtype

_MAX_INFERRED = 4096  # elements of a constant that can determine a shape


def element_type(dtype: str) -> int:
    """Return ONNX's number of a TVM dtype."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))


def type_proto(value: Value) -> Any:
    """Return the TypeProto of a value."""
    if isinstance(value, list):
        element = type_proto(value[0]) if value else onnx.helper.make_tensor_type_proto(1, None)
        return onnx.helper.make_sequence_type_proto(element)
    dtype = value.dtype if isinstance(value, np.ndarray) else None
    number = onnx.helper.np_dtype_to_tensor_dtype(dtype) if dtype is not None else element_type(dtype_of(value))
    return onnx.helper.make_tensor_type_proto(number, list(dims(value)))


def type_of_value(kind: Any) -> tuple[str | None, tuple[int | None, ...] | None]:
    """Return dtype and shape of a TypeProto, as far as known."""
    if not kind.HasField("tensor_type"):
        return None, None
    tensor = kind.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, tuple(size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim)  # type: ignore[return-value]


def infer_types(schema: Any, node: Any, inputs: Sequence[Value], versions: Mapping[str, int]) -> dict[str, Any]:
    """Return the TypeProto of each output that ONNX can infer; nothing where its inference fails."""
    kinds, data = {}, {}
    for name, value in zip(node.input, inputs, strict=True):
        if not name or value is None:
            continue
        kinds[name] = type_proto(value)
        if isinstance(value, np.ndarray) and value.size <= _MAX_INFERRED:
            data[name] = onnx.numpy_helper.from_array(value, name)
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    try:
        return dict(onnx.shape_inference.infer_node_outputs(schema, node, kinds, data, opset_imports=opsets))
    except Exception:  # its errors share no base; the check after conversion is then left out
        return {}


def evaluate(node: Any, inputs: Sequence[Value], versions: Mapping[str, int]) -> tuple[Value, ...] | None:
    """Return the outputs of a node on constants; None if ONNX's reference cannot compute it."""
    given = {name: value for name, value in zip(node.input, inputs, strict=True) if name}
    empty = [onnx.ValueInfoProto(name=name) for name in given]
    outputs = [name for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", empty, [onnx.ValueInfoProto(name=name) for name in outputs])
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            found = ReferenceEvaluator(model).run(None, given)
    except Exception:  # it raises anything: the converter tries next
        return None
    if not all(isinstance(value, (np.ndarray, np.generic)) for value in found):
        return None
    values = iter(np.asarray(value) for value in found)
    return tuple(next(values) if name else None for name in node.output)


def count(shape: Sequence[int]) -> int:
    return math.prod(shape)
