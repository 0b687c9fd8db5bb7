"""Tuning records: one measured schedule of one workload on one device kind, a line of JSON each.

The log only grows. A process that is killed while it writes leaves at most one torn last line, which is dropped when
the log is read and overwritten by a line break when the log is next written to.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

OK, COMPILE_ERROR, WRONG_ANSWER, KERNEL_TIMEOUT = "ok", "compile_error", "wrong_answer", "kernel_timeout"


@dataclass(frozen=True)
class TuningRecord:
    """seconds: one mean per repeat; empty unless status is ok. trace: the schedule as TVM's trace JSON."""

    workload: str
    name: str
    template: str
    knobs: dict[str, int]
    trace: Any
    seconds: tuple[float, ...]
    status: str
    device_kind: str
    toolchain: dict[str, str]
    created: str

    @property
    def median_s(self) -> float:
        return median(self.seconds) if self.seconds else float("inf")

    def same_toolchain(self, toolchain: dict[str, str]) -> bool:
        return self.toolchain == toolchain


def append_record(path: Path, record: TuningRecord) -> None:
    """Add one line and bring it to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(asdict(record), sort_keys=True) + "\n"
    with path.open("ab") as file:
        if file.tell() and not _ends_with_line_break(path):
            file.write(b"\n")
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def _ends_with_line_break(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_records(path: Path) -> list[TuningRecord]:
    """Return every whole record of a log; torn or foreign lines are left out, not changed."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().split(b"\n"):
        try:
            data = json.loads(line)
            found.append(TuningRecord(**{**data, "seconds": tuple(data["seconds"])}))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def best_of(records: list[TuningRecord]) -> dict[str, TuningRecord]:
    """Return workload -> its fastest correct record. Callers pass records of one device kind only."""
    best: dict[str, TuningRecord] = {}
    for record in records:
        if record.status == OK and record.median_s < best.get(record.workload, record).median_s + (
            0.0 if record.workload in best else 1.0
        ):
            best[record.workload] = record
    return best
