"""What going on promises: how much of a network's time further candidates of a kernel may win, for each second that
they cost.

A kernel's candidates win what those of other kernels of its template won after as many trials, in this search and in
earlier ones. Knows nothing of devices.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from tvmflow.tuning.records.record import TuningRecord
from tvmflow.tuning.search.state import GAIN, WorkloadSearch
from tvmflow.tuning.winograd_choice import Alternative

_STEPS = (1, 4, 8, 16)  # trials, between which a candidate wins about equally much
# The share of a kernel's time that it wins there: from `python -m bench.tuning tuners` and `static`.
_USUAL = (0.015, 0.008, 0.002, 0.0005)
_USUAL_COUNTS = 50  # candidates, until what was measured says as much
_PATIENCE = 8  # candidates without a gain that halve what is expected of the next
_CANDIDATE_S = 0.5  # before one was measured
_AHEAD = 4  # candidates that are looked ahead at least: a single one seldom wins
_MOST_GAIN = 0.5  # a default schedule that is many times slower than the best says little of others


class Gains:
    """Template and number of trials -> the share of a kernel's time that one more candidate wins, on average."""

    def __init__(self) -> None:
        self._best: dict[str, tuple[int, float]] = {}  # workload -> trials, best time
        self._found: dict[tuple[str, int], tuple[int, float]] = {}  # template, step -> candidates, summed gains

    def learn(self, record: TuningRecord) -> None:
        """Take in a measurement; those of a workload come in the order in which they were made."""
        # In canaries: what a clock or another process did between two candidates is no gain.
        seconds = record.median_s / (record.canary_s or 1.0)
        trials, best = self._best.get(record.workload, (0, math.inf))
        self._best[record.workload] = (trials + 1, min(best, seconds))
        if math.isfinite(best):
            place = record.template, _step(trials)
            count, total = self._found.get(place, (0, 0.0))
            gain = 1 - seconds / best
            self._found[place] = (count + 1, total + (min(gain, _MOST_GAIN) if gain > GAIN else 0.0))

    def of(self, template: str, trials: int) -> float:
        """Return the share that the next candidate wins, after so many trials."""
        step = _step(trials)
        count, total = self._found.get((template, step), (0, 0.0))
        return (total + _USUAL_COUNTS * _USUAL[step]) / (count + _USUAL_COUNTS)


def _step(trials: int) -> int:
    return max(bisect_right(_STEPS, trials) - 1, 0)


class Prospects:
    """searches: kernels of one network, those among them that other algorithms would have: they win once they are
    faster than what they replace.
    """

    def __init__(
        self, searches: Sequence[WorkloadSearch], alternatives: Sequence[Alternative], most_trials: int, workers: int
    ) -> None:
        self.searches, self.gains, self.most_trials, self.workers = searches, Gains(), most_trials, workers
        self._search = {search.workload.key: search for search in searches}
        self._ways: dict[str, list[list[tuple[str, int]]]] = {}  # convolution -> ways to compute it: kernels and calls
        for one in alternatives:
            ways = self._ways.setdefault(one.key, [[(w.key, w.calls) for w in one.removed]])
            ways.append([(w.key, w.calls) for w in one.added])
        self._place = {  # kernel -> the convolution and the way that it belongs to
            key: (convolution, at)
            for convolution, ways in self._ways.items()
            for at, way in enumerate(ways)
            for key, _ in way
        }

    def network_s(self) -> float:
        """Return the time of the network's kernels, each convolution by its fastest way; kernels without a time count
        nothing.
        """
        return self._network_s(_best_s)

    def _network_s(self, time_of: Callable[[WorkloadSearch], float]) -> float:
        own = (s for s in self._own() if math.isfinite(time_of(s)))
        total = sum(search.workload.calls * time_of(search) for search in own)
        for ways in self._ways.values():
            times = [self._seconds(way, time_of) for way in ways]
            if math.isfinite(times[0]):
                total -= times[0] - min(times)
        return total

    def _own(self) -> list[WorkloadSearch]:
        """Return the kernels of the network as it is without other algorithms."""
        return [search for search in self.searches if self._place.get(search.workload.key, ("", 0))[1] == 0]

    def won(self) -> float | None:
        """Return the share of the network's time with default schedules that was won; None before every kernel of it
        has both times.

        Both with each convolution by its fastest way. At most half of a kernel is believed: a default schedule that was
        measured while something else ran looks many times slower.
        """
        own = self._own()
        if not own or any(math.isinf(search.default_s) or math.isinf(search.best_s) for search in own):
            return None
        return 1 - self.network_s() / self._network_s(_believed_default_s)

    def gain_per_minute(self, search: WorkloadSearch) -> float:
        """Return the share of the network's time that a minute with a kernel's candidates is expected to win; infinity
        before its first.
        """
        if search.trials == 0:
            return math.inf
        left = min(self.most_trials, len(search.candidates)) - search.trials - search.in_flight
        network_s = self.network_s()
        if left <= 0 or not network_s or math.isinf(search.best_s):
            return 0.0
        behind_s, kept, rate = self._behind_s(search), 1.0, 0.0
        for ahead in range(1, left + 1):
            kept *= 1 - self._gain(search, ahead)
            if ahead >= min(_AHEAD, left):
                rate = max(rate, (search.workload.calls * search.best_s * (1 - kept) - behind_s) / ahead)
        return 60.0 * rate / network_s / self.candidate_s(search)

    def _gain(self, search: WorkloadSearch, ahead: int) -> float:
        return self.gains.of(search.template, search.trials + ahead - 1) / (1 + search.since_gain / _PATIENCE)

    def candidate_s(self, search: WorkloadSearch) -> float:
        """Return what a candidate costs, by those of this kernel, or of all where it has none in this run."""
        return _mean_s([search] if search.measured else self.searches, self.workers)

    def usual_s(self) -> float:
        """Return what a candidate of any kernel costs."""
        return _mean_s(self.searches, self.workers)

    def _behind_s(self, search: WorkloadSearch) -> float:
        """Return how much slower a kernel's way to compute a convolution is than the fastest."""
        convolution, at = self._place.get(search.workload.key, ("", 0))
        times = [self._seconds(way, _best_s) for way in self._ways.get(convolution, ())]
        return times[at] - min(times) if times and math.isfinite(times[at]) else 0.0

    def _seconds(self, way: list[tuple[str, int]], time_of: Callable[[WorkloadSearch], float]) -> float:
        return sum(calls * time_of(self._search[key]) if key in self._search else math.inf for key, calls in way)


def _best_s(search: WorkloadSearch) -> float:
    return search.best_s


def _believed_default_s(search: WorkloadSearch) -> float:
    if math.isinf(search.default_s):
        return math.inf
    return min(search.default_s, search.best_s / (1 - _MOST_GAIN))


def _mean_s(searches: Sequence[WorkloadSearch], workers: int) -> float:
    measured = sum(one.measured for one in searches)
    spent = sum(one.build_s / workers + one.spent_s for one in searches)
    return spent / measured if measured and spent else _CANDIDATE_S
