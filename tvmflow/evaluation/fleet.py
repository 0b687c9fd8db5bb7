"""Compare cells at two moments, each on its own device, and tell what all devices share from one that is sick.

Rows are measurements as in tvmflow/tracking/mlflow/history.py. Each unit is compared with itself only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from tvmflow.evaluation.machine_state import is_same_state
from tvmflow.evaluation.regression import change_between

Row = Mapping[str, Any]
Cause = Literal["fleet", "unit", "alone", ""]

NEWEST = 8  # measurements on one unit among which those of one library in one state are looked for
_POOLED = 5  # the range of five medians contains the true one in 94 of 100 cases
_GROWTH = {"memory_bytes": 0.10, "library_bytes": 0.05}  # more is worse; memory varies between runs
_NAMES = {"memory_bytes": "memory", "library_bytes": "library"}


@dataclass(frozen=True)
class UnitChange:
    """A cell on one unit at two moments. verdict: of the latency: slower, faster, same, or why there is none.

    worse: all that got worse, as text. changed: what differs: TVM, library, the device's system. cause: of what got
    worse: `fleet`: every unit of this kind that was compared, `unit`: this one and not the others, `alone`: no other
    unit was compared.
    """

    cell: str
    device: str
    unit: str
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    before: Mapping[str, Any]
    now: Mapping[str, Any]
    worse: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    cause: Cause = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "worse": list(self.worse), "changed": list(self.changed)}


def newest_of_each(rows: Sequence[Row], count: int = 1) -> dict[tuple[str, str, str], list[Row]]:
    """Return (cell, device, unit) -> its newest measurements, oldest first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["cell"], row["device"], row["unit"]), []).append(row)
    return {group: of_unit[-count:] for group, of_unit in groups.items()}


def changes_of_units(before: Sequence[Row], now: Sequence[Row], max_accuracy_drop: float) -> list[UnitChange]:
    """Compare the newest measurements of two moments, unit by unit; units without one of each are left out."""
    old, new = newest_of_each(before, NEWEST), newest_of_each(now, NEWEST)
    found = [_change(old[group], new[group], max_accuracy_drop) for group in sorted(old.keys() & new.keys())]
    return [_with_cause(one, found) for one in found if one is not None]


def _change(old: list[Row], new: list[Row], max_accuracy_drop: float) -> UnitChange | None:
    b = _pooled(new)
    like = [row for row in old if is_same_state(row["round_trip_ns"], b["round_trip_ns"])]
    a = _pooled(like or old)
    if old[-1]["run_id"] == new[-1]["run_id"]:
        return None  # nothing was measured since
    change = change_between(a, {**b, "build": a["build"]})  # an update of the system is a change like another
    worse = [f"latency {change}"] if change.verdict == "slower" else []
    accuracy = a["accuracy_share"], b["accuracy_share"]
    if None not in accuracy and accuracy[1] < accuracy[0] - max_accuracy_drop:
        worse.append(f"accuracy {accuracy[0]:.2%} -> {accuracy[1]:.2%}")
    for name, growth in _GROWTH.items():
        if a[name] and b[name] and b[name] > a[name] * (1 + growth):
            worse.append(f"{_NAMES[name]} {a[name]:,.0f} -> {b[name]:,.0f} bytes")
    changed = [f"TVM {a['tvm']} -> {b['tvm']}"] if a["tvm"] != b["tvm"] else []
    changed += ["library"] if a["sha256"] != b["sha256"] else []
    changed += [f"system {a['build']} -> {b['build']}"] if a["build"] != b["build"] else []
    return UnitChange(
        b["cell"],
        b["device"],
        b["unit"],
        change.verdict or f"no verdict ({change.why})",
        change.ratio,
        change.low,
        change.high,
        _shown(a),
        _shown(b),
        tuple(worse),
        tuple(changed),
    )


def _pooled(rows: list[Row]) -> dict[str, Any]:
    """Return the newest measurement, or the median of those of its library in its state, with their range.

    A single interval does not include what differs between processes, and may be wide; five measurements show both.
    """
    quiet = [row for row in rows if not row["badges"] and row["latency_ms"] is not None] or rows
    last = quiet[-1]
    alike = [
        row
        for row in quiet
        if all(row[name] == last[name] for name in ("sha256", "tvm", "build"))
        and is_same_state(row["round_trip_ns"], last["round_trip_ns"])
        and row["latency_ms"] is not None
    ]
    if len(alike) < _POOLED:
        return dict(last)
    medians = [row["latency_ms"] for row in alike[-_POOLED:]]  # the range of more grows, and hides a step
    return {**last, "latency_ms": median(medians), "low_ms": min(medians), "high_ms": max(medians)}


def _shown(row: Row) -> dict[str, Any]:
    names = ("when", "tvm", "library", "latency_ms", "low_ms", "high_ms", "accuracy_share", "run_id")
    return {name: row[name] for name in names}


def _with_cause(one: UnitChange, found: Sequence[UnitChange | None]) -> UnitChange:
    if not one.worse:
        return one
    others = [
        other
        for other in found
        if other is not None
        and (other.cell, other.device) == (one.cell, one.device)
        and other.unit != one.unit
        and (other.worse or other.verdict in ("same", "faster"))
    ]
    cause: Cause = "alone" if not others else "fleet" if all(other.worse for other in others) else "unit"
    return replace(one, cause=cause)


def suspects(found: Sequence[UnitChange]) -> list[str]:
    """Return a sentence for each unit that alone got worse, and for each kind of device all units of which did."""
    lines = []
    for device, unit in dict.fromkeys((one.device, one.unit) for one in found if one.cause == "unit"):
        of_unit = [one for one in found if (one.device, one.unit) == (device, unit)]
        count = sum(one.cause == "unit" for one in of_unit)
        lines.append(
            f"unit {unit or '(unknown)'} of {device} got worse in {count} of its {len(of_unit)} cells, other units did "
            "not: look at this device"
        )
    for device in dict.fromkeys(one.device for one in found if one.cause == "fleet"):
        cells = dict.fromkeys(one.cell for one in found if one.device == device and one.cause == "fleet")
        changed = dict.fromkeys(
            what for one in found if one.device == device and one.cause == "fleet" for what in one.changed
        )
        lines.append(
            f"every unit of {device} got worse in {', '.join(cells)}: look at what changed for all of them"
            + (f" ({', '.join(changed)})" if changed else "")
        )
    return lines
