"""Define the tuning settings of params.yaml: those that can change the result, and those that cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SearchSettings:
    """The keys of `tune:` that can change which schedule is the best."""

    tuner: str
    loss: Literal["reg", "rank", "rank-binary"]
    trials_per_workload: int
    total_trials: int
    max_seconds: float
    early_stopping: int
    min_gain_per_minute: float
    max_workloads: int
    winograd_max_error: Mapping[str, float]
    measure_repeats: int
    measure_min_ms: float
    replay_slowdown: float
    seed: int
    without_device: bool


@dataclass(frozen=True)
class SearchLimits:
    """The keys of `tune:` that cannot change the result: numbers of devices and workers, timeouts."""

    devices: int
    build_workers: int
    build_timeout_s: float
    kernel_timeout_s: float
    session_s: float
    canary_every: int
    max_drift: float
    cool_s: float
    give_up_s: float
