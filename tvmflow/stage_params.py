"""The blocks of params.yaml that belong to a stage, one for each."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tvmflow.bounds import Name, NotNegative, NotNegativeFloat, Parallel, Positive, PositiveFloat, Seed

PRECISIONS = ("float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8")

Precision = Literal["float32", "float16", "float16_acc32", "bfloat16", "int8", "vta_int8"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StageBlock(Frozen):
    """The block of a stage, under the stage's name."""


class FetchParams(StageBlock):
    max_download_mb: Positive
    download_attempts: Positive
    connect_timeout_s: PositiveFloat
    calibration_samples: Positive
    evaluation_samples: Positive
    golden_samples: Annotated[int, Field(ge=2)]  # one could not show that a form follows its input
    random_samples: Positive
    split_seed: Seed


class ImportParams(StageBlock):
    max_relative_error: PositiveFloat


class MixedOperators(Frozen):
    """low: operators that compute in 16 bits; high: those that stay in float32; all others follow their inputs."""

    low: Annotated[tuple[str, ...], Field(strict=False)]
    high: Annotated[tuple[str, ...], Field(strict=False)]


class Int8Params(Frozen):
    """The post-training quantizer of `int8`."""

    observer: Literal["minmax", "percentile", "kl", "mse"]
    percentile: Annotated[float, Field(gt=50, le=100)]
    activations: Literal["uint8", "int8"]
    per_channel: bool
    equalize: bool
    bias_correction: bool
    keep_float: Annotated[tuple[str, ...], Field(strict=False)]
    max_drop: Annotated[float, Field(ge=0, le=1)] | None
    max_float_layers: NotNegative


class VtaInt8Params(Frozen):
    """The power-of-two form of `vta_int8`."""

    scale: Literal["global", "calibrated"]
    global_scale: PositiveFloat
    keep_float: Annotated[tuple[str, ...], Field(strict=False)]

    @field_validator("global_scale")
    @classmethod
    def _power_of_two(cls, value: float) -> float:
        if math.frexp(value)[0] != 0.5:
            raise ValueError(f"a power of two; found {value}")
        return value


class QuantizeParams(StageBlock):
    """mixed: `default`, and a list of its own for each target that needs one."""

    max_relative_error: dict[Precision, PositiveFloat]
    mixed: dict[Name, MixedOperators]
    int8: Int8Params
    vta_int8: VtaInt8Params

    @model_validator(mode="after")
    def _complete(self) -> QuantizeParams:
        if "default" not in self.mixed:
            raise ValueError("mixed: needs an entry 'default'")
        missing = [name for name in PRECISIONS if name not in self.max_relative_error]
        if missing:
            raise ValueError(f"max_relative_error: no bound for {', '.join(missing)}")
        return self


class GraphPackParams(StageBlock):
    channel_block: Literal["auto", 4, 8, 16]


class TuneParams(StageBlock):
    tuner: Name
    loss: Literal["reg", "rank", "rank-binary"]
    trials_per_workload: NotNegative
    total_trials: NotNegative
    max_seconds: NotNegativeFloat
    early_stopping: Positive
    max_workloads: Positive
    winograd_max_error: dict[Literal["float32", "bfloat16"], NotNegativeFloat]
    measure_repeats: Positive
    measure_min_ms: PositiveFloat
    replay_slowdown: PositiveFloat
    seed: Seed
    devices: Parallel
    build_workers: Parallel
    build_timeout_s: PositiveFloat
    kernel_timeout_s: PositiveFloat
    session_s: PositiveFloat
    canary_every: Positive
    max_drift: PositiveFloat
    cool_s: NotNegativeFloat
    give_up_s: PositiveFloat


class BuildParams(StageBlock):
    max_relative_error: dict[Precision, PositiveFloat]

    @model_validator(mode="after")
    def _complete(self) -> BuildParams:
        missing = [name for name in PRECISIONS if name not in self.max_relative_error]
        if missing:
            raise ValueError(f"max_relative_error: no bound for {', '.join(missing)}")
        return self


class DeployParams(StageBlock):
    session_timeout_s: PositiveFloat
    device_wait_s: PositiveFloat


class EvaluateParams(StageBlock):
    warmup_runs: NotNegative
    min_runs: Annotated[int, Field(ge=3, le=10_000_000)]
    min_seconds: PositiveFloat
    max_seconds: PositiveFloat
    max_spread: PositiveFloat
    max_foreign_load: Annotated[float, Field(gt=0, le=1)]
    cold_starts: Positive
    peers: Annotated[tuple[Literal["source", "onnxruntime"], ...], Field(strict=False)]
