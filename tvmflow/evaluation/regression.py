"""Compare two measurements of one device made at different times, in one machine state.

Each has its own interval, which does not include the variation between processes (addresses, operating system);
`BETWEEN` allows for that. Disturbances make a measurement slower, never faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvmflow.evaluation.machine_state import is_same_state

BETWEEN = 0.01  # relative difference of two measurements of one library, beyond their intervals
_SAME = {
    "device": "different devices",
    "unit": "different units of the device",
    "build": "different builds of the device's system",
}

Verdict = Literal["faster", "slower", "same"]


@dataclass(frozen=True)
class Change:
    """ratio: latency now over latency before, with its interval. verdict: None if undecided; `why` gives the reason."""

    ratio: float | None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.ratio is None or self.low is None or self.high is None:
            return self.why
        text = f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return f"{text}, {self.verdict}" if self.verdict else f"{text}: no verdict ({self.why})"


def change_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> Change:
    """Compare two rows of a cell's history (tvmflow/tracking/mlflow/history.py)."""
    if before["latency_ms"] is None or now["latency_ms"] is None:
        return Change(None, why="no latency")
    ratio = now["latency_ms"] / before["latency_ms"]
    for name, why in _SAME.items():
        if before[name] != now[name]:
            return Change(ratio, why=why)
    if not is_same_state(before["round_trip_ns"], now["round_trip_ns"]):
        return Change(ratio, why="different states of the machine")
    if before["low_ms"] is None or now["low_ms"] is None:
        return Change(ratio, why="no interval was kept")
    low, high = now["low_ms"] / before["high_ms"], now["high_ms"] / before["low_ms"]
    verdict: Verdict = "slower" if low * (1 - BETWEEN) > 1 else "faster" if high * (1 + BETWEEN) < 1 else "same"
    disturbed = now if verdict == "slower" else before if verdict == "faster" else {}
    if disturbed.get("badges"):
        return Change(ratio, low, high, None, disturbed["badges"])
    return Change(ratio, low, high, verdict)


def comparable_before(rows: list[dict[str, Any]], now: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the latest earlier row that was measured on the same unit in the same state; None if there is none."""
    for row in reversed(rows):
        is_like = all(row[name] == now[name] for name in _SAME)
        if is_like and row["latency_ms"] is not None and is_same_state(row["round_trip_ns"], now["round_trip_ns"]):
            return dict(row)
    return None
