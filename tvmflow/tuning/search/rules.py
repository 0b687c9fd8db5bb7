"""Define the rules of a schedule search."""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.tuning.measure.jobs import DevicePoolRules
from tvmflow.tuning.search.tuners import Loss


@dataclass(frozen=True)
class SearchRules:
    """The rules of a schedule search.

    tuner, loss: see tuners.py. early_stopping: a workload ends after this many trials without gain. least_gain: the
    search ends when a minute is expected to save less than this share of the network's time; 0: no such limit.
    total_trials: of the whole search, 0: no limit. overlap: build while measuring, which would disturb a device that is
    this machine. self_contained: link kernels for devices without TVM.
    """

    tuner: str
    loss: Loss
    trials: int
    total_trials: int
    early_stopping: int
    seed: int
    replay_slowdown: float
    build_workers: int
    build_timeout_s: float
    overlap: bool
    device_pool: DevicePoolRules
    self_contained: bool = False
    least_gain: float = 0.0
