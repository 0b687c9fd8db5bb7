"""Convert TFLite's recurrent operators to Relax, with states as additional inputs and outputs.

An operator keeps its last states for the next run, as LiteRT does until its variables are reset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.recurrent import SIGMOID, TANH, Direction, Layer, States, emit_layer
from tvmflow.frontends.tensorflow.operation import Convert, Operation, transposed
from tvmflow.frontends.tensorflow.tflite_graph import Array
from tvmflow.ir.relax.recurrent import Activation

_LINEAR = Activation("affine", 1.0, 0.0)
_ACTIVATIONS = {0: _LINEAR, 1: Activation("relu"), 4: TANH}  # by the format's numbers
_EACH_STEP = frozenset({"LSTM", "RNN"})  # operators without an axis of times


@dataclass(frozen=True)
class _Places:
    """Where an LSTM has the inputs of one direction: four weights of inputs from `given`, four of the hidden state from
    `state`, three peepholes, four biases and the projection; then the states.
    """

    given: int
    hidden: int
    cell: int
    reverse: bool = False

    @property
    def state(self) -> int:
        return self.given + 4

    @property
    def peephole(self) -> int:
        return self.given + 8

    @property
    def bias(self) -> int:
        return self.given + 11

    @property
    def projection(self) -> int:
        return self.given + 15


def _weight(o: Operation, index: int) -> Array:
    quantization = o.tensor(index).quantization
    if quantization is not None and quantization.scale.size > 1:
        raise o.unsupported("whose weights have a scale per channel, of which LiteRT reads the first")
    return np.asarray(o.array(index), np.float32)


def _check(o: Operation) -> None:
    if o.tensor(0).is_quantized:
        raise o.unsupported("of integers")


def _activation(o: Operation) -> Activation:
    number = int(o.options.fusedActivationFunction)
    if number not in _ACTIVATIONS:
        raise o.unsupported(f"with the fused activation {number}")
    return _ACTIVATIONS[number]


def _lstm_direction(o: Operation, places: _Places, activation: Activation) -> Direction:
    """Return the weights of a direction. Without an input gate, i = 1 - f: that of the negated weights of f."""
    if o.has(places.projection) or o.has(places.projection + 1):
        raise o.unsupported("with a projection")
    has_gate = o.has(places.given)

    def gates(start: int) -> Array:
        others = [_weight(o, at) for at in range(start + 1, start + 4)]
        return np.stack([_weight(o, start) if has_gate else -others[0], *others])

    peephole = None
    if o.has(places.peephole + 1):
        forget, output = (_weight(o, places.peephole + at) for at in (1, 2))
        peephole = np.stack([_weight(o, places.peephole) if has_gate else -forget, forget, output])
    activations = (SIGMOID, activation, activation)
    weights = (gates(places.given), gates(places.state), gates(places.bias))
    return Direction(*weights, None, peephole, activations, places.reverse)


def _rnn_direction(o: Operation, first: int, activation: Activation, reverse: bool = False) -> Direction:
    given, state, bias = (_weight(o, first + at)[None] for at in range(3))
    return Direction(given, state, bias, None, None, (activation,), reverse)


def _run(o: Operation, layer: Layer, directions: list[Direction], hidden: list[int], cells: list[int]) -> Any:
    """Emit a layer; return its outputs, and for each direction its hidden state and its cell."""
    x = o.value(0)
    steps = o.node.name in _EACH_STEP
    swaps = not steps and not o.options.timeMajor
    if steps:
        x = o.emit(relax.op.expand_dims(x, 0))
    if swaps:
        x = transposed(o, x, [1, 0, 2])
    states = States(_stacked(o, hidden), _stacked(o, cells) if cells else None)
    made, *last = emit_layer(o.builder, x, layer, directions, states)
    if steps:
        made = o.emit(relax.op.squeeze(made, [0]))
    if swaps:
        made = transposed(o, made, [1, 0, 2])
    if len(directions) == 1:
        return (made, *(o.emit(relax.op.squeeze(value, [0])) for value in last))
    outputs = [made] if o.options.mergeOutputs else [o.emit(part) for part in _halves(o, made, 2)]
    by_state = [[o.emit(relax.op.squeeze(part, [0])) for part in _halves(o, value, 0)] for value in last]
    return (*outputs, *(value for pair in zip(*by_state, strict=True) for value in pair))


def _halves(o: Operation, value: Any, axis: int) -> list[Any]:
    made = o.emit(relax.op.split(value, 2, axis))
    return [o.emit(made[at]) for at in range(2)]


def _stacked(o: Operation, places: list[int]) -> Any:
    """Return states (B, H) as (D, B, H)."""
    return o.emit(relax.op.stack([o.value(at) for at in places], axis=0))


def _lstm(o: Operation, *directions: _Places) -> Any:
    _check(o)
    if len(o.node.inputs) < 18 or getattr(o.options, "kernelType", False):
        raise o.unsupported("of the basic kernel")
    if o.options.cellClip:
        raise o.unsupported("that clips its cells")
    layer_norms = range(20, 24) if len(directions) == 1 else range(39, 48)  # of two directions: auxiliary inputs
    if any(o.has(at) for at in layer_norms):
        raise o.unsupported("with layer norms" if len(directions) == 1 else "with an auxiliary input")
    if getattr(o.options, "diagonalRecurrentTensors", False):
        raise o.unsupported("with diagonal weights")
    activation = _activation(o)
    made = [_lstm_direction(o, places, activation) for places in directions]
    hidden, cells = [places.hidden for places in directions], [places.cell for places in directions]
    return _run(o, Layer("lstm"), made, hidden, cells)


def _one_lstm(o: Operation) -> Any:
    return _lstm(o, _Places(1, 18, 19))


def _two_lstms(o: Operation) -> Any:
    return _lstm(o, _Places(1, 35, 36), _Places(18, 37, 38, reverse=True))


def _one_rnn(o: Operation) -> Any:
    _check(o)
    return _run(o, Layer("rnn"), [_rnn_direction(o, 1, _activation(o))], [4], [])


def _two_rnns(o: Operation) -> Any:
    _check(o)
    if any(o.has(at) for at in range(9, 12)):
        raise o.unsupported("with an auxiliary input")
    activation = _activation(o)
    directions = [_rnn_direction(o, 1, activation), _rnn_direction(o, 5, activation, reverse=True)]
    return _run(o, Layer("rnn"), directions, [4, 8], [])


def _svdf(o: Operation) -> Any:
    """Filter the features of the last runs: the state (B, F * M) has M values of each of F features, oldest first."""
    _check(o)
    features, times = _weight(o, 1), _weight(o, 2)  # (F, I), (F, M)
    count, length = times.shape
    rank, samples = int(o.options.rank), o.shape(0)[0]
    newest = o.emit(relax.op.matmul(o.value(0), o.constant(np.ascontiguousarray(features.T))))
    state = o.emit(relax.op.reshape(o.value(4), (samples, count, length)))
    kept = o.emit(relax.op.strided_slice(state, [2], [1], [length]))
    state = o.emit(relax.op.concat([kept, relax.op.reshape(newest, (samples, count, 1))], axis=2))
    filtered = o.emit(relax.op.sum(relax.op.multiply(state, o.constant(times)), [2]))
    made = o.emit(relax.op.sum(relax.op.reshape(filtered, (samples, count // rank, rank)), [2]))
    if o.has(3):
        made = o.emit(relax.op.add(made, o.value(3)))
    return o.activated(made), relax.op.reshape(state, (samples, count * length))


RECURRENT: dict[str, Convert] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": _two_lstms,
    "BIDIRECTIONAL_SEQUENCE_RNN": _two_rnns,
    "LSTM": _one_lstm,
    "RNN": _one_rnn,
    "SVDF": _svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _one_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _one_rnn,
}
