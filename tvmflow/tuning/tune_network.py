"""Tune a whole network: its kernels, the kernels of other algorithms for its layers, and which of those to use."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmflow.backends.backend import Backend
from tvmflow.codegen.lower import lower
from tvmflow.evaluation.machine_state import host_watch
from tvmflow.ir.tir.workloads import Workload, extract_workloads, least_bytes
from tvmflow.support.progress import Progress
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.choose_in_network import choose_in_network
from tvmflow.tuning.compare_networks import Form, NetworkComparison
from tvmflow.tuning.measure.jobs import OpenSession
from tvmflow.tuning.records.log import Journal
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.display import live_table
from tvmflow.tuning.search.estimates import estimate_workloads
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import TuneReport, WorkloadSearch
from tvmflow.tuning.winograd_choice import Alternative, alternatives, carried, choose, settle, unmeasured

_COMPARE_AT_LEAST_S = 60.0  # without a limit of the stage
_COMPARED = 2  # networks that the first comparison builds
_BUILD_S, _LINK_S = 0.5, 2.0  # a kernel, before one was built; what a network takes beside its kernels
_CACHED_BYTES = 1 << 20  # that a network's kernels read and write, of which the cache of a core keeps all
_MARGIN = 1.3  # by which the search leaves more time than that: it has to end, too
_MOST_OF_ALL = 0.5  # share of a limit above which no networks are compared


@dataclass(frozen=True)
class TunedNetwork:
    """winograd: convolution key -> tile; used: the workloads of the network as it will be built; tuned: how many
    were.
    """

    report: TuneReport
    winograd: dict[str, int]
    used: list[Workload]
    tuned: int


def tune_network(
    networks: Sequence[Any],
    backend: Backend,
    rules: SearchRules,
    journal: Journal,
    open_session: OpenSession,
    progress: Progress,
    budget: Budget | None = None,
) -> TunedNetwork:
    """Tune every workload of a packed network, as far as the rules allow; without trials nothing is measured.

    networks: the network, and the same at smaller sizes. Other algorithms are chosen by the first, since all share
    their weights. budget: for all of it.
    """
    packed, *smaller = networks
    budget = budget or Budget()
    left_s = budget.left_s()
    base = extract_workloads(lower(packed, backend))
    smaller_used = [workload for other in smaller for workload in extract_workloads(lower(other, backend))]
    workloads = _distinct([*base, *smaller_used])[: rules.settings.max_workloads]
    close_s = left_s - budget.left_s() if math.isfinite(left_s) else 0.0  # the same is done once more at the end
    report, winograd = TuneReport({}), {}
    if rules.settings.without_device:
        with tempfile.TemporaryDirectory() as folder:
            report.best = estimate_workloads(workloads, backend, rules, journal, Path(folder), progress, budget)
    elif rules.trials:
        # Whole networks are compared on the device; until build, what an accelerator computes is its slow definition
        # there.
        bound = rules.settings.winograd_bounds if backend.accelerator is None else {}
        others = alternatives(packed, backend, base, bound)
        forms = [
            *others,
            *(a for net in smaller for a in alternatives(net, backend, extract_workloads(lower(net, backend)), bound)),
        ]
        workloads = _distinct([*workloads, *(w for form in forms for w in form.added)])
        with tempfile.TemporaryDirectory() as folder, live_table(progress) as (watch, say):
            compares = bool(others) or (backend.is_cpu and backend.accelerator is None)

            def later(searches: Sequence[WorkloadSearch]) -> float:
                took_s = _comparison_s(searches, len(base)) if compares else 0.0
                return close_s + (_MARGIN * took_s if took_s <= _MOST_OF_ALL * budget.seconds else 0.0)

            report = tune(
                workloads, open_session, backend, rules, journal, Path(folder), say, watch, others, budget, later
            )
            if compares:
                say("comparing whole networks", 0, 0)
                looks = host_watch(backend.target.threads) if rules.on_this_host and backend.is_cpu else None
                with NetworkComparison(packed, backend, journal, Path(folder), open_session, looks) as comparison:
                    is_small = sum(one.calls * least_bytes(one.function) for one in base) <= _CACHED_BYTES
                    first_s = _comparison_s(report.searches, len(base))
                    has_time = _has_time(comparison, report, budget, close_s, first_s, is_small)
                    winograd = _compared(comparison, others, report, unmeasured(packed, backend, bound), has_time)
    else:
        winograd = unmeasured(packed, backend, rules.settings.winograd_bounds)
    winograd = carried(winograd, packed, smaller)
    used = extract_workloads(lower(packed, backend, winograd=winograd))
    for other in smaller:
        used = _joined(used, extract_workloads(lower(other, backend, winograd=winograd)))
    return TunedNetwork(report, winograd, used, len(workloads))


def _compared(
    comparison: NetworkComparison,
    others: list[Alternative],
    report: TuneReport,
    counted: dict[str, int],
    may_go_on: Callable[[], bool],
) -> dict[str, int]:
    """Return the tiles of the fastest network; where the device tells what kernels take in it, the report's best become
    those.
    """
    if not may_go_on():
        return choose(others, report.best)
    by_kernel = comparison.backend.is_cpu  # what a GPU's kernels take is told of runs that wait for each
    if by_kernel and (chosen := choose_in_network(comparison, others, report.best, counted, may_go_on)):
        report.best = chosen.best
        return chosen.winograd

    def speedup(now: dict[str, int], other: dict[str, int]) -> float:
        return comparison.speedup(Form(now, report.best), Form(other, report.best))

    return settle(others, choose(others, report.best), report.best, speedup, may_go_on, counted)


def _comparison_s(searches: Sequence[WorkloadSearch], kernels: int) -> float:
    """Return what the first comparison of networks of so many kernels takes, by what building one took."""
    built = sum(search.measured for search in searches)
    each_s = sum(search.build_s for search in searches) / built if built else _BUILD_S
    return _COMPARED * (_LINK_S + kernels * each_s)


def _has_time(
    comparison: NetworkComparison, report: TuneReport, budget: Budget, close_s: float, first_s: float, is_small: bool
) -> Callable[[], bool]:
    """Return what says whether there is time to compare another network: it takes as long as the last one did.

    is_small: it lies in the caches as its kernels alone do, so that one comparison with the default schedules is
    enough.
    """
    # No longer than the search itself: a network of 500 MB takes a minute to build and upload.
    own = Budget(max(report.seconds, _COMPARE_AT_LEAST_S))

    def has_time() -> bool:
        if is_small and comparison.took_s:
            return False
        return own.has(0.0) and budget.has((comparison.took_s or first_s) + close_s)

    return has_time


def _distinct(workloads: list[Workload]) -> list[Workload]:
    return list({workload.key: workload for workload in workloads}.values())


def _joined(a: list[Workload], b: list[Workload]) -> list[Workload]:
    """Return the workloads of both, with the calls of both."""
    calls = {workload.key: workload.calls for workload in b}
    summed = [replace(workload, calls=workload.calls + calls.pop(workload.key, 0)) for workload in a]
    return summed + [workload for workload in b if workload.key in calls]
