"""Read a stateful .tflite file as one stateless graph: each state becomes an input and an output."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np

from tvmflow.frontends.source_model import State, TensorSpec
from tvmflow.frontends.tensorflow.custom_operators import replace_custom_operators
from tvmflow.frontends.tensorflow.tflite_files import read_tflite
from tvmflow.frontends.tensorflow.tflite_graph import Array, Subgraph, Tensor, inline_composites, read_subgraphs
from tvmflow.frontends.tensorflow.variables import Variable, make_variables_explicit

_UPDATED = {  # operators -> inputs that they change, of tensors that LiteRT keeps between runs
    "BIDIRECTIONAL_SEQUENCE_LSTM": (35, 36, 37, 38),
    "BIDIRECTIONAL_SEQUENCE_RNN": (4, 8),
    "LSTM": (18, 19),
    "RNN": (4,),
    "SVDF": (4,),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19),
    "UNIDIRECTIONAL_SEQUENCE_RNN": (4,),
}


@dataclass(frozen=True)
class TfliteFile:
    """content: the file that LiteRT reads, its custom operators and variables replaced; original: with its variables.

    graph: its states are the last inputs and the last outputs, in the order of `states`; the last `kept` of them are
    tensors that LiteRT itself keeps, and neither inputs nor outputs of the file.
    """

    content: bytes
    original: bytes
    graph: Subgraph
    states: tuple[Variable, ...]
    kept: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the input of each state."""
        return self.graph.inputs[len(self.graph.inputs) - len(self.states) :]

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Return the states as inputs of the model, in the types in which they are stored."""
        return tuple(
            TensorSpec(one.name, tensor.shape, tensor.dtype)
            for one, tensor in zip(self.states, self.tensors, strict=True)
        )

    @property
    def declared(self) -> tuple[State, ...]:
        """Return the states as the description of a model has them."""
        return tuple(State(one.name, f"{one.name}_next", _numbers(one.initial)) for one in self.states)

    def first_values(self) -> list[Array]:
        """Return the states that a stream begins with."""
        return [
            np.zeros(tensor.shape, tensor.dtype) if one.initial is None else one.initial
            for one, tensor in zip(self.states, self.tensors, strict=True)
        ]


def _numbers(initial: Array | None) -> tuple[float, ...]:
    if initial is None:
        return ()
    numbers = tuple(float(number) for number in initial.reshape(-1))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def read_file(path: Path) -> TfliteFile:
    """Return a checked file and its graph, without custom and composite operators that others replace."""
    original = replace_custom_operators(read_tflite(path))
    content, variables = make_variables_explicit(original)
    graph, kept = _expose_kept_tensors(inline_composites(read_subgraphs(content)))
    return TfliteFile(content, original, graph, _distinct((*variables, *kept), graph), len(kept))


def _expose_kept_tensors(graph: Subgraph) -> tuple[Subgraph, list[Variable]]:
    """Return the graph with the tensors that its operators keep between runs as inputs and outputs."""
    numbers = count(1 << 21)  # of the outputs, behind the tensors of composites
    given: dict[int, Tensor] = {}
    now: dict[int, Tensor] = {}
    operators = []
    for operator in graph.operators:
        places = [at for at in _UPDATED.get(operator.name, ()) if at < len(operator.inputs)]
        changed = [tensor for at in places if (tensor := operator.inputs[at]) is not None and tensor.is_variable]
        inputs = tuple(None if tensor is None else now.get(tensor.index, tensor) for tensor in operator.inputs)
        for tensor in changed:
            given.setdefault(tensor.index, tensor)
            now[tensor.index] = replace(tensor, index=next(numbers), is_variable=False)
        made = tuple(now[tensor.index] for tensor in changed)
        operators.append(replace(operator, inputs=inputs, outputs=(*operator.outputs, *made)))
    kept = [Variable(tensor.name, _reset_value(tensor)) for tensor in given.values()]
    outputs = (*graph.outputs, *(now[index] for index in given))
    return Subgraph((*graph.inputs, *given.values()), outputs, tuple(operators)), kept


def _reset_value(tensor: Tensor) -> Array | None:
    """Return what LiteRT resets a tensor to: real zeros."""
    zero = int(tensor.quantization.zero[0]) if tensor.quantization is not None and tensor.is_quantized else 0
    return np.full(tensor.shape, zero, tensor.dtype) if zero else None


def _distinct(states: tuple[Variable, ...], graph: Subgraph) -> tuple[Variable, ...]:
    """Return states whose names nothing else has."""
    others = graph.inputs[: len(graph.inputs) - len(states)]
    names = Counter([*(one.name for one in states), *(tensor.name for tensor in others)])
    return tuple(
        one if one.name and names[one.name] == 1 else replace(one, name=f"{one.name}_{at}")
        for at, one in enumerate(states)
    )
