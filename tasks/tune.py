"""tune: measure schedules of the model's kernels on the device, and keep the best of each.

In:  the packed model
Out: best.json (one record per workload; all that build reads), curve.csv. The log of every measurement grows in
     artifacts/tuning_log/, so a run that was stopped goes on where it stopped.
"""

from __future__ import annotations

import csv
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.device import device_limits, session_of
from tasks.run_alone import main
from tvmflow.building.ir_files import IR_NAME, WEIGHTS_NAME, load_module
from tvmflow.params import Cell
from tvmflow.stages import Stage, StageContext
from tvmflow.targets.resolve import from_json, resolve
from tvmflow.toolchain import versions
from tvmflow.tuning.records import TuningRecord
from tvmflow.workspace import Workspace

if TYPE_CHECKING:
    from tvmflow.tuning.workloads import Workload

TOOLS = ("tvm", "ffi", "llvm")


def _settings(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    entry, block = workspace.params.targets[cell.target], workspace.params.tune
    return {
        "target": resolve(entry).to_json(),
        "device_key": entry.device.key,
        "tuner": block.tuner,
        "trials_per_workload": block.trials_per_workload,
        "early_stopping": block.early_stopping,
        "max_workloads": block.max_workloads,
        "measure_repeats": block.measure_repeats,
        "measure_min_ms": block.measure_min_ms,
        "replay_slowdown": block.replay_slowdown,
        "seed": block.seed,
    }


def _limits(workspace: Workspace, cell: Cell) -> dict[str, Any]:
    block = workspace.params.tune
    kernels = block.trials_per_workload * block.kernel_timeout_s * block.max_workloads
    return {**device_limits(workspace, cell), "session_timeout_s": kernels}


def run(context: StageContext) -> dict[str, Any]:
    """Tune every workload; returns how much was measured and how much was known."""
    from tvmflow.building.lower import lower
    from tvmflow.tuning.measure import MeasureRules
    from tvmflow.tuning.search import Journal, SearchRules, TuneReport, tune
    from tvmflow.tuning.workloads import extract_workloads

    settings, target = context.settings, from_json(context.settings["target"])
    lowered = lower(load_module(context.inputs["graph_pack"]), target.tvm_target())
    workloads = extract_workloads(lowered)[: settings["max_workloads"]]
    journal = Journal(context.tuning_log, target.device_kind, versions(TOOLS))
    before = len(journal.known())
    report = TuneReport({})
    if settings["trials_per_workload"]:
        rules = SearchRules(
            settings["tuner"], settings["trials_per_workload"], settings["early_stopping"], settings["seed"],
            settings["replay_slowdown"], MeasureRules(settings["measure_repeats"], settings["measure_min_ms"]),
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder, session_of(context.limits, target) as session:
            report = tune(workloads, session, target, rules, journal, Path(folder), context.progress)
    else:
        context.tuning_log.parent.mkdir(parents=True, exist_ok=True)
        context.tuning_log.touch()
    write_best(context.out / "best.json", target.device_kind, workloads, report.best)
    curve = _write_curve(context.out / "curve.csv", workloads, journal.known())
    counts = {name: getattr(report, name) for name in ("replayed", "lost", "slower", "searched")}
    return {
        "measured": len(journal.known()) - before, "known_before": before, "workloads": len(workloads), **counts, **curve
    }  # fmt: skip


def write_best(path: Path, device_kind: str, workloads: list[Workload], best: dict[str, TuningRecord]) -> None:
    """Write the small file that build depends on: the best record of each workload, in a fixed order."""
    records = [
        {key: value for key, value in asdict(best[w.key]).items() if key != "created"} | {"calls": w.calls}
        for w in sorted(workloads, key=lambda w: w.key)
        if w.key in best
    ]
    path.write_text(json.dumps({"device_kind": device_kind, "records": records}, sort_keys=True, indent=1))


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
