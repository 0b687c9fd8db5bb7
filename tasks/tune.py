"""tune: measure schedules of the model's kernels on the device, and keep the best of each.

In:  the packed model
Out: best.json (one record per workload, and which convolutions to compute by Winograd's algorithm; all that build reads),
     curve.csv, workloads.json (the table of the report). The log of every measurement grows in artifacts/tuning_log/, so
     a run that was stopped goes on where it stopped.
"""

from __future__ import annotations

import csv
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.device import device_limits, session_of
from tasks.run_alone import main
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module
from tvmflow.params import Cell
from tvmflow.stages import Progress, Stage, StageContext
from tvmflow.targets.resolve import from_json, resolve
from tvmflow.toolchain import versions
from tvmflow.tuning.records import TuningRecord
from tvmflow.workspace import Workspace

if TYPE_CHECKING:
    from tvmflow.targets.resolve import ResolvedTarget
    from tvmflow.tuning.search import SearchRules, Task, TuneReport, Watch
    from tvmflow.tuning.workloads import Workload

TOOLS = ("tvm", "ffi", "llvm", "codegen")
_COMPARE_AT_LEAST_S = 60.0
_NOT_FOR_BUILD = ("created", "canary_s")
_SETTINGS = (
    "tuner", "loss", "trials_per_workload", "total_trials", "max_seconds", "early_stopping", "max_workloads",
    "winograd_max_error", "measure_repeats", "measure_min_ms", "replay_slowdown", "seed",
)  # fmt: skip
_LIMITS = (
    "devices", "build_workers", "build_timeout_s", "kernel_timeout_s", "canary_every", "max_drift", "cool_s", "give_up_s",
)  # fmt: skip


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    entry, block = workspace.params.targets[cell.target], workspace.params.tune
    return {
        "target": resolve(entry).to_json(), "device_key": entry.device.key,
        **{name: getattr(block, name) for name in _SETTINGS},
    }  # fmt: skip


def _limits(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    block = workspace.params.tune
    return {
        **device_limits(workspace, cell), "session_timeout_s": block.session_s,
        **{name: getattr(block, name) for name in _LIMITS},
    }  # fmt: skip


def _rules(settings: dict[str, Any], limits: dict[str, Any]) -> SearchRules:
    from tvmflow.tuning.fleet import FleetRules
    from tvmflow.tuning.measure import MeasureRules
    from tvmflow.tuning.search import SearchRules

    local = limits["device"]["transport"] == "local"
    fleet = FleetRules(
        slots=1 if local else limits["devices"], kernel_timeout_s=limits["kernel_timeout_s"],
        session_s=limits["session_timeout_s"], canary_every=limits["canary_every"], max_drift=limits["max_drift"],
        cool_s=limits["cool_s"], give_up_s=limits["give_up_s"],
        measure=MeasureRules(settings["measure_repeats"], settings["measure_min_ms"]),
    )  # fmt: skip
    return SearchRules(
        tuner=settings["tuner"], loss=settings["loss"], trials=settings["trials_per_workload"],
        total_trials=settings["total_trials"], seconds=settings["max_seconds"], early_stopping=settings["early_stopping"],
        seed=settings["seed"], replay_slowdown=settings["replay_slowdown"], build_workers=limits["build_workers"],
        build_timeout_s=limits["build_timeout_s"], overlap=not local, fleet=fleet,
    )  # fmt: skip


def run(context: StageContext) -> dict[str, Any]:
    """Tune every workload; returns how much was measured, how much was known, and what it cost."""
    from tvmflow.building.lower import lower
    from tvmflow.tuning.algorithms import alternatives, choose, settle
    from tvmflow.tuning.search import Journal, TuneReport, tune
    from tvmflow.tuning.whole_network import NetworkComparison
    from tvmflow.tuning.workloads import extract_workloads

    settings, target = context.settings, from_json(context.settings["target"])
    packed = load_module(context.inputs["graph_pack"])
    base = extract_workloads(lower(packed, target.tvm_target()))
    journal = Journal(context.tuning_log, target.cpu_kind, versions(TOOLS))
    report, others, winograd = TuneReport({}), [], {}
    workloads = base[: settings["max_workloads"]]
    if settings["trials_per_workload"]:
        # Whole networks are compared on the device; until build, an accelerator's part there is its slow definition.
        bound = settings["winograd_max_error"] if target.vta is None else {}
        others = alternatives(packed, target.tvm_target(), base, bound)
        workloads = _distinct([*workloads, *(w for other in others for w in other.added)])
        with tempfile.TemporaryDirectory() as folder, _live_table(context.progress) as (watch, progress):
            report = tune(
                workloads, lambda: session_of(context.limits, target), target, _rules(settings, context.limits), journal,
                Path(folder), progress, watch,
            )  # fmt: skip
            winograd = choose(others, report.best)
            if others:
                progress("comparing whole networks", 0, 0)
                with NetworkComparison(
                    packed, target, report.best, journal, Path(folder), lambda: session_of(context.limits, target)
                ) as comparison:
                    # No longer than the search itself: a network of 500 MB takes a minute to build and upload.
                    end = time.monotonic() + max(report.seconds, _COMPARE_AT_LEAST_S)
                    winograd = settle(others, winograd, report.best, comparison.speedup, lambda: time.monotonic() < end)
    else:
        context.tuning_log.parent.mkdir(parents=True, exist_ok=True)
        context.tuning_log.touch()
    used = extract_workloads(lower(packed, target.tvm_target(), winograd=winograd))
    tiles = _tiles(packed, target, context) if target.vta is not None else []
    write_best(context.out / "best.json", target.cpu_kind, used, report.best, winograd, tiles)
    curve = _write_curve(context.out / "curve.csv", used, journal.known())
    (context.out / "workloads.json").write_text(json.dumps(_table(used, report), indent=1), encoding="utf-8")
    counts = {name: getattr(report, name) for name in ("replayed", "lost", "slower", "searched", "duplicates")}
    return {
        "measured": report.measured, "known_before": report.reused, "workloads": len(workloads), **counts, **curve,
        "winograd": len(winograd), **_ledger(report),
    }  # fmt: skip


def _tiles(packed: Any, target: ResolvedTarget, context: StageContext) -> list[dict[str, Any]]:
    """Return the best tile of every convolution on the accelerator; the reference's schedules have tiles of their own."""
    from tvmflow.passes.offload_vta import region_of
    from tvmflow.vta.compiler import conv_workloads
    from tvmflow.vta.tiles import search

    assert target.vta is not None
    if target.vta.mode == "reference":
        return []
    workloads = conv_workloads(target.vta.config, region_of(packed))
    found = []
    for done, (name, job) in enumerate(workloads.values()):
        context.progress(f"searching tiles: {name}", done, len(workloads))
        found.append({**search(target.vta.config, job).to_json(), "layer": name})
    return found


def _distinct(workloads: list[Workload]) -> list[Workload]:
    return list({workload.key: workload for workload in workloads}.values())


def _ledger(report: TuneReport) -> dict[str, Any]:
    """Return what the search cost: device time, speed, failures, and what reuse saved."""
    per_trial = report.seconds / report.measured if report.measured >= 20 else 0.0  # fewer say nothing of a trial
    return {
        "seconds": report.seconds, "device_hours": report.device_s / 3600.0,
        "trials_per_minute": 60.0 * report.measured / report.seconds if report.seconds else 0.0,
        "reused": report.reused, "saved_s": per_trial * report.reused, "failures": dict(sorted(report.failures.items())),
        "devices_lost": report.fleet.lost, "retried": report.fleet.retried, "given_up": report.fleet.given_up,
        "drifts": report.fleet.drifts, "discarded": report.fleet.discarded, "notes": report.fleet.notes[-20:],
    }  # fmt: skip


def _table(used: list[Workload], report: TuneReport) -> list[dict[str, Any]]:
    """Return one row per kernel of the network as it will be built, the costliest first."""
    tasks = {task.workload.key: task for task in report.tasks}
    peak = _fastest(report.tasks) / 1e9
    rows = []
    for workload in used:
        task = tasks.get(workload.key)
        if task is None or not math.isfinite(task.best_s):
            continue
        speed = task.flops / task.best_s / 1e9
        rows.append({
            "name": workload.name, "calls": workload.calls, "template": task.template, "trials": task.trials,
            "default_ms": task.default_s * 1e3 if math.isfinite(task.default_s) else None, "best_ms": task.best_s * 1e3,
            "total_ms": task.best_s * 1e3 * workload.calls, "gflops": speed, "of_best": speed / peak if peak else 0.0,
            "spent_s": task.spent_s,
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["total_ms"])


def _fastest(tasks: list[Task]) -> float:
    """Return the operations per second of the fastest kernel so far, 0 where none was measured."""
    return max((t.flops / t.best_s for t in tasks if t.flops and math.isfinite(t.best_s)), default=0.0)


@contextmanager
def _live_table(progress: Progress) -> Iterator[tuple[Watch | None, Progress]]:
    """Show a table of all workloads while they are tuned, on a terminal only; what is going on is then said below it."""
    if not sys.stderr.isatty():
        yield None, progress
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table

    def render(tasks: list[Task], report: TuneReport) -> Table:
        table = Table(
            title=f"{report.measured} measured, {report.reused} known, {sum(report.failures.values())} failed"
        )
        fastest = _fastest(tasks)
        for name in ("workload", "calls", "default ms", "best ms", "GFLOP/s", "of the fastest", "trials", "device s"):
            table.add_column(name, justify="left" if name == "workload" else "right")
        shown = sorted(tasks, key=lambda t: -t.workload.calls * (t.best_s if math.isfinite(t.best_s) else 0.0))
        for task in shown[:24]:
            known = math.isfinite(task.best_s)
            table.add_row(
                task.workload.name, str(task.workload.calls), f"{task.default_s * 1e3:.3g}" if math.isfinite(task.default_s) else "-",
                f"{task.best_s * 1e3:.3g}" if known else "-",
                f"{task.flops / task.best_s / 1e9:.0f}" if known and task.flops else "-",
                f"{task.flops / task.best_s / fastest:.0%}" if known and task.flops else "-", str(task.trials),
                f"{task.spent_s:.1f}",
            )  # fmt: skip
        return table

    parts: list[Any] = ["", ""]  # the table, and the line below it

    with Live(console=Console(stderr=True), refresh_per_second=2) as live:

        def watch(tasks: list[Task], report: TuneReport) -> None:
            parts[0] = render(tasks, report)
            live.update(Group(*parts))

        def say(text: str, done: int, total: int) -> None:
            parts[1] = f"{text} {done}/{total}" if total else text
            live.update(Group(*parts))

        yield watch, say


def write_best(
    path: Path, device_kind: str, workloads: list[Workload], best: dict[str, TuningRecord], winograd: dict[str, int],
    tiles: list[dict[str, Any]] | None = None,
) -> None:  # fmt: skip
    """Write the small file that build depends on: the best record of each workload, in a fixed order.

    tiles: of the accelerator's workloads, where the target has one.
    """
    records = [
        {key: value for key, value in asdict(best[w.key]).items() if key not in _NOT_FOR_BUILD} | {"calls": w.calls}
        for w in sorted(workloads, key=lambda w: w.key)
        if w.key in best
    ]
    found = {"device_kind": device_kind, "winograd": winograd, "records": records, "tiles": tiles or []}
    path.write_text(json.dumps(found, sort_keys=True, indent=1))


def _write_curve(path: Path, workloads: list[Workload], records: list[TuningRecord]) -> dict[str, float]:
    """Write trial -> summed best time of the network's kernels, from the journal in its order."""
    calls = {w.key: w.calls for w in workloads}
    best: dict[str, float] = {}
    rows: list[tuple[int, dict[str, float]]] = []
    for record in records:
        if record.workload in calls and record.seconds:
            best[record.workload] = min(best.get(record.workload, float("inf")), record.median_s)
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


STAGE = Stage(
    name="tune", module="tasks.tune", settings=_settings, limits=_limits, toolchain=lambda _: TOOLS, run=run,
    inputs={"graph_pack": (IR_NAME, WEIGHTS_NAME)},
)  # fmt: skip

if __name__ == "__main__":
    main("tune")
