"""Define the options of quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Int8Options:
    """The options of int8 quantization.

    observer: minmax, percentile, kl or mse. activations: uint8 or int8. keep_float: layer names, `first`, `last`.
    equalize, bias_correction: are allowed; each is used only if the outputs come closer to float32. max_drop: the most
    accuracy (or top-1 agreement with float32, without labels and with enough samples) to lose on the calibration set;
    while more is lost, the worst layers return to float, at most max_float_layers. None: no goal.
    """

    observer: str = "mse"
    percentile: float = 99.99
    activations: str = "uint8"
    per_channel: bool = True
    equalize: bool = True
    bias_correction: bool = True
    keep_float: tuple[str, ...] = ()
    max_drop: float | None = None
    max_float_layers: int = 8


@dataclass(frozen=True)
class VtaOptions:
    """The options of VTA quantization.

    scale: `global` (one power of two for all activations) or `calibrated` (one for each, or for each residual sum).
    global_scale: the largest number that the global scale represents, a power of two; `auto`: chosen by calibration.
    """

    scale: str = "global"
    global_scale: float | Literal["auto"] = "auto"
    keep_float: tuple[str, ...] = ("first", "dense")
