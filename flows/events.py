"""Forward events of a flow's stages to listeners, such as the command line's display."""

from __future__ import annotations

from collections.abc import Callable

PREVIEW = "first"  # name of the preview in place of a stage
# Listener of (cell, stage, text, done, total).
Listener = Callable[[str, str, str, int, int], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def forget(listener: Listener) -> None:
    _listeners.remove(listener)


def tell(cell: str, stage: str, text: str, done: int, total: int) -> None:
    """Send an event of a stage to every listener: started, hit, done, restored, failed, or its progress."""
    for listener in _listeners:
        listener(cell, stage, text, done, total)
