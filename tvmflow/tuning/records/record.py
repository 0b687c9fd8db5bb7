"""Tuning records: one measured schedule of one workload on one device kind, a line of JSON each.

The log only grows. A process that is killed while it writes leaves at most one torn last line, which is dropped when
the log is read and overwritten by a line break when the log is next written to.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tvmflow.support.errors import StoreError, first_line, from_os_error
from tvmflow.tuning.records.format import (
    COMPILE_ERROR,
    ILLEGAL_SCHEDULE,
    KERNEL_TIMEOUT,
    MAX_LINE_BYTES,
    OK,
    WRONG_OUTPUT,
    checked_fields,
    is_cut_off,
    parse_line,
)

__all__ = [
    "COMPILE_ERROR",
    "ILLEGAL_SCHEDULE",
    "KERNEL_TIMEOUT",
    "OK",
    "UNKNOWN",
    "WRONG_OUTPUT",
    "Clock",
    "TuningRecord",
    "append_record",
    "best_of",
    "merge_records",
    "read_records",
    "record_of",
]
UNKNOWN = ""  # a machine, a device or a network is at fault: nothing is known of the schedule, nothing is recorded
_ALIKE = 0.04  # share by which times differ that are the same but for noise


@dataclass(frozen=True)
class TuningRecord:
    """seconds: one mean per repeat; empty unless status is ok. trace: the schedule as TVM's trace JSON.

    canary_s: what the device's canary took around this measurement, 0 where none ran. flops: of one call, 0 if unknown.
    extents: of the loops of the block that does the work, for cost models. error: what the compiler said, and said
    twice. unit: which device of the kind measured it; build: of that device's system. "" where nobody knows.
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
    error: str = ""
    unit: str = ""
    build: str = ""

    @property
    def proven(self) -> bool:
        """Whether a failure was the schedule's: older versions also recorded what a machine without a compiler
        refused.
        """
        return self.status != COMPILE_ERROR or bool(self.error)

    @property
    def median_s(self) -> float:
        return median(self.seconds) if self.seconds else float("inf")

    def same_toolchain(self, toolchain: dict[str, str]) -> bool:
        return self.toolchain == toolchain


class Clock:
    """Makes the times of several units of one kind comparable: as seconds of the first one, by what their canaries
    take.
    """

    def __init__(self) -> None:
        self._first: TuningRecord | None = None

    def seconds(self, record: TuningRecord) -> float:
        """Return the time of a record; infinity where it failed. Without a canary it is what was measured."""
        if not record.canary_s or not record.seconds:
            return record.median_s
        first = self._first = self._first or record
        if (record.unit, record.build) == (first.unit, first.build):
            return record.median_s
        return record.median_s * first.canary_s / record.canary_s


def append_record(path: Path, record: TuningRecord) -> None:
    """Add one line and bring it to the disk. Raises StoreError where there is no room or no permission."""
    line = (_line(record) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            size = file.tell()
            if size and not _ends_with_line_break(path):
                line = b"\n" + line
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)  # half a line says nothing
                raise
    except OSError as error:
        raise from_os_error(error, "writing the tuning log") from error


def _ends_with_line_break(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_records(path: Path, *, ours: bool = True) -> list[TuningRecord]:
    """Return the records of a log; nothing is changed. Raises StoreError, which names the line that is none.

    ours: a killed process of ours may have torn a line, which is left out; the next record is then in the line below
    it.
    """
    records: list[TuningRecord] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 2):
                number += 1
                record = _parsed(line, path, number, ours=ours)
                records += [] if record is None else [record]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, "reading the tuning log") from error
    return records


def _parsed(line: bytes, path: Path, number: int, *, ours: bool) -> TuningRecord | None:
    """Return the record of a line; None for an empty line and for one that a killed process tore."""
    text = line.strip()
    try:
        return TuningRecord(**parse_line(text)) if text else None
    except ValueError as error:
        if ours and len(text) <= MAX_LINE_BYTES and is_cut_off(text):
            return None
        raise StoreError(
            f"line {number} of {path} is no tuning record: {first_line(error, 200)}",
            "a line of JSON for each record, as this version of tvmflow writes them",
            "remove that line, or bring the log again; nothing was stored or changed",
        ) from error


def record_of(data: object) -> TuningRecord:
    """Return a record of plain values that another process or file gave. Raises ValueError."""
    return TuningRecord(**checked_fields(data))


def best_of(records: list[TuningRecord]) -> dict[str, TuningRecord]:
    """Return workload -> its fastest correct record. Callers pass records of one device kind only.

    A clock that moves between two runs would make the wrong one best: where all records of a workload carry a canary,
    they are compared by how many canaries they took. Of several units only records with a canary count, if there are
    any. Of those that are as fast as the fastest, one that gives rows of the image to threads is taken: in a network
    its input then lies in the cache of the core that reads it.
    """
    groups: dict[str, list[TuningRecord]] = {}
    for record in records:
        if record.status == OK and record.seconds:
            groups.setdefault(record.workload, []).append(record)
    return {workload: _fastest(group) for workload, group in groups.items()}


def _fastest(group: list[TuningRecord]) -> TuningRecord:
    if len({(record.unit, record.build) for record in group if record.unit}) > 1:
        group = [record for record in group if record.canary_s > 0] or group
    by_canary = all(record.canary_s > 0 for record in group)

    def taken(record: TuningRecord) -> float:
        return record.median_s / record.canary_s if by_canary else record.median_s

    ordered = sorted(group, key=taken)
    alike = [record for record in ordered if taken(record) <= (1 + _ALIKE) * taken(ordered[0])]
    return next((r for r in alike if r.knobs.get("rows_first") or r.knobs.get("tiles_first")), ordered[0])


def failures(records: list[TuningRecord]) -> list[dict[str, Any]]:
    """Return the candidates that failed, those of one kernel with one error as one row, the latest of them last."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: r.created):
        if record.status != OK:
            key = (record.workload, record.status, record.error)
            count = rows.pop(key)["count"] if key in rows else 0
            rows[key] = {
                "kernel": record.name,
                "workload": record.workload,
                "template": record.template,
                "status": record.status,
                "error": record.error or "not kept: an older version wrote this record",
                "count": count + 1,
                "knobs": record.knobs,
                "device": record.device_kind,
                "unit": record.unit,
                "when": record.created,
            }
    return list(rows.values())


def merge_records(sources: list[Path], into: Path) -> tuple[int, int]:
    """Append to a log what other logs have and it has not. Returns (added, known already). Raises StoreError before
    that.
    """
    known = {_line(record) for record in read_records(into)}
    records = [record for source in sources for record in read_records(source, ours=False)]
    fresh = {line: record for record in records if (line := _line(record)) not in known}
    for record in fresh.values():
        append_record(into, record)
    return len(fresh), len(records) - len(fresh)


def _line(record: TuningRecord) -> str:
    return json.dumps(asdict(record), sort_keys=True)
