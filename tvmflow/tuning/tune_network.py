"""Tune a network: its kernels, the kernels of alternative algorithms, and the choice between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmflow.backends.backend import Backend
from tvmflow.codegen.lower import lower
from tvmflow.evaluation.machine_state import host_watch
from tvmflow.ir.tir.workloads import Workload, extract_workloads, least_bytes
from tvmflow.support.progress import Progress
from tvmflow.support.temporary import temporary_folder
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.choose_in_network import choose_in_network
from tvmflow.tuning.compare_networks import NetworkComparison, NetworkConfig
from tvmflow.tuning.measure.jobs import OpenSession
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.rules import SearchRules
from tvmflow.tuning.search.display import live_table
from tvmflow.tuning.search.estimates import estimate_workloads
from tvmflow.tuning.search.search import tune
from tvmflow.tuning.search.state import TuneReport, WorkloadSearch
from tvmflow.tuning.winograd_choice import (
    Alternative,
    choose_by_cost,
    choose_by_kernel_time,
    choose_by_network_time,
    extend_to_buckets,
    find_alternatives,
)

_COMPARE_AT_LEAST_S = 60.0  # for comparing networks, if the stage has no time limit
_COMPARED = 2  # networks built by the first comparison
_BUILD_S, _LINK_S = 0.5, 2.0  # per kernel, before one was built; per network, beside its kernels
_CACHED_BYTES = 1 << 20  # data of a network that fits into the cache of a core
_MARGIN = 1.3  # safety factor on the time that the search leaves for the comparison
_MOST_OF_ALL = 0.5  # share of the time limit above which networks are not compared


@dataclass(frozen=True)
class TunedNetwork:
    """The result of tuning. winograd: convolution key -> tile; used: workloads of the final network; tuned: number of
    tuned workloads.
    """

    report: TuneReport
    winograd: dict[str, int]
    used: list[Workload]
    tuned: int


def tune_network(
    networks: Sequence[Any],
    backend: Backend,
    rules: SearchRules,
    tuning_log: TuningLog,
    open_session: OpenSession,
    progress: Progress,
    budget: Budget | None = None,
) -> TunedNetwork:
    """Tune every workload of a packed network, as far as the rules allow; with 0 trials nothing is measured.

    networks: the network, then its smaller buckets. Winograd is chosen for the first and shared by all, since they
    share their weights. budget: for everything.
    """
    packed, *smaller = networks
    budget = budget or Budget()
    left_s = budget.left_s()
    base = extract_workloads(lower(packed, backend))
    smaller_used = [workload for other in smaller for workload in extract_workloads(lower(other, backend))]
    workloads = _deduplicate([*base, *smaller_used])[: rules.settings.max_workloads]
    final_s = left_s - budget.left_s() if math.isfinite(left_s) else 0.0  # the same work is repeated at the end
    report, winograd = TuneReport({}), {}
    if rules.settings.without_device:
        with temporary_folder("tune") as folder:
            report.best = estimate_workloads(workloads, backend, rules, tuning_log, Path(folder), progress, budget)
    elif rules.trials:
        # Whole networks are compared on the device, but the part of an accelerator is slow reference code until build.
        bound = rules.settings.winograd_bounds if backend.accelerator is None else {}
        others = find_alternatives(packed, backend, base, bound)
        forms = [*others, *_alternatives_of(smaller, backend, bound)]
        workloads = _deduplicate([*workloads, *(w for form in forms for w in form.added)])
        with temporary_folder("tune") as folder, live_table(progress) as (watch, say):
            compares = bool(others) or (backend.is_cpu and backend.accelerator is None)

            def later(searches: Sequence[WorkloadSearch]) -> float:
                took_s = _comparison_s(searches, len(base)) if compares else 0.0
                return final_s + (_MARGIN * took_s if took_s <= _MOST_OF_ALL * budget.seconds else 0.0)

            place = Path(folder)
            report = tune(workloads, open_session, backend, rules, tuning_log, place, say, watch, others, budget, later)
            if compares:
                say("comparing whole networks", 0, 0)
                watch_of_host = host_watch(backend.target.threads) if rules.on_this_host and backend.is_cpu else None
                with NetworkComparison(packed, backend, tuning_log, place, open_session, watch_of_host) as comparison:
                    is_small = sum(one.calls * least_bytes(one.function) for one in base) <= _CACHED_BYTES
                    first_s = _comparison_s(report.searches, len(base))
                    has_time = _has_time(comparison, report, budget, final_s, first_s, is_small)
                    by_cost = choose_by_cost(packed, backend, bound)
                    winograd = _choose_winograd(comparison, others, report, by_cost, has_time)
    else:
        winograd = choose_by_cost(packed, backend, rules.settings.winograd_bounds)
    winograd = extend_to_buckets(winograd, packed, smaller)
    used = extract_workloads(lower(packed, backend, winograd=winograd))
    for other in smaller:
        used = _merge_calls(used, extract_workloads(lower(other, backend, winograd=winograd)))
    return TunedNetwork(report, winograd, used, len(workloads))


def _alternatives_of(networks: Sequence[Any], backend: Backend, bound: Mapping[str, float]) -> Iterator[Alternative]:
    for network in networks:
        yield from find_alternatives(network, backend, extract_workloads(lower(network, backend)), bound)


def _choose_winograd(
    comparison: NetworkComparison,
    others: list[Alternative],
    report: TuneReport,
    by_cost: dict[str, int],
    may_go_on: Callable[[], bool],
) -> dict[str, int]:
    """Return the tiles of the fastest network. If the device reports kernel times, update the report's best records by
    them.
    """
    if not may_go_on():
        return choose_by_kernel_time(others, report.best)
    by_kernel = comparison.backend.is_cpu  # kernel times of a GPU are measured with a wait after each kernel
    if by_kernel and (chosen := choose_in_network(comparison, others, report.best, by_cost, may_go_on)):
        report.best = chosen.best
        return chosen.winograd

    def speedup(now: dict[str, int], other: dict[str, int]) -> float:
        return comparison.speedup(NetworkConfig(now, report.best), NetworkConfig(other, report.best))

    return choose_by_network_time(
        others, choose_by_kernel_time(others, report.best), report.best, speedup, may_go_on, by_cost
    )


def _comparison_s(searches: Sequence[WorkloadSearch], kernels: int) -> float:
    """Return the expected time of the first comparison, from the time to build a kernel."""
    built = sum(search.measured for search in searches)
    each_s = sum(search.build_s for search in searches) / built if built else _BUILD_S
    return _COMPARED * (_LINK_S + kernels * each_s)


def _has_time(
    comparison: NetworkComparison, report: TuneReport, budget: Budget, final_s: float, first_s: float, is_small: bool
) -> Callable[[], bool]:
    """Return a function that returns whether there is time to compare another network, by the time of the last one.

    is_small: the network fits into the caches, as its kernels alone do, so that one comparison with the default
    schedules is enough.
    """
    # At most as long as the search: a network of 500 MB takes a minute to build and upload.
    own = Budget(max(report.seconds, _COMPARE_AT_LEAST_S))

    def has_time() -> bool:
        if is_small and comparison.took_s:
            return False
        return own.has(0.0) and budget.has((comparison.took_s or first_s) + final_s)

    return has_time


def _deduplicate(workloads: list[Workload]) -> list[Workload]:
    return list({workload.key: workload for workload in workloads}.values())


def _merge_calls(a: list[Workload], b: list[Workload]) -> list[Workload]:
    """Return the workloads of both lists, with summed calls."""
    calls = {workload.key: workload.calls for workload in b}
    summed = [replace(workload, calls=workload.calls + calls.pop(workload.key, 0)) for workload in a]
    return summed + [workload for workload in b if workload.key in calls]
