"""Import the graph of a .tflite file to Relax, operator by operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.tensorflow.operation import Operation, quantized
from tvmflow.frontends.tensorflow.operator_table import CONVERTERS
from tvmflow.frontends.tensorflow.tflite_graph import Operator, Subgraph, Tensor
from tvmflow.ir.relax.emit import build_main, constant
from tvmflow.ir.relax.graph import Graph, TensorKind, read_graph
from tvmflow.ir.relax.numpy_interpreter import run_all
from tvmflow.ir.tvm_compat import type_of
from tvmflow.support.errors import TvmflowError, UnsupportedOperatorError, last_line


def import_tflite(model: Subgraph, fixed: Mapping[int, Any] | None = None) -> Any:
    """Return an IRModule whose `main` takes and returns the tensors of a graph of known operators, quantized ones as
    integers. Raises UnsupportedOperatorError for a use of an operator that is not imported.

    fixed: the inputs that are constants, by the numbers of their tensors.
    """
    constants = dict(fixed or {})
    inputs = tuple(tensor for tensor in model.inputs if tensor.index not in constants)
    names = _unique_names(inputs)
    graph = Graph({name: TensorKind(t.shape, t.dtype) for name, t in zip(names, inputs, strict=True)})
    builder = relax.BlockBuilder()

    def body(parameters: dict[str, Any]) -> list[Any]:
        stored: dict[int, Any] = constants | {
            tensor.index: parameters[name] for name, tensor in zip(names, inputs, strict=True)
        }
        for operator in model.operators:
            _convert(builder, operator, stored)
        return [_expression(stored, tensor) for tensor in model.outputs]

    return build_main(builder, graph, body)


def _unique_names(inputs: tuple[Tensor, ...]) -> list[str]:
    names = [re.sub(r"\W", "_", tensor.name) or "input" for tensor in inputs]
    return [name if names.count(name) == 1 else f"{name}_{at}" for at, name in enumerate(names)]


def _expression(stored: dict[int, Any], tensor: Tensor) -> Any:
    value = stored.get(tensor.index, tensor.data)
    if value is None:
        raise UnsupportedOperatorError(f"no operator computes the output {tensor.name!r}", "a whole .tflite file")
    return constant(value, tensor.dtype) if isinstance(value, np.ndarray) else value


def _convert(builder: Any, operator: Operator, stored: dict[int, Any]) -> None:
    """Emit an operator and add its outputs to `stored`."""
    for tensor in operator.inputs:
        if tensor is not None and tensor.data is not None:
            stored.setdefault(tensor.index, tensor.data)
    if _is_known(operator, stored) and operator.name not in ("DEQUANTIZE", "DENSIFY"):
        values = _evaluate(operator, stored)
    else:
        values = _results(builder, operator, stored)
    for tensor, value in zip(operator.outputs, values, strict=False):
        stored[tensor.index] = value


def _evaluate(operator: Operator, stored: dict[int, Any]) -> list[Any]:
    """Return the outputs of an operator whose inputs are known."""
    builder = relax.BlockBuilder()

    def body(_: dict[str, Any]) -> list[Any]:
        values = _results(builder, operator, stored)
        return [constant(value, str(value.dtype)) if isinstance(value, np.ndarray) else value for value in values]

    return list(run_all(read_graph(build_main(builder, Graph({}), body)), ()))


def _is_known(operator: Operator, stored: dict[int, Any]) -> bool:
    """Whether all inputs are known, so that the outputs are, too."""
    return all(tensor is None or isinstance(stored.get(tensor.index), np.ndarray) for tensor in operator.inputs)


def _results(builder: Any, operator: Operator, stored: dict[int, Any]) -> list[Any]:
    operation = Operation(builder, operator, stored)
    try:
        made = CONVERTERS[operator.name](operation)
        made = made if isinstance(made, tuple) else (made,)
        return [_stored(builder, value, tensor) for value, tensor in zip(made, operator.outputs, strict=False)]
    except TvmflowError:
        raise
    except Exception as error:  # TVM raises RuntimeError, TypeError, ValueError and tvm.error.*
        raise operation.unsupported(f"cannot be converted: {last_line(error)}") from error


def _stored(builder: Any, value: Any, tensor: Tensor) -> Any:
    """Return a result in the type of its tensor; arrays are in it already."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    value = builder.emit(value)
    if tensor.is_quantized and str(type_of(value).dtype) == "float32":
        value = builder.emit(quantized(value, tensor))
    return value
