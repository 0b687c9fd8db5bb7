"""Define tuning records: one measured schedule of one workload on one device kind, one line of JSON each.

The log is append-only. A process killed while writing leaves at most one truncated last line; it is skipped when the
log is read, and terminated by a line break before the next record is appended.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tvmflow.ir.tir.kernel_schedules import MeasuredSchedule
from tvmflow.support.errors import StoreError, first_line, from_os_error
from tvmflow.tuning.records.format import (
    COMPILE_ERROR,
    ILLEGAL_SCHEDULE,
    KERNEL_TIMEOUT,
    MAX_LINE_BYTES,
    OK,
    WRONG_OUTPUT,
    check_fields,
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
UNKNOWN = ""  # the host, device or network is at fault: nothing is known about the schedule, nothing is recorded
_ALIKE = 0.04  # relative difference of times that may be noise


@dataclass(frozen=True)
class TuningRecord(MeasuredSchedule):
    """A measurement of a schedule.

    canary_s: time of the device's canary around this measurement, 0 without one. flops: per call, 0 if unknown.
    extents: loop extents of the anchor block, for cost models. error: the compiler's message. unit: the device that
    measured it; build: the version of its system. Both are "" if unknown.
    """

    created: str
    canary_s: float = 0.0
    flops: float = 0.0
    extents: tuple[int, ...] = ()
    error: str = ""
    unit: str = ""
    build: str = ""

    @property
    def proven(self) -> bool:
        """Return whether a failure is the schedule's; older versions also recorded failures of hosts without a
        compiler.
        """
        return self.status != COMPILE_ERROR or bool(self.error)

    @property
    def median_s(self) -> float:
        return median(self.seconds) if self.seconds else float("inf")

    def same_toolchain(self, toolchain: dict[str, str]) -> bool:
        return self.toolchain == toolchain


class Clock:
    """Scale the times of several units of one kind to seconds of the first unit, by the times of their canaries."""

    def __init__(self) -> None:
        self._first: TuningRecord | None = None

    def seconds(self, record: TuningRecord) -> float:
        """Return the scaled time of a record, infinity if it failed. Without a canary it is not scaled."""
        if not record.canary_s or not record.seconds:
            return record.median_s
        first = self._first = self._first or record
        if (record.unit, record.build) == (first.unit, first.build):
            return record.median_s
        return record.median_s * first.canary_s / record.canary_s


def append_record(path: Path, record: TuningRecord) -> None:
    """Append one line and flush it to disk. Raises StoreError without disk space or permission."""
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
                file.truncate(size)  # remove a partial line
                raise
    except OSError as error:
        raise from_os_error(error, "writing the tuning log") from error


def _ends_with_line_break(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_records(path: Path, *, ours: bool = True) -> list[TuningRecord]:
    """Return the records of a log, which is not changed. Raises StoreError, which names the invalid line.

    ours: skip a line that one of our processes truncated when it was killed; the next record is on the next line.
    """
    records: list[TuningRecord] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 2):
                number += 1
                record = _parse_record(line, path, number, ours=ours)
                records += [] if record is None else [record]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, "reading the tuning log") from error
    return records


def _parse_record(line: bytes, path: Path, number: int, *, ours: bool) -> TuningRecord | None:
    """Return the record of a line, None for an empty line and for one that a killed process truncated."""
    text = line.strip()
    try:
        return TuningRecord(**parse_line(text)) if text else None
    except ValueError as error:
        if ours and len(text) <= MAX_LINE_BYTES and is_cut_off(text):
            return None
        raise StoreError(
            f"line {number} of {path} is not a tuning record: {first_line(error, 200)}",
            "a line of JSON for each record, as this version of tvmflow writes them",
            "remove that line, or copy the log again; nothing was stored or changed",
        ) from error


def record_of(data: object) -> TuningRecord:
    """Return a record built from plain values of another process or file. Raises ValueError."""
    return TuningRecord(**check_fields(data))


def best_of(records: list[TuningRecord]) -> dict[str, TuningRecord]:
    """Return workload -> its fastest correct record. All records must be of one device kind.

    If all records of a workload have a canary, times are compared in units of the canary, since the clock may change
    between runs. Records of several units are compared only by canary, if there are any with one. Among records that
    are equally fast, one that parallelizes image rows is preferred: in a network, its input is then in the cache of the
    core that reads it.
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

    def cost(record: TuningRecord) -> float:
        return record.median_s / record.canary_s if by_canary else record.median_s

    ordered = sorted(group, key=cost)
    alike = [record for record in ordered if cost(record) <= (1 + _ALIKE) * cost(ordered[0])]
    return next((r for r in alike if r.knobs.get("rows_first") or r.knobs.get("tiles_first")), ordered[0])


def failures(records: list[TuningRecord]) -> list[dict[str, Any]]:
    """Return the failed candidates, latest last; one that failed several times in the same way is one row."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: r.created):
        if record.status != OK:
            knobs = tuple(sorted(record.knobs.items()))
            key = (record.workload, record.template, knobs, record.status, record.error)
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
    """Append the missing records of other logs to a log. Returns (added, already known). Raises StoreError before any
    change.
    """
    known = {_line(record) for record in read_records(into)}
    records = [record for source in sources for record in read_records(source, ours=False)]
    fresh = {line: record for record in records if (line := _line(record)) not in known}
    for record in fresh.values():
        append_record(into, record)
    return len(fresh), len(records) - len(fresh)


def _line(record: TuningRecord) -> str:
    return json.dumps(asdict(record), sort_keys=True)
