"""Convert traces of schedules to plain JSON, which another version of TVM can replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmflow.ir.tvm_compat import Schedule


def trace_json(schedule: Schedule) -> Any:
    """Return a schedule's trace as plain lists, numbers and strings."""
    return _plain(schedule.trace.as_json())


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return value
    if hasattr(value, "value"):
        return _plain(value.value)
    return [_plain(item) for item in value]
