"""Decide when a search ends: its trials, its time budget, and expected gains that are too small."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvmflow.tuning.budget import Budget
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.state import TuneReport, WorkloadSearch
from tvmflow.tuning.search.task_scheduler import TaskScheduler

# Reasons why a search ended.
MIN_GAIN = "min_gain_per_minute"
TOTAL_TRIALS, MAX_SECONDS = "total_trials", "max_seconds"
NOTHING_LEFT = "every kernel had its trials"
Later = Callable[[Sequence[WorkloadSearch]], float]  # searches -> seconds that the work after the search takes
_UNTIMED = 4  # candidates before the time per candidate is known, if there is a time limit


@dataclass(frozen=True)
class StoppingRule:
    """When a search ends. later: the work after the search, which shares the budget; None for none."""

    rules: SearchRules
    budget: Budget
    later: Later | None
    scheduler: TaskScheduler
    report: TuneReport
    searches: list[WorkloadSearch]

    def is_open(self, search: WorkloadSearch) -> bool:
        return (
            not search.exhausted
            and search.trials + search.in_flight < min(self.rules.trials, len(search.candidates))
            and search.since_gain < self.rules.settings.early_stopping
        )

    def promising_searches(self) -> list[tuple[float, WorkloadSearch]]:
        """Return the searches that may go on, with the share of the network's time that another minute is expected to
        save.
        """
        found = [(self.scheduler.gain_per_minute(search), search) for search in self.searches if self.is_open(search)]
        return [(gain, search) for gain, search in found if gain >= self.rules.settings.min_gain_per_minute]

    def spent_budget(self) -> str:
        """Return the budget that is spent, "" for none."""
        rules = self.rules
        if rules.settings.total_trials and self.report.measured >= rules.settings.total_trials:
            return TOTAL_TRIALS
        return "" if self.remaining_candidates() >= 1 else MAX_SECONDS

    def remaining_candidates(self) -> float:
        """Return how many candidates the remaining time allows, without the time of the work after the search."""
        left_s = self.budget.left_s()
        if math.isinf(left_s):
            return left_s
        return min(
            (left_s - self._later_s()) / self.scheduler.usual_s(), math.inf if self.report.measured else _UNTIMED
        )

    def _later_s(self) -> float:
        return self.later(self.searches) if self.later else 0.0

    def build_wait_s(self) -> float | None:
        """Return how long to wait for a build, None without a limit."""
        left_s = self.budget.left_s()
        return max(0.0, left_s - self._later_s()) if math.isfinite(left_s) else None

    def describe_end(self) -> None:
        """Add to the report why the search ends, and the expected gain of another minute."""
        left = [self.scheduler.gain_per_minute(search) for search in self.searches if self.is_open(search)]
        self.report.promised = max((gain for gain in left if math.isfinite(gain)), default=0.0)
        self.report.stopped = self.spent_budget() or (MIN_GAIN if left else NOTHING_LEFT)

    def trials_done(self) -> int:
        """Return the number of finished trials; a workload that stopped early counts as done."""
        most = self.rules.trials
        return sum(min(search.trials, most) if self.is_open(search) else most for search in self.searches)
