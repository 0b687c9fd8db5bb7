"""Read a MetaSchedule database with TVM's own reader, which instantiates every object the files name.

Runs in a sandbox only, since a damaged file can crash the process. PyTorch is blocked, since TVM would import it and
take four times as long to start.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tvmflow.support.errors import StoreError, first_line

sys.modules["torch"] = None  # type: ignore[assignment]
_FAILED_S = 1e8  # MetaSchedule writes 1e10 s for failures


def read_database(folder: str, records: str) -> list[dict[str, Any]]:
    """Return the successful records as plain values. records: the name of their file. Raises StoreError."""
    from tvm.s_tir import meta_schedule as ms

    from tvmflow.schedules.intrinsics.registration import register_all_in

    try:
        text = Path(folder, records).read_text(encoding="utf-8")
        register_all_in(text)
        database = ms.database.JSONDatabase(work_dir=folder, allow_missing=False)
        entries = list(database.get_all_tuning_records())
        return [
            _plain(entry) for entry in entries if max(map(float, entry.run_secs or ()), default=_FAILED_S) < _FAILED_S
        ]
    except Exception as error:  # TVM raises its own types for files of other versions, torn lines and plain text
        raise StoreError(
            f"a database that this TVM cannot read: {first_line(error, 200)}",
            "one of the installed version of TVM",
            "export it with the TVM that wrote it",
        ) from error


def _plain(entry: Any) -> dict[str, Any]:
    from tvmflow.ir.tir.workloads import anchor_extents, operations, workload_key, workload_name
    from tvmflow.tuning.records.traces import trace_json

    function = entry.workload.mod["main"]
    return {
        "workload": workload_key(function),
        "name": workload_name("main", function),
        "trace": trace_json(entry),
        "seconds": [float(s) for s in entry.run_secs],
        "flops": operations(function),
        "extents": anchor_extents(function),
    }
