"""What the stages of a flow say, passed on to whoever listens: the command line's display."""

from __future__ import annotations

from collections.abc import Callable

PREVIEW = "first"  # in place of a stage: what is measured and said before one
# Listener of (cell, stage, text, done, total).
Listener = Callable[[str, str, str, int, int], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def forget(listener: Listener) -> None:
    _listeners.remove(listener)


def tell(cell: str, stage: str, text: str, done: int, total: int) -> None:
    """Tell every listener what a stage says: started, hit, done or failed, or how far it is."""
    for listener in _listeners:
        listener(cell, stage, text, done, total)
