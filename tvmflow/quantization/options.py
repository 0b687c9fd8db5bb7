"""What a caller may choose about quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Int8Options:
    """observer: minmax, percentile, kl or mse. activations: uint8 or int8. keep_float: layer names, `first`, `last`.

    equalize, bias_correction: may be used; each is kept only where the outputs come closer to float32 for it. max_drop:
    accuracy (or, without labels and with enough samples to tell, top-1 agreement with float32) that may be lost on the
    calibration set; while more is lost, the worst layers go back to float, at most max_float_layers of them. None: no
    goal.
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
    """scale: `global` (one power of two for all activations) or `calibrated` (one for each, or for each residual sum).

    global_scale: the largest number that the one of `global` represents, a power of two; `auto`: chosen by calibration.
    """

    scale: str = "global"
    global_scale: float | Literal["auto"] = "auto"
    keep_float: tuple[str, ...] = ("first", "dense")
