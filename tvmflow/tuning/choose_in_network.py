"""Choose among schedules and algorithms by what kernels take within the network, where their inputs and weights lie as
they will.

A kernel that is measured alone finds in the caches what a network brings from memory, or from the other core. So the
network is built with default schedules, with the fastest of each kernel alone, and with every tile of Winograd's
algorithm; all are profiled on the device in turns with the first, and each kernel gets the fastest way that was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.passes.kernel.apply_schedules import default_schedule
from tvmflow.tuning.compare_networks import Form, KernelTimes, NetworkComparison
from tvmflow.tuning.records.log import Journal
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.records.traces import trace_json
from tvmflow.tuning.winograd_choice import Alternative, choose

_GAIN = 0.01  # by which another way has to be faster in the network than the one that was the fastest alone
_RANKS = 3  # of a kernel's schedules, by their times alone, that are tried within the network
_NEAR = 1.3  # times the fastest alone, above which none is


@dataclass(frozen=True)
class Chosen:
    """best: workload key -> record; winograd: convolution key -> tile."""

    best: dict[str, TuningRecord]
    winograd: dict[str, int]


def choose_in_network(
    comparison: NetworkComparison,
    ways: list[Alternative],
    best: Mapping[str, TuningRecord],
    counted: dict[str, int],
    may_go_on: Callable[[], bool] = lambda: True,
) -> Chosen | None:
    """Return the fastest schedule of each kernel and tile of each convolution as seen within the network; None where
    the device does not tell what its kernels take.

    counted: tiles as they are chosen where nothing is measured. may_go_on: asked before each network after the first
    two; where not all tiles were tried, they are chosen by the kernels alone.
    """
    default = Form(counted, {})
    tiles = [Form({}, best), *(Form({w.key: m for w in ways if w.m == m}, best) for m in sorted({w.m for w in ways}))]
    forms = [Form(counted, best), *tiles, *(Form(counted, other) for other in _next_best(comparison.journal, best))]
    forms = [form for at, form in enumerate(forms) if form not in forms[:at]]
    unscheduled: KernelTimes = {}
    fastest: dict[str, tuple[float, TuningRecord | None]] = {}  # None: the default
    tried = 0
    for form in forms:
        if tried and not may_go_on():
            break
        reference, times = comparison.kernels(default, form)
        if not reference:
            return None
        unscheduled = unscheduled or reference
        scale = sum(unscheduled.values()) / sum(reference.values())  # the clock of these turns over that of the first
        _keep_faster(fastest, {key: (seconds * scale, form.schedules.get(key)) for key, seconds in times.items()})
        tried += 1
    _keep_faster(fastest, {key: (seconds, None) for key, seconds in unscheduled.items()})
    found = dict(best)
    for workload in extract_workloads(comparison.lowered(default)):
        seconds, record = fastest.get(workload.key, (0.0, None))
        if workload.key in best and seconds:
            found[workload.key] = record or _default_record(workload, seconds, comparison)
    within = {key: replace(found[key], seconds=(seconds,)) for key, (seconds, _) in fastest.items() if key in found}
    has_all_tiles = all(form in forms[:tried] for form in tiles)
    return Chosen(found, choose(ways, within if has_all_tiles else found))


def _keep_faster(
    fastest: dict[str, tuple[float, TuningRecord | None]], found: dict[str, tuple[float, TuningRecord | None]]
) -> None:
    for key, (seconds, record) in found.items():
        if key not in fastest or seconds < fastest[key][0] * (1 - _GAIN):
            fastest[key] = seconds, record


def _next_best(journal: Journal, best: Mapping[str, TuningRecord]) -> list[dict[str, TuningRecord]]:
    """Return the schedules that come after the fastest of each kernel alone, rank by rank; the fastest where no other
    is near.
    """
    by_workload: dict[str, list[TuningRecord]] = {}
    for record in sorted((r for r in journal.known() if r.status == OK), key=lambda record: record.median_s):
        of_kernel = by_workload.setdefault(record.workload, [])
        if record.workload in best and all(
            record.knobs != other.knobs for other in (best[record.workload], *of_kernel)
        ):
            of_kernel.append(record)
    ranks = []
    for rank in range(_RANKS - 1):
        near = {
            key: of_kernel[rank]
            for key, of_kernel in by_workload.items()
            if len(of_kernel) > rank and of_kernel[rank].median_s <= _NEAR * best[key].median_s
        }
        if near:
            ranks.append({**best, **near})
    return ranks


def _default_record(workload: Workload, seconds: float, comparison: NetworkComparison) -> TuningRecord:
    """Return the record of a kernel's default schedule: as it was measured alone, or of what it took within the
    network.
    """
    match, journal = comparison.backend.template_for(workload.function), comparison.journal
    made = default_schedule(workload.function, match)
    assert match and made, "it was built so"
    template, (schedule, knobs) = match[0].name, made
    for record in journal.known():
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
        device_kind=journal.device_kind,
        toolchain=journal.toolchain,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
