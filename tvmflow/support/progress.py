"""How work tells how far it is: (what is being done, how much is done, of how much; 0 of 0 where that is not known)."""

from __future__ import annotations

from collections.abc import Callable

TASK_LINE = "[Task "  # how the text about one measurement of tuning begins
Progress = Callable[[str, int, int], None]


def silent(_text: str, _done: int, _total: int) -> None:
    """A progress listener that hears nothing."""
