"""Predict what a search will gain, by simulating it before it begins.

The simulation uses the scheduler of the search (task_scheduler.py) and the profiled times of the default kernels. Each
candidate gains what candidates of its template gained on average before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmflow.backends.backend import Backend
from tvmflow.ir.tir.workloads import Workload, anchor_extents
from tvmflow.tuning.records.record import TuningRecord
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.state import WorkloadSearch
from tvmflow.tuning.search.task_scheduler import TaskScheduler
from tvmflow.tuning.search.tuners import knob_key

_STEP = 4  # candidates per kernel and round, as in the search


@dataclass(frozen=True)
class ExpectedGain:
    """share: of the network's time that is expected to be saved; seconds: the expected duration of the search."""

    share: float
    seconds: float


class _NullTuner:
    """A tuner that proposes nothing, for the simulation."""

    def tell(self, _index: int, _seconds: float) -> None:
        pass


def profiled_searches(
    workloads: Sequence[Workload], kernels: Mapping[str, float], backend: Backend, known: Sequence[TuningRecord]
) -> list[WorkloadSearch]:
    """Return the searches of kernels with profiled times, with their earlier trials. kernels: workload key -> seconds
    per call.
    """
    found = []
    tuner: Any = _NullTuner()
    for workload in workloads:
        match = backend.template_for(workload.function)
        if match is None or workload.key not in kernels:
            continue
        template, candidates = match
        extents = tuple(anchor_extents(workload.function))
        search = WorkloadSearch(workload, template.name, candidates, tuner, extents)
        legal = {knob_key(knobs) for knobs in candidates}
        tried = sum(r.workload == workload.key and knob_key(r.knobs) in legal for r in known)
        search.trials, search.best_s = max(1, tried), kernels[workload.key]
        found.append(search)
    return found


def predict_gain(
    searches: Sequence[WorkloadSearch], rules: SearchRules, known: Sequence[TuningRecord], limit_s: float
) -> ExpectedGain | None:
    """Simulate a search. known: earlier measurements. limit_s: the longest duration. Return None if nothing is left to
    search.
    """
    scheduler = TaskScheduler(searches, (), rules.trials, rules.limits.build_workers)
    for record in known:
        scheduler.gains.learn(record)
    at_first_s, each_s = scheduler.network_s(), scheduler.usual_s()
    spent_s = each_s * sum(search.trials == 1 for search in searches)
    while spent_s < limit_s:
        gain, search = max(
            ((scheduler.gain_per_minute(one), one) for one in searches), key=lambda found: found[0], default=(0.0, None)
        )
        if search is None or gain <= 0 or gain < rules.settings.min_gain_per_minute:
            break
        for _ in range(min(_STEP, min(rules.trials, len(search.candidates)) - search.trials)):
            search.best_s *= 1 - scheduler.gains.expected(search.template, search.trials)
            search.trials += 1
            spent_s += each_s
    return (
        ExpectedGain(1 - scheduler.network_s() / at_first_s, min(spent_s, limit_s)) if spent_s and at_first_s else None
    )
