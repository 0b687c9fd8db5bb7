"""Write the results of tuning: best schedules for build, the curve, the kernel table, and the cost."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from tvmflow.ir.tir.kernel_schedules import BestSchedule
from tvmflow.ir.tir.workloads import Workload, least_bytes, multiplied
from tvmflow.tuning.records.origins import ORIGINS
from tvmflow.tuning.records.record import Clock, TuningRecord
from tvmflow.tuning.search.state import TuneReport, fastest_kernel

_ENOUGH_TRIALS = 20  # fewer give no estimate of the time per trial


def best_schedules(workloads: list[Workload], best: dict[str, TuningRecord]) -> tuple[BestSchedule, ...]:
    """Return the best record of each workload in a fixed order, as build reads it."""
    names = [one.name for one in fields(BestSchedule) if one.name != "calls"]
    return tuple(
        BestSchedule(**{name: getattr(best[w.key], name) for name in names}, calls=w.calls)
        for w in sorted(workloads, key=lambda w: w.key)
        if w.key in best
    )


def write_curve(path: Path, workloads: list[Workload], records: list[TuningRecord]) -> dict[str, float]:
    """Write trial -> sum of the best kernel times, in the order of the log. Returns the first and last sum."""
    calls, clock = {w.key: w.calls for w in workloads}, Clock()
    best: dict[str, float] = {}
    rows: list[tuple[int, dict[str, float]]] = []
    for record in records:
        if record.workload in calls and record.seconds:
            best[record.workload] = min(best.get(record.workload, float("inf")), clock.seconds(record))
            rows.append((len(rows) + 1, dict(best)))
    full: dict[str, float] = {}
    for _, state in rows:  # kernels not yet reached count with their first (default) time
        for key, seconds in state.items():
            full.setdefault(key, seconds)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "kernels_ms"])
        total = 0.0
        for trial, state in rows:
            total = sum(state.get(key, full[key]) * calls[key] for key in full)
            writer.writerow([trial, f"{total * 1e3:.6f}"])
    default = sum(full[key] * calls[key] for key in full)
    return {"default_kernels_ms": default * 1e3, "best_kernels_ms": total * 1e3 if rows else 0.0}


def write_kernels(path: Path, used: list[Workload], report: TuneReport) -> dict[str, int]:
    """Write one row per kernel of the network that will be built, the most expensive first. Returns origin -> number of
    kernels.
    """
    searches = {search.workload.key: search for search in report.searches}
    peak = fastest_kernel(report.searches) / 1e9
    rows = []
    for workload in used:
        search = searches.get(workload.key)
        if search is None or not math.isfinite(search.best_s):
            continue
        speed = search.flops / search.best_s / 1e9
        rows.append(
            {
                "name": workload.name,
                "key": workload.key,
                "calls": workload.calls,
                "template": search.template,
                "trials": search.trials,
                "default_ms": search.default_s * 1e3 if math.isfinite(search.default_s) else None,
                "best_ms": search.best_s * 1e3,
                "total_ms": search.best_s * 1e3 * workload.calls,
                "gflops": speed,
                "of_best": speed / peak if peak else 0.0,
                "spent_s": search.spent_s,
                "flops": search.flops,
                "nbytes": least_bytes(workload.function),
                "dtype": multiplied(workload.function),
                "origin": search.origin,
                "before_ms": search.before_s * 1e3 or None,
            }
        )
    path.write_text(json.dumps(sorted(rows, key=lambda row: -row["total_ms"]), indent=1), encoding="utf-8")
    return {origin: sum(row["origin"] == origin for row in rows) for origin in ORIGINS}


def summarize_cost(report: TuneReport) -> dict[str, Any]:
    """Return the statistics of the search: device time, throughput, failures, and the time saved by reuse."""
    per_trial = report.seconds / report.measured if report.measured >= _ENOUGH_TRIALS else 0.0
    counts = {name: getattr(report, name) for name in ("replayed", "lost", "slower", "searched", "duplicates")}
    return {
        "stopped": report.stopped,
        "promised_per_minute": report.promised,
        "measured": report.measured,
        "known_before": report.reused,
        **counts,
        "seconds": report.seconds,
        "device_hours": report.device_s / 3600.0,
        "trials_per_minute": 60.0 * report.measured / report.seconds if report.seconds else 0.0,
        "reused": report.reused,
        "saved_s": per_trial * report.reused,
        "failures": dict(sorted(report.failures.items())),
        "units": dict(sorted(report.units.items())),
        "devices_lost": report.device_pool.lost,
        "retried": report.device_pool.retried,
        "given_up": report.device_pool.given_up,
        "drifts": report.device_pool.drifts,
        "discarded": report.device_pool.discarded,
        "notes": report.device_pool.notes[-20:],
    }
