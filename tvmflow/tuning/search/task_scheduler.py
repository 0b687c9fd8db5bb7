"""Choose which kernel gets the next trials, by the expected gain per second.

A candidate is expected to gain what candidates of the same template gained on average after as many trials, in this
search and earlier ones. Does not use a device.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from tvmflow.tuning.records.record import TuningRecord
from tvmflow.tuning.search.state import GAIN, WorkloadSearch
from tvmflow.tuning.winograd_choice import Alternative

_STEPS = (1, 4, 8, 16)  # numbers of trials between which the gain of a candidate is about constant
# Gain there as a share of the kernel's time, from `python -m bench.tuning tuners` and `static`.
_USUAL = (0.015, 0.008, 0.002, 0.0005)
_USUAL_COUNTS = 50  # weight of the prior, in candidates
_PATIENCE = 8  # candidates without gain that halve the expected gain of the next
_CANDIDATE_S = 0.5  # before one is measured
_AHEAD = 4  # least lookahead in candidates, since a single one seldom gains
_MOST_GAIN = 0.5  # gains are capped: a default schedule that is many times slower than the best is an outlier


class Gains:
    """Average gain of one more candidate, as a share of the kernel's time, by template and number of trials."""

    def __init__(self) -> None:
        self._best: dict[str, tuple[int, float]] = {}  # workload -> trials, best time
        self._found: dict[tuple[str, int], tuple[int, float]] = {}  # template, step -> candidates, summed gains

    def learn(self, record: TuningRecord) -> None:
        """Add a measurement; those of a workload must come in chronological order."""
        # In units of the canary, so that a change of the clock does not count as a gain.
        seconds = record.median_s / (record.canary_s or 1.0)
        trials, best = self._best.get(record.workload, (0, math.inf))
        self._best[record.workload] = (trials + 1, min(best, seconds))
        if math.isfinite(best):
            key = record.template, _step(trials)
            count, total = self._found.get(key, (0, 0.0))
            gain = 1 - seconds / best
            self._found[key] = (count + 1, total + (min(gain, _MOST_GAIN) if gain > GAIN else 0.0))

    def expected(self, template: str, trials: int) -> float:
        """Return the expected gain of the next candidate after this many trials."""
        step = _step(trials)
        count, total = self._found.get((template, step), (0, 0.0))
        return (total + _USUAL_COUNTS * _USUAL[step]) / (count + _USUAL_COUNTS)


def _step(trials: int) -> int:
    return max(bisect_right(_STEPS, trials) - 1, 0)


class TaskScheduler:
    """searches: the kernels of one network, including those of alternative algorithms, which gain only once they are
    faster than the kernels that they replace.
    """

    def __init__(
        self, searches: Sequence[WorkloadSearch], alternatives: Sequence[Alternative], most_trials: int, workers: int
    ) -> None:
        self.searches, self.gains, self.most_trials, self.workers = searches, Gains(), most_trials, workers
        self._search = {search.workload.key: search for search in searches}
        # Convolution -> its variants, each the kernels and their calls.
        self._variants: dict[str, list[list[tuple[str, int]]]] = {}
        for one in alternatives:
            variants = self._variants.setdefault(one.key, [[(w.key, w.calls) for w in one.removed]])
            variants.append([(w.key, w.calls) for w in one.added])
        self._variant_of = {  # kernel -> its convolution and variant
            key: (convolution, at)
            for convolution, variants in self._variants.items()
            for at, variant in enumerate(variants)
            for key, _ in variant
        }

    def network_s(self) -> float:
        """Return the time of the network's kernels, with the fastest variant of each convolution; kernels without a
        time count 0.
        """
        return self._network_s(_best_s)

    def _network_s(self, time_of: Callable[[WorkloadSearch], float]) -> float:
        own = (s for s in self._own() if math.isfinite(time_of(s)))
        total = sum(search.workload.calls * time_of(search) for search in own)
        for variants in self._variants.values():
            times = [self._seconds(variant, time_of) for variant in variants]
            if math.isfinite(times[0]):
                total -= times[0] - min(times)
        return total

    def _own(self) -> list[WorkloadSearch]:
        """Return the kernels of the network without alternative algorithms."""
        return [search for search in self.searches if self._variant_of.get(search.workload.key, ("", 0))[1] == 0]

    def won(self) -> float | None:
        """Return the share of the time with default schedules that was saved; None until every kernel has both times.

        Both times use the fastest variant of each convolution. The gain of a kernel is capped at one half, since a
        default schedule measured on a disturbed machine looks many times slower.
        """
        own = self._own()
        if not own or any(math.isinf(search.default_s) or math.isinf(search.best_s) for search in own):
            return None
        return 1 - self.network_s() / self._network_s(_capped_default_s)

    def gain_per_minute(self, search: WorkloadSearch) -> float:
        """Return the share of the network's time that a minute on this kernel is expected to save; infinity before its
        first trial.
        """
        if search.trials == 0:
            return math.inf
        left = min(self.most_trials, len(search.candidates)) - search.trials - search.in_flight
        network_s = self.network_s()
        if left <= 0 or not network_s or math.isinf(search.best_s):
            return 0.0
        lag_s, remaining, rate = self._behind_s(search), 1.0, 0.0
        for ahead in range(1, left + 1):
            remaining *= 1 - self._gain(search, ahead)
            if ahead >= min(_AHEAD, left):
                rate = max(rate, (search.workload.calls * search.best_s * (1 - remaining) - lag_s) / ahead)
        return 60.0 * rate / network_s / self.candidate_s(search)

    def _gain(self, search: WorkloadSearch, ahead: int) -> float:
        return self.gains.expected(search.template, search.trials + ahead - 1) / (1 + search.since_gain / _PATIENCE)

    def candidate_s(self, search: WorkloadSearch) -> float:
        """Return the cost of a candidate of this kernel, or of all kernels if none was measured in this run."""
        return _mean_s([search] if search.measured else self.searches, self.workers)

    def usual_s(self) -> float:
        """Return the average cost of a candidate of any kernel."""
        return _mean_s(self.searches, self.workers)

    def _behind_s(self, search: WorkloadSearch) -> float:
        """Return how much slower a kernel's variant of a convolution is than the fastest variant."""
        convolution, at = self._variant_of.get(search.workload.key, ("", 0))
        times = [self._seconds(variant, _best_s) for variant in self._variants.get(convolution, ())]
        return times[at] - min(times) if times and math.isfinite(times[at]) else 0.0

    def _seconds(self, variant: list[tuple[str, int]], time_of: Callable[[WorkloadSearch], float]) -> float:
        return sum(calls * time_of(self._search[key]) if key in self._search else math.inf for key, calls in variant)


def _best_s(search: WorkloadSearch) -> float:
    return search.best_s


def _capped_default_s(search: WorkloadSearch) -> float:
    if math.isinf(search.default_s):
        return math.inf
    return min(search.default_s, search.best_s / (1 - _MOST_GAIN))


def _mean_s(searches: Sequence[WorkloadSearch], workers: int) -> float:
    measured = sum(one.measured for one in searches)
    spent = sum(one.build_s / workers + one.spent_s for one in searches)
    return spent / measured if measured and spent else _CANDIDATE_S
