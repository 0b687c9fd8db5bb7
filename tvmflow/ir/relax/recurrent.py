"""Define the operator of our own that runs a recurrent layer over time: LSTM, GRU or a plain RNN.

A frontend emits the products with the inputs of all times as one dense layer; this operator does the rest, one time
after the other. Its sizes: T times, B samples, D directions, H hidden units, G gates. Gates are in the order of
`GATES`. Its operands by name:

gates: (T, B, D * G * H), products of the inputs with all biases; weight: (D, G, H, H), constant, rows of outputs.
reset_bias: (D, H), added to the product of a GRU before it is reset. peephole: (D, 3, H), for i, f and o of an LSTM.
hidden and cell: (D, B, H), states at the start, zeros by default. lengths: (B,), times of each sample: outputs behind
are zeros, and a reverse direction starts at a sample's last time.

Where channels are packed, gates are (1, D * G * H / block, 1, T * B, block), as the dense layer leaves them.

It returns the outputs (T, B, D * H), the last hidden states (D, B, H) and, for an LSTM, the last cells.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmflow.ir.tvm_compat import shape_of, tuple_type, type_of
from tvmflow.support.json_values import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tvmflow.ir.tvm_compat import Call, Expr

Array = np.ndarray[Any, Any]
RECURRENT = "tvmflow.recurrent"
GATES = {"lstm": "ifgo", "gru": "zrn", "rnn": "n"}
_ACTIVATIONS = {"lstm": 3, "gru": 2, "rnn": 1}
_STATES = ("hidden", "lengths")
_OPTIONAL = {"lstm": (*_STATES, "cell", "peephole"), "gru": (*_STATES, "reset_bias"), "rnn": _STATES}


@dataclass(frozen=True)
class Activation:
    """An activation of ONNX's recurrent operators; alpha and beta mean what they mean there."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Recurrence:
    """The attributes of a recurrent layer.

    reverse: whether each direction runs from the last time to the first. activations: of the gates (i, f, o; z, r),
    then of the candidate, then of an LSTM's output; one for an RNN. clip: limit of what activations take, 0 for none.
    reset_after: a GRU resets the product of its state, not the state. coupled: f = 1 - i. operands: names of the
    arguments. packed_times: T, if the gates are packed.
    """

    kind: str
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[Activation, ...]
    clip: float = 0.0
    reset_after: bool = False
    coupled: bool = False
    operands: tuple[str, ...] = ("gates", "weight")
    packed_times: int = 0

    @property
    def gates(self) -> int:
        return len(GATES[self.kind])

    def sizes(self, gates: tuple[int, ...]) -> tuple[int, int]:
        """Return times and samples of gates of a shape. Raises ValueError for another rank."""
        if len(gates) != (5 if self.packed_times else 3):
            raise ValueError(f"a recurrent layer whose gates are of shape {list(gates)}")
        if self.packed_times:
            return self.packed_times, gates[3] // self.packed_times
        return gates[0], gates[1]

    @property
    def states(self) -> int:
        """Return how many states there are: hidden, and an LSTM's cell."""
        return 2 if self.kind == "lstm" else 1


def recurrent(recurrence: Recurrence, operands: Mapping[str, Expr]) -> Any:
    """Return the Relax call of a recurrent layer; its operands in any order."""
    import tvm
    from tvm import relax

    register_recurrent()
    kept = dataclasses.replace(recurrence, operands=tuple(operands))
    attrs = tvm.ir.make_node("ir.DictAttrs", recurrence=json.dumps(dataclasses.asdict(kept)))
    return relax.Call(tvm.ir.Op.get(RECURRENT), list(operands.values()), attrs)


def recurrence_of(call: Call) -> Recurrence:
    """Return the attributes of a recurrent call. Raises ValueError for others than `recurrent` writes."""
    found = from_json(Recurrence, json.loads(str(call.attrs["recurrence"])))
    names, numbers = set(found.operands), [found.clip, *(x for a in found.activations for x in (a.alpha, a.beta))]
    if (
        found.kind not in GATES
        or not (found.reverse and found.hidden > 0 <= found.packed_times)
        or len(found.activations) != _ACTIVATIONS[found.kind]
        or not {a.name for a in found.activations} <= ACTIVATIONS.keys()
        or not all(math.isfinite(number) for number in numbers)
        or len(names) < len(found.operands)
        or len(found.operands) != len(call.args)
        or not {"gates", "weight"} <= names <= {"gates", "weight", *_OPTIONAL[found.kind]}
    ):
        raise ValueError(f"a recurrent layer with {found}")
    return found


@cache
def register_recurrent() -> None:
    """Register the operator with TVM in this process: for emitting calls of it, and before reading them."""
    import tvm
    from tvm.ir import _ffi_api

    if RECURRENT in _ffi_api.ListOpNames():
        return
    _ffi_api.RegisterOp(RECURRENT, "a recurrent layer over time")
    for name in ("FInferType", "FInferStructInfo"):  # of TVM 0.27 and 0.26
        tvm.ir.register_op_attr(RECURRENT, name, _infer_type)
    tvm.ir.register_op_attr(RECURRENT, "FPurity", True)


def _infer_type(call: Call, _builder: Any) -> Any:
    from tvm import relax

    recurrence = recurrence_of(call)
    of = dict(zip(recurrence.operands, call.args, strict=True))
    times, samples = recurrence.sizes(shape_of(of["gates"]))
    directions, kind = len(recurrence.reverse), getattr(relax, "TensorType", None) or relax.TensorStructInfo
    state = (directions, samples, recurrence.hidden)
    units, given = directions * recurrence.gates * recurrence.hidden, shape_of(of["gates"])
    expected = {
        "gates": (1, units // max(given[-1], 1), 1, times * samples, given[-1])
        if recurrence.packed_times
        else (times, samples, units),
        "weight": (directions, recurrence.gates, recurrence.hidden, recurrence.hidden),
        "reset_bias": (directions, recurrence.hidden),
        "peephole": (directions, 3, recurrence.hidden),
        "hidden": state,
        "cell": state,
        "lengths": (samples,),
    }
    for name, value in of.items():
        dtypes = ("int32", "int64") if name == "lengths" else ("float32",)
        if shape_of(value) != expected[name] or str(type_of(value).dtype) not in dtypes:
            raise ValueError(f"a recurrent layer whose {name} is {type_of(value)}, not {list(expected[name])}")
    shapes = [(times, samples, directions * recurrence.hidden), *[state] * recurrence.states]
    return tuple_type([kind(shape, "float32") for shape in shapes])


# -- the definition in numpy ------------------------------------------------------------------------------------------


def run_recurrent(recurrence: Recurrence, arguments: list[Array]) -> tuple[Array, ...]:
    """Compute a recurrent layer in numpy."""
    of = dict(zip(recurrence.operands, arguments, strict=True))
    times, samples = recurrence.sizes(of["gates"].shape)
    rows = of["gates"].transpose(0, 2, 3, 1, 4) if recurrence.packed_times else of["gates"]
    gates = rows.reshape(times, samples, len(recurrence.reverse), recurrence.gates, recurrence.hidden)
    runs = [_run_direction(recurrence, direction, gates[:, :, direction], of) for direction in range(gates.shape[2])]
    outputs = np.concatenate([run[0] for run in runs], axis=-1)
    return outputs, *(np.stack([run[at] for run in runs]) for at in range(1, 1 + recurrence.states))


def _run_direction(recurrence: Recurrence, direction: int, gates: Array, of: Mapping[str, Array]) -> list[Array]:
    times, samples, _, hidden = gates.shape
    zeros = np.zeros((len(recurrence.reverse), samples, hidden), np.float32)
    states = [of.get(name, zeros)[direction].copy() for name in ("hidden", "cell")[: recurrence.states]]
    outputs = np.zeros((times, samples, hidden), np.float32)
    lengths = np.asarray(of.get("lengths", np.full(samples, times)))
    step = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}[recurrence.kind]
    own = {name: of[name][direction] for name in ("weight", "reset_bias", "peephole") if name in of}
    for at in range(times):
        rows = np.flatnonzero(at < lengths)
        time = lengths[rows] - 1 - at if recurrence.reverse[direction] else np.full(len(rows), at)
        made = step(recurrence, gates[time, rows], own, [state[rows] for state in states])
        for state, new in zip(states, made, strict=True):
            state[rows] = new
        outputs[time, rows] = states[0][rows]
    return [outputs, *states]


def _activate(recurrence: Recurrence, which: int, x: Array) -> Array:
    function = recurrence.activations[which]
    limited = np.clip(x, -recurrence.clip, recurrence.clip) if recurrence.clip else x
    return ACTIVATIONS[function.name](limited, function.alpha, function.beta).astype(np.float32)


def _lstm(recurrence: Recurrence, gates: Array, own: Mapping[str, Array], states: list[Array]) -> list[Array]:
    hidden, cell = states
    i, f, g, o = np.moveaxis(gates + np.einsum("bk,gok->bgo", hidden, own["weight"]), 1, 0)
    peephole = own.get("peephole", np.zeros((3, 1), np.float32))
    i = _activate(recurrence, 0, i + peephole[0] * cell)
    f = 1 - i if recurrence.coupled else _activate(recurrence, 0, f + peephole[1] * cell)
    cell = f * cell + i * _activate(recurrence, 1, g)
    plain = dataclasses.replace(recurrence, clip=0.0)
    return [_activate(recurrence, 0, o + peephole[2] * cell) * _activate(plain, 2, cell), cell]


def _gru(recurrence: Recurrence, gates: Array, own: Mapping[str, Array], states: list[Array]) -> list[Array]:
    (hidden,), weight = states, own["weight"]
    z, r = (_activate(recurrence, 0, gates[:, at] + hidden @ weight[at].T) for at in (0, 1))
    if recurrence.reset_after:
        product = r * (hidden @ weight[2].T + own.get("reset_bias", np.float32(0)))
    else:
        product = (r * hidden) @ weight[2].T
    return [(1 - z) * _activate(recurrence, 1, gates[:, 2] + product) + z * hidden]


def _rnn(recurrence: Recurrence, gates: Array, own: Mapping[str, Array], states: list[Array]) -> list[Array]:
    return [_activate(recurrence, 0, gates[:, 0] + states[0] @ own["weight"][0].T)]


ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "sigmoid": lambda x, _a, _b: 1 / (1 + np.exp(-x)),
    "tanh": lambda x, _a, _b: np.tanh(x),
    "relu": lambda x, _a, _b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, _b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, _b: np.where(x >= a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, _b: np.where(x < 0, a * (np.exp(np.minimum(x, 0)) - 1), x),
    "softsign": lambda x, _a, _b: x / (1 + np.abs(x)),
    "softplus": lambda x, _a, _b: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
}
