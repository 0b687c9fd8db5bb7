"""Exchange of tuning records with MetaSchedule's JSON databases.

Export writes the best record of each workload, so that `MetaScheduleApplyDatabase` and tools around it can use them. Import
reads schedules that MetaSchedule found; they count as those of another toolchain, which `tune` replays and measures itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tvmflow.building.ir_files import IR_NAME, load_module
from tvmflow.building.lower import lower
from tvmflow.errors import StoreError, first_line
from tvmflow.params import Cell
from tvmflow.passes.legalize_convolutions import convolution_keys
from tvmflow.passes.schedule_kernels import replay
from tvmflow.passes.winograd import TILES
from tvmflow.targets.resolve import ResolvedTarget, resolve
from tvmflow.tuning.records import OK, TuningRecord, append_record, best_of, merge_records, read_records
from tvmflow.tuning.traces import trace_json
from tvmflow.tuning.workloads import (
    Workload,
    anchor_extents,
    extract_workloads,
    operations,
    workload_key,
    workload_name,
)  # fmt: skip
from tvmflow.workspace import Workspace

_FILES = ("database_workload.json", "database_tuning_record.json")


def export_metaschedule(
    workloads: list[Workload], best: Mapping[str, TuningRecord], target: ResolvedTarget, folder: Path
) -> int:
    """Write a new database of MetaSchedule; returns the number of records. Raises StoreError where one is already."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    if any((folder / name).exists() for name in _FILES):
        raise StoreError(f"a database in {folder}", "a folder without one", "name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    database = ms.database.JSONDatabase(work_dir=str(folder))
    count = 0
    for workload in workloads:
        record = best.get(workload.key)
        if record is None or record.trace is None:
            continue
        module = tvm.IRModule({"main": workload.function.with_attr("global_symbol", "main")})
        schedule = replay(module["main"], record.trace)
        database.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace, database.commit_workload(module), list(record.seconds), target.tvm_target(),
                ms.arg_info.ArgInfo.from_prim_func(module["main"]),
            )
        )  # fmt: skip
        count += 1
    return count


def import_metaschedule(folder: Path, device_kind: str) -> list[TuningRecord]:
    """Return the correct records of a MetaSchedule database. Raises StoreError when it is none, or of another TVM."""
    from tvm.s_tir import meta_schedule as ms

    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise StoreError(
            f"no {missing[0]} in {folder}", "a database of MetaSchedule", "name the folder that was its work_dir"
        )
    try:
        database = ms.database.JSONDatabase(work_dir=str(folder), allow_missing=False)
        found = list(database.get_all_tuning_records())
    except Exception as error:  # TVM raises its own types for files of other versions, torn lines and plain text
        raise StoreError(
            f"a database that this TVM cannot read: {first_line(error, 200)}", "one of the installed version of TVM",
            "export it with the TVM that wrote it",
        ) from error  # fmt: skip
    records = []
    for entry in found:
        seconds = tuple(float(s) for s in entry.run_secs or ())
        if seconds and max(seconds) < 1e8:  # MetaSchedule writes 1e10 for failures
            records.append(_record(entry, seconds, device_kind))
    return records


def _record(entry: Any, seconds: tuple[float, ...], device_kind: str) -> TuningRecord:
    function = entry.workload.mod["main"]
    return TuningRecord(
        workload=workload_key(function), name=workload_name("main", function), template="metaschedule", knobs={},
        trace=trace_json(entry), seconds=seconds, status=OK, device_kind=device_kind,
        toolchain={"imported": "metaschedule"}, created=datetime.now(UTC).isoformat(timespec="seconds"),
        flops=operations(function), extents=tuple(anchor_extents(function)),
    )  # fmt: skip


def every_form(packed: Any, target: ResolvedTarget) -> list[Workload]:
    """Return the kernels of a network, its convolutions in the direct form and in those of Winograd."""
    keys = convolution_keys(packed)
    forms = [{}, *({key: m for key in keys} for m in TILES if keys)]
    lowered = [lower(packed, target.tvm_target(), winograd=form) for form in forms]
    return list({w.key: w for mod in lowered for w in extract_workloads(mod)}.values())


def exchange(
    workspace: Workspace, cell: Cell, merge: list[Path], export: Path | None, bring: Path | None
) -> dict[str, Any]:
    """Do what `tvmflow records` was asked for and return what a cell's log then holds. Raises StoreError."""
    log = workspace.tuning_log(cell)
    target = resolve(workspace.params.targets[cell.target])
    done: dict[str, Any] = {}
    for source in merge:
        if not source.is_file():
            raise StoreError(f"no file {source}", "a log of tuning records (.jsonl)", "correct the path")
    if merge:
        done["merged"], done["known already"] = merge_records(merge, log)
    if bring is not None:
        found = import_metaschedule(bring, target.cpu_kind)
        known = {(r.workload, str(r.trace)) for r in read_records(log)}
        fresh = [r for r in found if (r.workload, str(r.trace)) not in known]
        for record in fresh:
            append_record(log, record)
        done["imported"] = len(fresh)
    records = read_records(log)
    if export is not None:
        packed = workspace.folder("graph_pack", cell)
        if not (packed / IR_NAME).is_file():
            raise StoreError(
                f"{cell} has no packed model", "a cell that was brought to graph_pack", f"run 'tvmflow run {cell}'"
            )
        workloads = every_form(load_module(packed), target)
        best = best_of([r for r in records if r.device_kind == target.cpu_kind])
        done["exported"] = export_metaschedule(workloads, best, target, export)
    for record in records:
        for name in (f"on {record.device_kind}", f"status {record.status}"):
            done[name] = done.get(name, 0) + 1
    return {**done, "records": len(records), "workloads": len({r.workload for r in records})}
