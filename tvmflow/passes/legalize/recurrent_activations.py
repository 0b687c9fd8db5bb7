"""Write the activations of recurrent layers as TVMScript."""

from __future__ import annotations

from tvmflow.ir.relax.recurrent import Activation


def format_activation(activation: Activation, value: str, clip: float = 0.0) -> str:
    """Return the TVMScript text of an activation of a text."""
    a, b = _number(activation.alpha), _number(activation.beta)
    x = f"({value})"
    if clip:
        x = f"T.max(T.min({x}, {_number(clip)}), {_number(-clip)})"
    zero, one, half = "T.float32(0)", "T.float32(1)", "T.float32(0.5)"
    texts = {
        "sigmoid": f"({half} * T.tanh({half} * {x}) + {half})",  # one division, as tanh; an exponential takes longer
        "tanh": f"T.tanh({x})",
        "relu": f"T.max({x}, {zero})",
        "affine": f"({a} * {x} + {b})",
        "leakyrelu": f"T.Select({x} < {zero}, {a} * {x}, {x})",
        "thresholdedrelu": f"T.Select({x} >= {a}, {x}, {zero})",
        "scaledtanh": f"({a} * T.tanh({b} * {x}))",
        "hardsigmoid": f"T.max(T.min({a} * {x} + {b}, {one}), {zero})",
        "elu": f"T.Select({x} < {zero}, {a} * (T.exp(T.min({x}, {zero})) - {one}), {x})",
        "softsign": f"({x} / ({one} + T.abs({x})))",
        "softplus": f"(T.log({one} + T.exp({zero} - T.abs({x}))) + T.max({x}, {zero}))",
    }
    return texts[activation.name]


def _number(value: float) -> str:
    return f"T.float32({value!r})"
