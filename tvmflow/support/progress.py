"""Define progress listeners: (what is being done, number done, total; 0 of 0 if unknown)."""

from __future__ import annotations

from collections.abc import Callable

TASK_LINE = "[Task "  # prefix of the text of one tuning measurement
Progress = Callable[[str, int, int], None]


def silent(_text: str, _done: int, _total: int) -> None:
    """Ignore progress."""
