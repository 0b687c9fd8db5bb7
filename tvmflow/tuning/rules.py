"""Define the rules of a search: the settings and limits of `tune:`, and where its devices are."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvmflow.config.stage_params import SearchLimits, SearchSettings


@dataclass(frozen=True)
class MeasureRules:
    """repeats: how often a kernel is timed, each time over as many runs as take min_repeat_ms."""

    repeats: int
    min_repeat_ms: float


@dataclass(frozen=True)
class SearchRules:
    """on_this_host: the device is this machine; it measures one kernel at a time, and builds none meanwhile.

    has_tvm: devices have TVM's runtime; for others kernels are linked so that they need nothing.
    """

    settings: SearchSettings = field(default_factory=SearchSettings)
    limits: SearchLimits = field(default_factory=SearchLimits)
    on_this_host: bool = True
    has_tvm: bool = True

    @property
    def sessions(self) -> int:
        """Return how many sessions measure side by side."""
        return 1 if self.on_this_host else self.limits.devices

    @property
    def trials(self) -> int:
        """Return how many schedules of a workload are tried at most; 0: none is measured."""
        return self.settings.trials_per_workload

    @property
    def measure(self) -> MeasureRules:
        return MeasureRules(self.settings.measure_repeats, self.settings.measure_min_ms)
