"""Convert recurrent layers of any framework to a dense layer over all time steps and one recurrent operator.

Frontends bring weights in our order of gates: i, f, g, o of an LSTM, z, r, n of a GRU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmflow.ir.relax.emit import constant
from tvmflow.ir.relax.recurrent import Activation, Array, Recurrence, recurrent
from tvmflow.ir.tvm_compat import Expr, shape_of, type_of

SIGMOID, TANH, RELU = Activation("sigmoid"), Activation("tanh"), Activation("relu")
ACTIVATIONS = {"lstm": (SIGMOID, TANH, TANH), "gru": (SIGMOID, TANH), "rnn": (TANH,)}  # every framework's defaults


@dataclass(frozen=True)
class Direction:
    """The weights of one direction of a layer, and its activations.

    given: (G, H, I), of the inputs; state: (G, H, H), of the hidden state; biases: (G, H) of each; peephole: (3, H).
    """

    given: Array
    state: Array
    given_bias: Array | None = None
    state_bias: Array | None = None
    peephole: Array | None = None
    activations: tuple[Activation, ...] = ()
    reverse: bool = False


@dataclass(frozen=True)
class Layer:
    """The attributes of a layer, as those of `Recurrence`; clip: 0 for none."""

    kind: str
    clip: float = 0.0
    reset_after: bool = False
    coupled: bool = False


@dataclass(frozen=True)
class States:
    """What a layer starts from, each None for zeros: (D, B, H); lengths: (B,), times of each sample, None for all."""

    hidden: Any = None
    cell: Any = None
    lengths: Any = None


def emit_layer(builder: Any, x: Expr, layer: Layer, directions: Sequence[Direction], states: States) -> tuple[Any, ...]:
    """Emit a layer on x (T, B, I) of any float type.

    Return its outputs (T, B, D * H), its last hidden states (D, B, H) and, for an LSTM, its last cells, in that type.
    """
    from tvm import relax

    dtype = str(type_of(x).dtype)
    if dtype != "float32":
        x = builder.emit(relax.op.astype(x, "float32"))
    if len({direction.activations for direction in directions}) > 1:
        runs = [_emit(builder, x, layer, [one], _part(builder, states, at)) for at, one in enumerate(directions)]
        joined = zip((2, 0, 0), zip(*runs, strict=True), strict=False)
        made = [builder.emit(relax.op.concat(list(parts), axis=axis)) for axis, parts in joined]
    else:
        made = _emit(builder, x, layer, directions, states)
    if dtype != "float32":
        made = [builder.emit(relax.op.astype(value, dtype)) for value in made]
    return tuple(made)


def _part(builder: Any, states: States, at: int) -> States:
    """Return the states of one direction."""
    from tvm import relax

    def cut(value: Any) -> Any:
        return None if value is None else builder.emit(relax.op.strided_slice(value, [0], [at], [at + 1]))

    return replace(states, hidden=cut(states.hidden), cell=cut(states.cell))


def _emit(builder: Any, x: Expr, layer: Layer, directions: Sequence[Direction], states: States) -> list[Any]:
    from tvm import relax

    first = directions[0]
    gates, hidden, features = first.given.shape
    times, samples, _ = shape_of(x)
    weight = np.concatenate([one.given.reshape(gates * hidden, features) for one in directions]).T
    bias = np.concatenate([_bias_of_gates(layer, one).reshape(-1) for one in directions])
    rows = builder.emit(relax.op.reshape(x, (times * samples, features)))
    rows = builder.emit(relax.op.matmul(rows, constant(weight, "float32")))
    if np.any(bias):
        rows = builder.emit(relax.op.add(rows, constant(bias, "float32")))
    operands = {
        "gates": builder.emit(relax.op.reshape(rows, (times, samples, len(bias)))),
        "weight": constant(np.stack([one.state for one in directions]), "float32"),
    }
    if _resets_bias(layer) and first.state_bias is not None:
        reset = [one.state_bias[2] for one in directions if one.state_bias is not None]
        operands["reset_bias"] = constant(np.stack(reset), "float32")
    if first.peephole is not None:
        peephole = [one.peephole for one in directions if one.peephole is not None]
        operands["peephole"] = constant(np.stack(peephole), "float32")
    for name, value in (("hidden", states.hidden), ("cell", states.cell)):
        if value is not None:
            is_float = str(type_of(value).dtype) == "float32"
            operands[name] = value if is_float else builder.emit(relax.op.astype(value, "float32"))
    if states.lengths is not None:
        operands["lengths"] = states.lengths
    recurrence = Recurrence(
        layer.kind,
        hidden,
        tuple(one.reverse for one in directions),
        first.activations or ACTIVATIONS[layer.kind],
        layer.clip,
        layer.reset_after,
        layer.coupled,
    )
    made = builder.emit(recurrent(recurrence, operands))
    return [builder.emit(relax.TupleGetItem(made, at)) for at in range(1 + recurrence.states)]


def _resets_bias(layer: Layer) -> bool:
    """Whether the bias of the candidate's product with the state is reset with it."""
    return layer.kind == "gru" and layer.reset_after


def _bias_of_gates(layer: Layer, direction: Direction) -> Array:
    """Return the biases that are added to the products of the inputs: all that nothing resets."""
    gates, hidden, _ = direction.given.shape
    bias = np.zeros((gates, hidden), np.float32)
    if direction.given_bias is not None:
        bias = bias + direction.given_bias
    if direction.state_bias is not None:
        added = direction.state_bias.copy()
        if _resets_bias(layer):
            added[2] = 0
        bias = bias + added
    return bias
