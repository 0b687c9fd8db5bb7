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

OK, ILLEGAL_SCHEDULE, COMPILE_ERROR = "ok", "illegal_schedule", "compile_error"
WRONG_ANSWER, KERNEL_TIMEOUT = "wrong_answer", "kernel_timeout"
_ALIKE = 0.04  # share by which times differ that are the same but for noise


@dataclass(frozen=True)
class TuningRecord:
    """seconds: one mean per repeat; empty unless status is ok. trace: the schedule as TVM's trace JSON.

    canary_s: what the device's canary took around this measurement, 0 where none ran. flops: of one call, 0 if unknown.
    extents: of the loops of the block that does the work, for cost models.
    """

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
    canary_s: float = 0.0
    flops: float = 0.0
    extents: tuple[int, ...] = ()

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
            tuples = {"seconds": tuple(data["seconds"]), "extents": tuple(data.get("extents", ()))}
            found.append(TuningRecord(**{**data, **tuples}))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def best_of(records: list[TuningRecord]) -> dict[str, TuningRecord]:
    """Return workload -> its fastest correct record. Callers pass records of one device kind only.

    A clock that moves between two runs would make the wrong one best: where all records of a workload carry a canary, they
    are compared by how many canaries they took. Of those that are as fast as the fastest, one that gives rows of the image
    to threads is taken: in a network its input then lies in the cache of the core that reads it.
    """
    groups: dict[str, list[TuningRecord]] = {}
    for record in records:
        if record.status == OK and record.seconds:
            groups.setdefault(record.workload, []).append(record)
    return {workload: _fastest(group) for workload, group in groups.items()}


def _fastest(group: list[TuningRecord]) -> TuningRecord:
    by_canary = all(record.canary_s > 0 for record in group)

    def taken(record: TuningRecord) -> float:
        return record.median_s / record.canary_s if by_canary else record.median_s

    ordered = sorted(group, key=taken)
    alike = [record for record in ordered if taken(record) <= (1 + _ALIKE) * taken(ordered[0])]
    return next((r for r in alike if r.knobs.get("rows_first") or r.knobs.get("tiles_first")), ordered[0])


def merge_records(sources: list[Path], into: Path) -> tuple[int, int]:
    """Append to a log what other logs have and it has not. Returns (added, known already)."""
    known = {json.dumps(asdict(record), sort_keys=True) for record in read_records(into)}
    added = skipped = 0
    for source in sources:
        for record in read_records(source):
            line = json.dumps(asdict(record), sort_keys=True)
            if line in known:
                skipped += 1
                continue
            known.add(line)
            append_record(into, record)
            added += 1
    return added, skipped
