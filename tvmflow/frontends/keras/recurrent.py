"""Let Keras compute LSTM and GRU by PyTorch's operators, which are imported whole; its own loops are unrolled."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch


@cache
def keep_layers_whole() -> None:
    """Replace Keras's loops over time in this process, for layers with their usual activations."""
    rnn = importlib.import_module("keras.src.backend.torch.rnn")  # the package has a function of this name
    for name, convert in (("_fallback_lstm", _lstm), ("_fallback_gru", _gru)):
        loop = getattr(rnn, name, None)
        if loop is not None:  # of another version of Keras: its layers are unrolled
            setattr(rnn, name, _replacement(loop, convert))


def _replacement(loop: Callable[..., Any], convert: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(loop)
    def compute(inputs: Any, *arguments: Any) -> Any:
        import keras

        *states, kernel, recurrent, bias, activation, gate_activation, return_sequences = arguments[: _COUNT[convert]]
        batch_first = all(arguments[_COUNT[convert] :])
        if activation is not keras.activations.tanh or gate_activation is not keras.activations.sigmoid:
            return loop(inputs, *arguments)
        outputs, *last = convert(inputs, states, kernel, recurrent, bias, batch_first)
        last = [state[0] for state in last]
        return last[0], outputs if return_sequences else last[0].unsqueeze(1 if batch_first else 0), last

    return compute


def _lstm(inputs: Any, states: list[Any], kernel: Any, recurrent: Any, bias: Any, batch_first: bool) -> Any:
    weights = [kernel.t(), recurrent.t(), *([] if bias is None else [bias, torch.zeros_like(bias)])]
    given = [state.unsqueeze(0) for state in states]
    return torch.lstm(inputs, given, weights, bias is not None, 1, 0.0, False, False, batch_first)


def _gru(inputs: Any, states: list[Any], kernel: Any, recurrent: Any, bias: Any, batch_first: bool) -> Any:
    def in_order(rows: Any) -> Any:
        """Return the gates z, r, h in PyTorch's order."""
        z, r, h = torch.chunk(rows, 3, 0)
        return torch.cat([r, z, h])

    biases = [] if bias is None else [in_order(bias[0]), in_order(bias[1])]
    weights = [in_order(kernel.t()), in_order(recurrent.t()), *biases]
    return torch.gru(inputs, states[0].unsqueeze(0), weights, bias is not None, 1, 0.0, False, False, batch_first)


_COUNT = {_lstm: 8, _gru: 7}  # arguments of Keras's loops behind the inputs, up to return_sequences
