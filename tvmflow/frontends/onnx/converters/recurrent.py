"""Convert LSTM, GRU and RNN of ONNX, and DynamicQuantizeLSTM of com.microsoft, which computes in float32 here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvmflow.frontends.onnx.nodes import Node, RefusedNodeError, Value, expression
from tvmflow.frontends.recurrent import ACTIVATIONS, Direction, Layer, States, emit_layer
from tvmflow.ir.relax.recurrent import Activation, Array
from tvmflow.ir.tvm_compat import shape_of

_ORDER = {"LSTM": [0, 2, 3, 1], "GRU": [0, 1, 2], "RNN": [0]}  # our gates among ONNX's: i, o, f, c; z, r, h
_PEEPHOLES = [0, 2, 1]  # i, f, o among i, o, f
# Activation -> default alpha and beta of those that have them, as ONNX Runtime takes them.
_PARAMETERS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01,),
    "thresholdedrelu": (0.0,),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0,),
}
_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_SCALES = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")


def _convert(node: Node) -> tuple[Value, ...]:
    """Return the outputs of a node: Y, Y_h and, for an LSTM, Y_c."""
    operator, builder, attrs = node.op, node.emitter.builder, node.attributes
    names = (*_NAMES, *_SCALES)
    of = {name: value for name, value in zip(names, node.inputs, strict=False) if value is not None}
    arrays = {name: _array(name, of[name]) for name in ("W", "R", "B", "P", *_SCALES) if name in of}
    if operator == "DynamicQuantizeLSTM":
        operator, arrays = "LSTM", _dequantize(arrays)
    x, by_samples = expression(of["X"]), bool(attrs.get("layout", 0))
    states = [expression(of.get(name)) for name in ("initial_h", "initial_c")]
    if by_samples:
        x, *states = [_swap(builder, value) for value in (x, *states)]
    times, samples, _ = shape_of(x)
    directions = _directions(operator, arrays, attrs)
    outputs, *last = emit_layer(
        builder,
        x,
        Layer(
            operator.lower(),
            float(attrs.get("clip", 0.0)),
            bool(attrs.get("linear_before_reset", 0)),
            bool(attrs.get("input_forget", 0)),
        ),
        directions,
        States(states[0], states[1], _lengths(of.get("sequence_lens"), times)),
    )
    hidden = shape_of(last[0])[2]
    outputs = builder.emit(relax.op.reshape(outputs, (times, samples, len(directions), hidden)))
    order = [1, 0, 2, 3] if by_samples else [0, 2, 1, 3]
    if by_samples or (len(directions) > 1 and samples > 1):
        outputs = builder.emit(relax.op.permute_dims(outputs, order))
    else:
        outputs = builder.emit(relax.op.reshape(outputs, (times, len(directions), samples, hidden)))
    return (outputs, *((_swap(builder, value) for value in last) if by_samples else last))


def _array(name: str, value: Value) -> Array:
    """Return a constant input. Raises RefusedNodeError if it is computed."""
    if not isinstance(value, np.ndarray):
        raise RefusedNodeError(f"its input {name} is computed in the model; export it with its weights")
    return value


def _dequantize(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the weights of a DynamicQuantizeLSTM, (D, I, 4H) with scales (D,) or (D, 4H), as those of an LSTM."""
    made = dict(arrays)
    for name in ("W", "R"):
        scale, zero = (np.atleast_1d(arrays[f"{name}_{part}"]) for part in ("scale", "zero_point"))
        scale, zero = (one.reshape(one.shape[0], 1, -1) for one in (scale, zero))
        values = (arrays[name].astype(np.int32) - zero.astype(np.int32)) * scale
        made[name] = values.transpose(0, 2, 1).astype(np.float32)
    return made


def _swap(builder: Any, value: Any) -> Any:
    """Exchange the axes of samples and times, or of samples and directions."""
    return None if value is None else builder.emit(relax.op.permute_dims(value, [1, 0, 2]))


def _lengths(value: Value, times: int) -> Any:
    """Return the times of each sample, None if all are of full length."""
    if not isinstance(value, np.ndarray):
        return value
    return None if np.all(value == times) else expression(value.astype(np.int32))


def _directions(operator: str, arrays: Mapping[str, Array], attrs: Mapping[str, Any]) -> list[Direction]:
    order, gates = _ORDER[operator], len(_ORDER[operator])
    directions, _, hidden = arrays["R"].shape
    name = attrs.get("direction", b"forward").decode()
    activations = _activations(operator, directions, attrs)
    given, state = (arrays[key].reshape(directions, gates, hidden, -1)[:, order] for key in ("W", "R"))
    biases: list[Array | None] = [None, None]
    if "B" in arrays:
        both = arrays["B"].reshape(directions, 2, gates, hidden)[:, :, order]
        biases = [both[:, 0], both[:, 1]]
    peephole = arrays["P"].reshape(directions, 3, hidden)[:, _PEEPHOLES] if "P" in arrays else None

    def part(array: Array | None, at: int) -> Array | None:
        return None if array is None else array[at].astype(np.float32)

    return [
        Direction(
            given[at].astype(np.float32),
            state[at].astype(np.float32),
            part(biases[0], at),
            part(biases[1], at),
            part(peephole, at),
            activations[at],
            reverse,
        )
        for at, reverse in enumerate(_REVERSE[name])
    ]


def _activations(operator: str, directions: int, attrs: Mapping[str, Any]) -> list[tuple[Activation, ...]]:
    """Return the activations of each direction; alphas and betas belong to those that have them, in order."""
    default = ACTIVATIONS[operator.lower()]
    names = [name.decode().lower() for name in attrs.get("activations", ())]
    if not names:
        return [default] * directions
    alphas, betas = (list(attrs.get(f"activation_{name}", ())) for name in ("alpha", "beta"))
    found = []
    for name in names:
        parameters = _PARAMETERS.get(name, ())
        values = [
            float(given.pop(0)) if given else parameter
            for parameter, given in zip(parameters, (alphas, betas), strict=False)
        ]
        found.append(Activation(name, *values))
    return [tuple(found[at * len(default) : (at + 1) * len(default)]) for at in range(directions)]


RECURRENT = dict.fromkeys(_ORDER, _convert)
RECURRENT_CONTRIB = {"DynamicQuantizeLSTM": _convert}
