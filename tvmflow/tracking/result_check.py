"""Compare the tables in git with the measurements in MLflow: what changed beyond its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmflow.evaluation.regression import change_between
from tvmflow.tracking.result_tables import ResultRow, ResultTable

_LIMITS = {"memory_bytes": 0.10, "library_bytes": 0.02, "error": 1.0}  # relative differences that count


@dataclass(frozen=True)
class Finding:
    """A difference between a table and the measurements. fails: it is one beyond the interval, or a missing row."""

    cell: str
    device: str
    text: str
    fails: bool

    def __str__(self) -> str:
        return f"{self.cell} on {self.device}: {self.text}" if self.device else f"{self.cell}: {self.text}"


def differences(old: ResultRow, new: ResultRow, max_accuracy_drop: float) -> list[Finding]:
    """Return what changed from a row to another of the same cell and kind of device."""
    found = []
    change = change_between(_as_measurement(old), _as_measurement(new))
    if change.verdict in ("slower", "faster"):
        found.append(f"latency {old.latency_ms:g} -> {new.latency_ms:g} ms, ratio {change}")
    elif (old.latency_ms is None) != (new.latency_ms is None):
        found.append(f"latency {_shown(old.latency_ms)} -> {_shown(new.latency_ms)} ms")
    if (old.accuracy is None) != (new.accuracy is None) or (
        old.accuracy is not None and new.accuracy is not None and abs(new.accuracy - old.accuracy) > max_accuracy_drop
    ):
        found.append(f"accuracy {_shown(old.accuracy)} -> {_shown(new.accuracy)}")
    for name, limit in _LIMITS.items():
        a, b = getattr(old, name), getattr(new, name)
        if a and b and max(a, b) > min(a, b) * (1 + limit):
            found.append(f"{name.removesuffix('_bytes')} {a:g} -> {b:g}")
    return [Finding(new.cell, new.device, text, fails=True) for text in found]


def notes(old: ResultRow, new: ResultRow) -> list[Finding]:
    """Return what else differs: another library, other tools."""
    found = []
    if (old.library_sha256, old.network_sha256) != (new.library_sha256, new.network_sha256):
        found.append(f"library {old.library_sha256[:12]} -> {new.library_sha256[:12]}")
    for name in sorted(old.tools.keys() | new.tools.keys()):
        if old.tools.get(name) != new.tools.get(name):
            found.append(f"{name} {old.tools.get(name, 'absent')} -> {new.tools.get(name, 'absent')}")
    return [Finding(new.cell, new.device, text, fails=False) for text in found]


def check_table(table: ResultTable, measured: Sequence[ResultRow], max_accuracy_drop: float) -> list[Finding]:
    """Return the differences between a table and what was measured. A cell in quarantine fails nothing until its
    quarantine is over, which does.
    """
    held = {one.cell: one for one in table.quarantine if not one.is_over()}
    known = {row.key: row for row in table.rows}
    found = [
        Finding(one.cell, "", f"its quarantine was over on {one.until}: {one.reason} ({one.issue})", fails=True)
        for one in table.quarantine
        if one.is_over()
    ]
    for new in measured:
        if new.key not in known:
            found.append(Finding(new.cell, new.device, "measured, and not in the table", fails=new.cell not in held))
            continue
        for one in differences(known[new.key], new, max_accuracy_drop):
            found.append(
                Finding(one.cell, one.device, f"{one.text} (in quarantine)", fails=False) if one.cell in held else one
            )
        found += notes(known[new.key], new)
    return found


def updated(table: ResultTable, measured: Sequence[ResultRow], max_accuracy_drop: float) -> ResultTable:
    """Return the table with what was measured. A row stays as it is while only noise differs, so that a slow creep adds
    up to a change; rows that were measured elsewhere stay too.
    """
    rows = {row.key: row for row in table.rows}
    for new in measured:
        old = rows.get(new.key)
        if old is None or differences(old, new, max_accuracy_drop) or notes(old, new):
            rows[new.key] = new
    return table.model_copy(update={"rows": tuple(rows[key] for key in sorted(rows))})


def _as_measurement(row: ResultRow) -> dict[str, Any]:
    same = {"device": row.device, "unit": "", "build": ""}
    numbers = {name: getattr(row, name) for name in ("latency_ms", "low_ms", "high_ms", "round_trip_ns", "badges")}
    return {**same, **numbers}


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
