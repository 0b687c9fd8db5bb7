"""Choose schedules without a device: rank the most promising candidates by the static cost model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tvmflow.backends.backend import Backend
from tvmflow.ir.tir.kernel_schedules import ESTIMATED
from tvmflow.ir.tir.workloads import Workload, anchor_extents, operations
from tvmflow.schedules.registry import Knobs
from tvmflow.support.progress import Progress
from tvmflow.tuning.budget import Budget
from tvmflow.tuning.measure.build_pool import BuildPool, Built
from tvmflow.tuning.records.log import TuningLog
from tvmflow.tuning.records.record import OK, TuningRecord
from tvmflow.tuning.rules import SearchRules

# Candidates per workload that are compiled for ranking; half of them are the first ones of the template.
MAX_COMPILED = 32


def select_to_compile(count: int) -> list[int]:
    """Return the indices of the candidates to compile: the first ones, and others at equal distances."""
    first = min(count, MAX_COMPILED // 2)
    step = max(1, (count - first) // (MAX_COMPILED - MAX_COMPILED // 2))
    return [*range(first), *range(first, count, step)][:MAX_COMPILED]


def order_by_estimate(
    pool: BuildPool, workload: Workload, template: str, candidates: Sequence[Knobs]
) -> list[tuple[float, int, Built]]:
    """Return (estimated seconds, index, build) of the compiled candidates, the fastest first.

    Empty if the model does not cover the kernel. Raises ToolchainError where this machine cannot build.
    """
    futures = [
        (at, pool.build(workload, template, candidates[at], estimate=True)) for at in select_to_compile(len(candidates))
    ]
    built = [(at, future.result()) for at, future in futures]
    return sorted(
        ((one.estimate_s, at, one) for at, one in built if one.status == OK and one.estimate_s is not None),
        key=lambda found: found[:2],
    )


def estimate_workloads(
    workloads: list[Workload],
    backend: Backend,
    rules: SearchRules,
    tuning_log: TuningLog,
    folder: Path,
    progress: Progress,
    budget: Budget,
) -> dict[str, TuningRecord]:
    """Return workload key -> record of the schedule that the model ranks first, as far as the budget allows.

    Raises ToolchainError where this machine cannot build.
    """
    best: dict[str, TuningRecord] = {}
    took_s = 0.0
    with BuildPool(rules.limits.build_workers, backend.target, folder, rules.limits.build_timeout_s) as pool:
        for done, workload in enumerate(workloads):
            if not budget.has(took_s):
                break
            progress(f"estimating {workload.name}", done, len(workloads))
            started_s = time.monotonic()
            match = backend.template_for(workload.function)
            found = order_by_estimate(pool, workload, match[0].name, match[1]) if match else []
            took_s = max(took_s, time.monotonic() - started_s)
            if not match or not found:
                continue
            seconds, index, built = found[0]
            best[workload.key] = TuningRecord(
                workload=workload.key,
                name=workload.name,
                template=match[0].name,
                knobs=match[1][index],
                trace=built.trace,
                seconds=(seconds,),
                status=ESTIMATED,
                device_kind=tuning_log.device_kind,
                toolchain=tuning_log.toolchain,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                flops=operations(workload.function),
                extents=tuple(anchor_extents(workload.function)),
            )
    return best
