"""Exchange tuning records with MetaSchedule's JSON databases.

Export writes the best record of each workload for `MetaScheduleApplyDatabase` and related tools. Import reads schedules
that MetaSchedule found for the kernels of a cell; they count as records of another toolchain, so `tune` replays and
measures them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm

from tvmflow.backends.backend import Backend
from tvmflow.backends.registry import backend_for
from tvmflow.codegen.lower import lower
from tvmflow.config.params import Cell
from tvmflow.config.workspace import Workspace
from tvmflow.ir.relax.serialization import IR_NAME, load_module
from tvmflow.ir.tir.workloads import Workload, extract_workloads
from tvmflow.passes.kernel.apply_schedules import replay
from tvmflow.passes.legalize.convolutions import list_convolution_keys
from tvmflow.passes.legalize.winograd import TILES
from tvmflow.sandbox.process import Policy, memory_for, run_in_sandbox
from tvmflow.support.errors import ModelFileError, StageTimeoutError, StoreError, first_line
from tvmflow.tuning.records.record import (
    OK,
    TuningRecord,
    append_record,
    best_of,
    merge_records,
    read_records,
    record_of,
)

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import IRModule

FILES = ("database_workload.json", "database_tuning_record.json")
_MAX_DATABASE_BYTES, _TIMEOUT_S = 256 << 20, 600.0


def export_metaschedule(
    workloads: list[Workload], best: Mapping[str, TuningRecord], backend: Backend, folder: Path
) -> int:
    """Write a new MetaSchedule database and return its number of records. Raises StoreError if one already exists."""
    from tvm.s_tir import meta_schedule as ms

    if any((folder / name).exists() for name in FILES):
        raise StoreError(f"a database in {folder}", "a folder without one", "choose another folder")
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
                schedule.trace,
                database.commit_workload(module),
                list(record.seconds),
                backend.tvm_target(),
                ms.arg_info.ArgInfo.from_prim_func(module["main"]),
            )
        )
        count += 1
    return count


def import_metaschedule(folder: Path, device_kind: str) -> list[TuningRecord]:
    """Return the successful records of a MetaSchedule database.

    TVM instantiates any object that the files name, so they are read in a sandbox. Raises StoreError if the files are
    no database, belong to another TVM, or contain invalid records.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise StoreError(
            f"no {missing[0]} in {folder}", "a database of MetaSchedule", "give the folder that was its work_dir"
        )
    files = [folder / name for name in FILES]
    size = sum(file.stat().st_size for file in files)
    if size > _MAX_DATABASE_BYTES:
        raise StoreError(f"{size} bytes in {folder}", f"at most {_MAX_DATABASE_BYTES}", "export the best records only")
    policy = Policy(
        _TIMEOUT_S,
        tuple(files),
        memory_bytes=memory_for(*files),
        reply_bytes=_MAX_DATABASE_BYTES,
        what="the database",
    )
    try:
        arguments = {"folder": str(folder.resolve()), "records": FILES[1]}
        entries = run_in_sandbox("tvmflow.tuning.records.metaschedule_reader:read_database", arguments, policy)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return [_record(entry, device_kind, created) for entry in entries]
    except (ModelFileError, StageTimeoutError, ValueError, TypeError) as error:
        raise StoreError(
            f"a database that cannot be read: {first_line(error, 300)}",
            "one that MetaSchedule of the installed version wrote",
            "export it again; nothing was stored",
        ) from error


def _record(entry: object, device_kind: str, created: str) -> TuningRecord:
    """Return a record built from the sandbox's result. Raises ValueError if it is invalid."""
    if not isinstance(entry, dict) or entry.get("trace") is None:
        raise ValueError("an entry that is no schedule")
    ours = {
        "template": "metaschedule",
        "knobs": {},
        "status": OK,
        "device_kind": device_kind,
        "toolchain": {"imported": "metaschedule"},
        "created": created,
    }
    return record_of({**entry, **ours})


def extract_all_variants(packed: IRModule, backend: Backend) -> list[Workload]:
    """Return the kernels of a network, with its convolutions both direct and as Winograd."""
    keys = list_convolution_keys(packed)
    variants = [{}, *({key: m for key in keys} for m in TILES if keys)]
    lowered = [lower(packed, backend, winograd=variant) for variant in variants]
    return list({w.key: w for mod in lowered for w in extract_workloads(mod)}.values())


def exchange(
    workspace: Workspace, cell: Cell, merge: list[Path], export: Path | None, bring: Path | None
) -> dict[str, Any]:
    """Merge, import and export records as `tvmflow records` requests; return a summary of the cell's log. Raises
    StoreError.
    """
    log = workspace.tuning_log(cell)
    backend = backend_for(workspace.params.targets[cell.target])
    workloads = _workloads(workspace, cell, backend) if export is not None or bring is not None else []
    counts: dict[str, Any] = {}
    for source in merge:
        if not source.is_file():
            raise StoreError(f"no file {source}", "a log of tuning records (.jsonl)", "correct the path")
    if merge:
        counts["merged"], counts["known already"] = merge_records(merge, log)
    if bring is not None:
        imported, kernels = import_metaschedule(bring, backend.kernel_kind), {w.key for w in workloads}
        known = {(r.workload, str(r.trace)) for r in read_records(log)}
        usable = [r for r in imported if r.workload in kernels]
        fresh = [r for r in usable if (r.workload, str(r.trace)) not in known]
        for record in fresh:
            append_record(log, record)
        counts["imported"], counts["of other kernels"] = len(fresh), len(imported) - len(usable)
    records = read_records(log)
    if export is not None:
        best = best_of([r for r in records if r.device_kind == backend.kernel_kind])
        counts["exported"] = export_metaschedule(workloads, best, backend, export)
    for record in records:
        measured_by = [f"by unit {record.unit}"] if record.unit else []
        for name in (f"on {record.device_kind}", *measured_by, f"status {record.status}"):
            counts[name] = counts.get(name, 0) + 1
    return {**counts, "records": len(records), "workloads": len({r.workload for r in records})}


def _workloads(workspace: Workspace, cell: Cell, backend: Backend) -> list[Workload]:
    """Return the kernels of a cell. Raises StoreError if it is not packed yet."""
    packed = workspace.folder("graph_pack", cell)
    if not (packed / IR_NAME).is_file():
        raise StoreError(
            f"{cell} has no packed model", "a cell with a finished graph_pack", f"run 'tvmflow run {cell}'"
        )
    return extract_all_variants(load_module(packed, is_packed=True), backend)
