"""Describe uses of TFLite's recurrent operators."""

from __future__ import annotations

from typing import Any

from bench.conformance.tflite_inputs import bias_data, float_data
from bench.conformance.tflite_models import Description, Given

_TANH, _RELU, _NONE = 4, 1, 0
_ABSENT = Given((), "absent")
_TIMES, _SAMPLES, _FEATURES, _UNITS = 5, 2, 6, 4
_FORMATS = ("float", "float16 weights", "int8", "dynamic range")


def _state(*shape: int) -> Given:
    return Given(shape, "state")


def _weights(count: int, columns: int) -> list[Given]:
    return [Given((_UNITS, columns), "weight", -0.6, 0.6, axis=-1) for _ in range(count)]


def _lstm_direction(has_gate: bool = True, has_peephole: bool = False) -> list[Given]:
    """Return the weights of one direction, up to the projection."""
    left_out = [] if has_gate else [_ABSENT]
    count = 4 if has_gate else 3
    peephole = [bias_data(_UNITS) for _ in range(count - 1)] if has_peephole else [_ABSENT] * (count - 1)
    biases = [bias_data(_UNITS) for _ in range(count)]
    parts = (_weights(count, _FEATURES), _weights(count, _UNITS), peephole, biases)
    return [given for part in parts for given in (*left_out, *part)] + [_ABSENT, _ABSENT]


def _rnn_direction() -> list[Given]:
    weights = [*_weights(1, _FEATURES), *_weights(1, _UNITS), bias_data(_UNITS)]
    return [*weights, _state(_SAMPLES, _UNITS)]


def recurrent() -> list[Description]:
    """Return one or more uses of each recurrent operator, from states of zeros."""
    x, by_time = float_data(_SAMPLES, _TIMES, _FEATURES), float_data(_TIMES, _SAMPLES, _FEATURES)
    states, step = [_state(_SAMPLES, _UNITS)] * 2, float_data(_SAMPLES, _FEATURES)
    lstm: dict[str, Any] = {"fusedActivationFunction": _TANH, "timeMajor": False}
    rnn = {"fusedActivationFunction": _TANH, "timeMajor": False}
    same: dict[str, Any] = {"formats": _FORMATS}
    one, many = "UnidirectionalSequenceLSTMOptions", "BidirectionalSequenceLSTMOptions"
    # Of several samples LiteRT's BIDIRECTIONAL_SEQUENCE_LSTM reads memory that nothing has written.
    single, kept = float_data(1, _TIMES, _FEATURES), [_state(1, _UNITS)] * 4
    pair = [*_lstm_direction(), *_lstm_direction(), *kept, *[_ABSENT] * 9]
    rnns = [*_rnn_direction(), *_rnn_direction(), *[_ABSENT] * 3]
    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    two, several = "BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN"
    both = ("FLOAT32", "FLOAT32")
    filters = (
        Given((6, _FEATURES), "weight", -0.6, 0.6, axis=-1),
        Given((6, 5), "weight", -0.6, 0.6, axis=-1),
        bias_data(3),
    )
    return [
        Description(name, (x, *_lstm_direction(), *states), one, lstm, **same),
        Description(
            name,
            (by_time, *_lstm_direction(False, True), *states),
            one,
            lstm | {"timeMajor": True},
            label="peepholes-without-input-gate",
            **same,
        ),
        Description(
            "LSTM",
            (step, *_lstm_direction(True, True), *states),
            "LSTMOptions",
            {"fusedActivationFunction": _RELU},
            **same,
        ),
        Description(two, (single, *pair), many, lstm | {"mergeOutputs": True}, **same),
        Description(two, (single, *pair), many, lstm | {"mergeOutputs": False}, outputs=both, label="apart", **same),
        Description("UNIDIRECTIONAL_SEQUENCE_RNN", (x, *_rnn_direction()), "SequenceRNNOptions", rnn, **same),
        Description(several, (x, *rnns), "BidirectionalSequenceRNNOptions", rnn | {"mergeOutputs": True}, **same),
        Description("RNN", (step, *_rnn_direction()), "RNNOptions", {"fusedActivationFunction": _NONE}, **same),
        Description(
            "SVDF",
            (step, *filters, _state(_SAMPLES, 30)),
            "SVDFOptions",
            {"rank": 2, "fusedActivationFunction": _RELU},
            formats=tuple(name for name in _FORMATS if name != "int8"),
        ),
    ]
