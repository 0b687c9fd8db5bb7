"""What a search of schedules keeps to."""

from __future__ import annotations

from dataclasses import dataclass

from tvmflow.tuning.measure.jobs import FleetRules
from tvmflow.tuning.search.tuners import Loss


@dataclass(frozen=True)
class SearchRules:
    """tuner, loss: see tuners. early_stopping: trials of a workload without a gain after which it is left.

    least_gain: share of the network's time that a minute has to promise, or the search ends; 0 for none.
    total_trials: of the whole search, 0 for no limit. overlap: build while measuring, which a device that is
    this machine would feel. self_contained: kernels are linked for devices without TVM.
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
    fleet: FleetRules
    self_contained: bool = False
    least_gain: float = 0.0
