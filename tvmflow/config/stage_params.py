"""Define the blocks of params.yaml of the stages, with their defaults.

The repository's params.yaml lists every default; a test keeps both, and docs/params.md, equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tvmflow.config.value_types import Name, NotNegative, NotNegativeFloat, Parallel, Positive, PositiveFloat, Seed

PRECISIONS = ("float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8")

Precision = Literal["float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StageBlock(Frozen):
    """The block of a stage, under the stage's name."""


QUANTIZE_ERRORS: dict[Precision, float] = {
    "float32": 2.0e-3,
    "float16": 1.0,
    "float16_acc32": 0.2,
    "bfloat16": 0.8,
    "int8": 2.0,
    "vta_int8": 2.0,
}
BUILD_ERRORS: dict[Precision, float] = {
    "float32": 2.0e-3,
    "float16": 1.5,
    "float16_acc32": 0.1,
    "bfloat16": 0.3,
    "int8": 0.05,
    "vta_int8": 0.05,
}


def fill_defaults(value: Any, defaults: Mapping[Any, Any]) -> Any:
    """Return a mapping of params.yaml with defaults for missing names; any other value unchanged."""
    return {**defaults, **value} if isinstance(value, dict) else value


class FetchParams(StageBlock):
    max_download_mb: Positive = 1024
    download_attempts: Positive = 5
    connect_timeout_s: PositiveFloat = 20.0
    calibration_samples: Positive = 200
    evaluation_samples: Positive = 400
    golden_samples: Annotated[int, Field(ge=2)] = 4  # one sample could not show that outputs depend on the input
    random_samples: Positive = 8
    split_seed: Seed = 0


class ImportParams(StageBlock):
    max_relative_error: PositiveFloat = 2.0e-3


class MixedOperators(Frozen):
    """low: operators that compute in 16 bits; high: those that stay in float32; others follow their inputs if 16 bits
    suffice.
    """

    low: Annotated[tuple[str, ...], Field(strict=False)]
    high: Annotated[tuple[str, ...], Field(strict=False)]


DEFAULT_MIXED = MixedOperators(
    low=("conv2d", "matmul"), high=("softmax", "log_softmax", "mean", "sum", "exp", "layer_norm")
)


class Int8Params(Frozen):
    """The post-training quantizer of `int8`.

    activations: auto takes what the target's processor multiplies fastest, uint8 where there is no target. keep_float:
    layer names, `first`, `last`. equalize, bias_correction: may be used; each is kept only where the outputs come
    closer to float32 for it. max_drop: accuracy (or, without labels and with enough samples to tell, top-1 agreement
    with float32) that may be lost on the calibration set; while more is lost, the worst layers go back to float, at
    most max_float_layers of them. None: no goal.
    """

    observer: Literal["minmax", "percentile", "kl", "mse"] = "mse"
    percentile: Annotated[float, Field(gt=50, le=100)] = 99.99
    activations: Literal["auto", "uint8", "int8"] = "auto"
    per_channel: bool = True
    equalize: bool = True
    bias_correction: bool = True
    keep_float: Annotated[tuple[str, ...], Field(strict=False)] = ()
    max_drop: Annotated[float, Field(ge=0, le=1)] | None = 0.005
    max_float_layers: NotNegative = 8


class VtaInt8Params(Frozen):
    """The power-of-two scheme of `vta_int8`.

    scale: `global` (one power of two for all activations) or `calibrated` (one for each, or for each residual sum).
    global_scale: the largest number that the one of `global` represents, a power of two; auto: chosen by calibration.
    skip_conv_layers: numbers, from 0, of convolutions that stay in float beside those of keep_float.
    """

    scale: Literal["global", "calibrated"] = "calibrated"
    global_scale: PositiveFloat | Literal["auto"] = "auto"
    keep_float: Annotated[tuple[str, ...], Field(strict=False)] = ("first", "dense")
    skip_conv_layers: Annotated[tuple[NotNegative, ...], Field(strict=False)] = ()

    @field_validator("global_scale")
    @classmethod
    def _power_of_two(cls, value: float | Literal["auto"]) -> float | Literal["auto"]:
        if value != "auto" and math.frexp(value)[0] != 0.5:
            raise ValueError(f"a power of two, or auto; found {value}")
        return value


class QuantizeParams(StageBlock):
    """mixed: `default`, and separate lists for targets that need them."""

    max_relative_error: dict[Precision, PositiveFloat] = Field(default_factory=lambda: dict(QUANTIZE_ERRORS))
    mixed: dict[Name, MixedOperators] = Field(default_factory=lambda: {"default": DEFAULT_MIXED})
    int8: Int8Params = Int8Params()
    vta_int8: VtaInt8Params = VtaInt8Params()

    @field_validator("max_relative_error", mode="before")
    @classmethod
    def _every_precision(cls, value: Any) -> Any:
        return fill_defaults(value, QUANTIZE_ERRORS)

    @field_validator("mixed", mode="before")
    @classmethod
    def _a_default(cls, value: Any) -> Any:
        return fill_defaults(value, {"default": DEFAULT_MIXED})


class GraphPackParams(StageBlock):
    channel_block: Literal["auto", 4, 8, 16] = "auto"


_WINOGRAD_ERRORS: dict[Literal["float32", "bfloat16", "float16"], float] = {
    "float32": 1.0e-4,
    "bfloat16": 4.0e-2,
    "float16": 1.0e-1,
}


class SearchSettings(StageBlock):
    """The keys of `tune:` that can change which schedule is found to be the best.

    early_stopping: trials of a workload without a gain after which it is abandoned. min_gain_per_minute: the search
    ends when the expected gain of a minute is below this share of the network's time. total_trials: of the whole
    search; 0: no limit. loss, features: of xgb; population: of ga.
    """

    tuner: Name = "xgb"
    loss: Literal["reg", "rank", "rank-binary"] = "rank"
    features: Literal["knobs", "loops", "curves"] = "knobs"
    population: Annotated[int, Field(ge=2, le=10_000)] = 12
    trials_per_workload: NotNegative = 24
    total_trials: NotNegative = 0
    max_seconds: NotNegativeFloat = 0.0
    early_stopping: Positive = 10
    min_gain_per_minute: NotNegativeFloat = 0.02
    max_workloads: Positive = 200
    winograd_max_error: dict[Literal["float32", "bfloat16", "float16"], NotNegativeFloat] = Field(
        default_factory=lambda: dict(_WINOGRAD_ERRORS)
    )
    measure_repeats: Positive = 3
    measure_min_ms: PositiveFloat = 10.0
    replay_slowdown: PositiveFloat = 0.1
    seed: Seed = 0
    without_device: bool = False

    @property
    def winograd_bounds(self) -> dict[str, float]:
        """Return dtype -> rounding error up to which a convolution may be computed by Winograd's algorithm."""
        return {str(dtype): error for dtype, error in self.winograd_max_error.items()}


class SearchLimits(StageBlock):
    """The keys of `tune:` that cannot: how many devices and workers, how long to wait for them.

    devices: sessions side by side. session_s: how long a device lets one session last. canary_every: measurements
    between two of the canary; max_drift: how much slower it may get; cool_s: how long to wait for a device that is
    slower. give_up_s: without a device for so long, the search ends with the error of the last attempt.
    """

    devices: Parallel = 1
    build_workers: Parallel = 2
    build_timeout_s: PositiveFloat = 60.0
    kernel_timeout_s: PositiveFloat = 60.0
    session_s: PositiveFloat = 3600.0
    canary_every: Positive = 16
    max_drift: PositiveFloat = 0.2
    cool_s: NotNegativeFloat = 5.0
    give_up_s: PositiveFloat = 120.0


class TuneParams(SearchLimits, SearchSettings):
    """The block `tune:`."""


class BuildParams(StageBlock):
    max_relative_error: dict[Precision, PositiveFloat] = Field(default_factory=lambda: dict(BUILD_ERRORS))

    @field_validator("max_relative_error", mode="before")
    @classmethod
    def _every_precision(cls, value: Any) -> Any:
        return fill_defaults(value, BUILD_ERRORS)


class DeployParams(StageBlock):
    session_timeout_s: PositiveFloat = 120.0
    device_wait_s: PositiveFloat | None = None


class EvaluateParams(StageBlock):
    warmup_runs: NotNegative = 10
    turns: Annotated[int, Field(ge=6, le=100_000)] = 60
    turn_ms: PositiveFloat = 50.0
    max_seconds: PositiveFloat = 30.0
    max_foreign_load: Annotated[float, Field(gt=0, le=1)] = 0.1
    cold_starts: Positive = 3
    peers: Annotated[tuple[Literal["source", "onnxruntime"], ...], Field(strict=False)] = ("source", "onnxruntime")
