"""What a search promises before it begins: the search is played through, each candidate winning what candidates of its
template won before.

The steps are those of the search itself (prospects.py); the times of the kernels are those with default schedules,
within the network.
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
from tvmflow.tuning.search.task_scheduler import Prospects
from tvmflow.tuning.search.tuners import knob_key

_STEP = 4  # candidates of a kernel at a time, as the search proposes them


@dataclass(frozen=True)
class Promise:
    """share: of the network's time that is expected to be won; seconds: that the search takes."""

    share: float
    seconds: float


class _Unasked:
    """The tuner of a kernel that nobody tunes."""

    def tell(self, _index: int, _seconds: float) -> None:
        pass


def searches_of(
    workloads: Sequence[Workload], kernels: Mapping[str, float], backend: Backend, known: Sequence[TuningRecord]
) -> list[WorkloadSearch]:
    """Return the searches of kernels with known times, with the trials that they had before. kernels: workload key ->
    seconds of a call.
    """
    found, tuner = [], _Unasked()
    unasked: Any = tuner
    for workload in workloads:
        match = backend.template_for(workload.function)
        if match is None or workload.key not in kernels:
            continue
        template, candidates = match
        extents = tuple(anchor_extents(workload.function))
        search = WorkloadSearch(workload, template.name, candidates, unasked, extents)
        places = {knob_key(knobs) for knobs in candidates}
        tried = sum(r.workload == workload.key and knob_key(r.knobs) in places for r in known)
        search.trials, search.best_s = max(1, tried), kernels[workload.key]
        found.append(search)
    return found


def promise_of(
    searches: Sequence[WorkloadSearch], rules: SearchRules, known: Sequence[TuningRecord], limit_s: float
) -> Promise | None:
    """Play a search through. known: what earlier searches measured. limit_s: how long it may take. None where there is
    nothing to search.
    """
    prospects = Prospects(searches, (), rules.trials, rules.limits.build_workers)
    for record in known:
        prospects.gains.learn(record)
    at_first_s, each_s = prospects.network_s(), prospects.usual_s()
    spent_s = each_s * sum(search.trials == 1 for search in searches)
    while spent_s < limit_s:
        gain, search = max(
            ((prospects.gain_per_minute(one), one) for one in searches), key=lambda found: found[0], default=(0.0, None)
        )
        if search is None or gain <= 0 or gain < rules.settings.min_gain_per_minute:
            break
        for _ in range(min(_STEP, min(rules.trials, len(search.candidates)) - search.trials)):
            search.best_s *= 1 - prospects.gains.of(search.template, search.trials)
            search.trials += 1
            spent_s += each_s
    return Promise(1 - prospects.network_s() / at_first_s, min(spent_s, limit_s)) if spent_s and at_first_s else None
