"""Convert LSTM, GRU and RNN of PyTorch with any number of layers, which its decompositions would unroll over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from tvmflow.frontends.recurrent import ACTIVATIONS, RELU, Direction, Layer, States, emit_layer
from tvmflow.ir.relax.recurrent import Activation, Array
from tvmflow.support.errors import UnsupportedOperatorError

_ORDER = {"lstm": [0, 1, 2, 3], "gru": [1, 0, 2], "rnn": [0]}  # our gates among PyTorch's: i, f, g, o; r, z, n
# Operator -> kind of layer, activations.
_OPERATORS: dict[str, tuple[str, tuple[Activation, ...]]] = {
    "lstm.input": ("lstm", ACTIVATIONS["lstm"]),
    "gru.input": ("gru", ACTIVATIONS["gru"]),
    "rnn_tanh.input": ("rnn", ACTIVATIONS["rnn"]),
    "rnn_relu.input": ("rnn", (RELU,)),
}


def kept_operators(program: Any) -> list[Any]:
    """Return the recurrent operators of a torch.export program that are not decomposed: all but those with a
    projection of the state.
    """
    kept = {getattr(torch.ops.aten, name.partition(".")[0]).input for name in _OPERATORS}
    for node in program.graph_module.graph.nodes:
        if node.op == "call_function" and node.target in kept and _has_projection(node):
            kept.discard(node.target)
    return list(kept)


def recurrent_converters(program: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """Return the converters of a program's recurrent operators by name."""
    return {name: partial(_convert, program) for name in _OPERATORS}


def _convert(program: Any, node: Any, importer: Any) -> Any:
    from tvm import relax

    kind, activations = _OPERATORS[node.target.__name__]
    x, states, weights, _, layers, _, _, bidirectional, batch_first = node.args
    states, directions = list(states) if kind == "lstm" else [states], 2 if bidirectional else 1
    builder, value = importer.block_builder, importer.env[x]
    if batch_first:
        value = builder.emit(relax.op.permute_dims(value, [1, 0, 2]))
    given = [None if _is_zero(program, state) else importer.env[state] for state in states]
    arrays = [_parameter(program, weight) for weight in weights]
    each = len(arrays) // (layers * directions)
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(layers):
        first = layer * directions
        ways = [
            _direction(kind, activations, arrays[each * (first + at) : each * (first + at + 1)], at == 1)
            for at in range(directions)
        ]
        own = [_part(builder, state, first, first + directions) for state in given]
        value, *made = emit_layer(builder, value, Layer(kind, reset_after=kind == "gru"), ways, States(*own))
        for states_of_layers, state in zip(last, made, strict=True):
            states_of_layers.append(state)
    if batch_first:
        value = builder.emit(relax.op.permute_dims(value, [1, 0, 2]))
    joined = [of[0] if layers == 1 else builder.emit(relax.op.concat(of, axis=0)) for of in last]
    return relax.Tuple([value, *joined])


def _direction(kind: str, activations: tuple[Activation, ...], arrays: Sequence[Array], reverse: bool) -> Direction:
    """Return a direction from its arrays: (G * H, I), (G * H, H) and perhaps two biases."""
    order = _ORDER[kind]
    given, state, *biases = (array.reshape(len(order), -1, *array.shape[1:])[order] for array in arrays)
    of_inputs, of_states = biases or (None, None)
    return Direction(given, state, of_inputs, of_states, None, activations, reverse)


def _part(builder: Any, state: Any, begin: int, end: int) -> Any:
    from tvm import relax

    return None if state is None else builder.emit(relax.op.strided_slice(state, [0], [begin], [end]))


def _has_projection(node: Any) -> bool:
    """Whether an LSTM multiplies its hidden state by a matrix."""
    if node.target.__name__ != "lstm.input":
        return False
    weights, has_biases, layers, bidirectional = node.args[2], node.args[3], node.args[4], node.args[7]
    return bool(len(weights) != (4 if has_biases else 2) * layers * (2 if bidirectional else 1))


def _value_of(program: Any, node: Any) -> Any:
    """Return the tensor of a value that does not depend on inputs, as a transposed parameter; None for any other."""
    if node.op == "placeholder":
        for spec in program.graph_signature.input_specs:
            if getattr(spec.arg, "name", None) == node.name and spec.target is not None:
                return program.state_dict.get(spec.target, program.constants.get(spec.target))
        return None
    values = {part: _value_of(program, part) for part in node.all_input_nodes}
    if node.op != "call_function" or any(value is None for value in values.values()):
        return None
    arguments, options = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    with torch.no_grad():
        return node.target(*arguments, **options)


def _is_zero(program: Any, node: Any) -> bool:
    tensor = _value_of(program, node)
    return tensor is not None and not bool(tensor.any())


def _parameter(program: Any, node: Any) -> Array:
    tensor = _value_of(program, node)
    if tensor is None:
        raise UnsupportedOperatorError(
            f"a recurrent layer whose weight {node.name} is computed in the model",
            "constant weights",
            "remove its parametrization (torch.nn.utils.parametrize.remove_parametrizations) before the export",
        )
    return np.asarray(tensor.detach().float().numpy())
