"""Choose schedules and Winograd tiles by the times of the kernels within the network.

A kernel measured alone finds data in the caches that, within the network, comes from memory or from another core. So
the network is built with default schedules, with the fastest schedule of each kernel alone, and with every Winograd
tile. Each build is profiled on the device, interleaved with the first one, and each kernel gets the variant that was
fastest in the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.passes.kernel.apply_schedules import default_schedule
from tvmflow.tuning.compare_networks import KernelTimes, NetworkComparison, NetworkConfig
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.records.traces import trace_json
from tvmflow.tuning.winograd_choice import Alternative, choose_by_kernel_time

_GAIN = 0.01  # least improvement in the network over the schedule that was fastest alone
_RANKS = 3  # schedules per kernel, by their time alone, tried within the network
_NEAR = 1.3  # a schedule slower alone than this factor of the fastest is not tried


@dataclass(frozen=True)
class NetworkChoice:
    """best: workload key -> record; winograd: convolution key -> tile."""

    best: dict[str, TuningRecord]
    winograd: dict[str, int]


def choose_in_network(
    comparison: NetworkComparison,
    alternatives: list[Alternative],
    best: Mapping[str, TuningRecord],
    by_cost: dict[str, int],
    may_go_on: Callable[[], bool] = lambda: True,
) -> NetworkChoice | None:
    """Return the fastest schedule of each kernel and the Winograd tile of each convolution within the network.

    Return None where the device does not report kernel times. by_cost: the tiles chosen without measurement. may_go_on:
    called before each network after the first two; if it returns false before all tiles were tried, tiles are chosen by
    the times of the kernels alone.
    """
    default = NetworkConfig(by_cost, {})
    tiles = [
        NetworkConfig({}, best),
        *(
            NetworkConfig({w.key: m for w in alternatives if w.m == m}, best)
            for m in sorted({w.m for w in alternatives})
        ),
    ]
    forms = [
        NetworkConfig(by_cost, best),
        *tiles,
        *(NetworkConfig(by_cost, other) for other in _next_best(comparison.tuning_log, best)),
    ]
    forms = [form for at, form in enumerate(forms) if form not in forms[:at]]
    default_times: KernelTimes = {}
    fastest: dict[str, tuple[float, TuningRecord | None]] = {}  # None: the default
    count = 0
    for form in forms:
        if count and not may_go_on():
            break
        reference, times = comparison.kernels(default, form)
        if not reference:
            return None
        default_times = default_times or reference
        scale = sum(default_times.values()) / sum(reference.values())  # clock correction by the reference times
        _keep_faster(fastest, {key: (seconds * scale, form.schedules.get(key)) for key, seconds in times.items()})
        count += 1
    _keep_faster(fastest, {key: (seconds, None) for key, seconds in default_times.items()})
    found = dict(best)
    for workload in extract_workloads(comparison.lowered(default)):
        seconds, record = fastest.get(workload.key, (0.0, None))
        if workload.key in best and seconds:
            found[workload.key] = record or _default_record(workload, seconds, comparison)
    within = {key: replace(found[key], seconds=(seconds,)) for key, (seconds, _) in fastest.items() if key in found}
    has_all_tiles = all(form in forms[:count] for form in tiles)
    return NetworkChoice(found, choose_by_kernel_time(alternatives, within if has_all_tiles else found))


def _keep_faster(
    fastest: dict[str, tuple[float, TuningRecord | None]], found: dict[str, tuple[float, TuningRecord | None]]
) -> None:
    for key, (seconds, record) in found.items():
        if key not in fastest or seconds < fastest[key][0] * (1 - _GAIN):
            fastest[key] = seconds, record


def _next_best(tuning_log: TuningLog, best: Mapping[str, TuningRecord]) -> list[dict[str, TuningRecord]]:
    """Return one set of schedules per rank below the fastest of each kernel alone; a kernel without a near one keeps
    the fastest.
    """
    by_workload: dict[str, list[TuningRecord]] = {}
    for record in sorted((r for r in tuning_log.known() if r.status == OK), key=lambda record: record.median_s):
        candidates = by_workload.setdefault(record.workload, [])
        if record.workload in best and all(
            record.knobs != other.knobs for other in (best[record.workload], *candidates)
        ):
            candidates.append(record)
    ranks = []
    for rank in range(_RANKS - 1):
        near = {
            key: candidates[rank]
            for key, candidates in by_workload.items()
            if len(candidates) > rank and candidates[rank].median_s <= _NEAR * best[key].median_s
        }
        if near:
            ranks.append({**best, **near})
    return ranks


def _default_record(workload: Workload, seconds: float, comparison: NetworkComparison) -> TuningRecord:
    """Return the record of a kernel's default schedule: the measured one, or one with its time in the network."""
    match, tuning_log = comparison.backend.template_for(workload.function), comparison.tuning_log
    default = default_schedule(workload.function, match)
    assert match and default, "the network was built with it"
    template, (schedule, knobs) = match[0].name, default
    for record in tuning_log.known():
        if (record.workload, record.template, record.knobs, record.status) == (workload.key, template, knobs, OK):
            return record
    return TuningRecord(
        workload=workload.key,
        name=workload.name,
        template=template,
        knobs=knobs,
        trace=trace_json(schedule),
        seconds=(seconds,),
        status=OK,
        device_kind=tuning_log.device_kind,
        toolchain=tuning_log.toolchain,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
