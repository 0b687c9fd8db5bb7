"""Wait for a device that others use: say so at once and then every minute, and do not count it as work."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from tvmflow.support.errors import DeviceBusyError

WAITS = "waits for "  # prefix of the text
_AGAIN_S = 60.0  # between two texts
_POLL_S = 0.2

Found = TypeVar("Found")


def _say_on_terminal(text: str) -> None:
    sys.stderr.write(f"{text}\n")


class Waits:
    """The waits of this process. say: shows a text; on_pause: called with True when its work stands still, since it
    waits for a device and has none, and with False when it goes on.
    """

    def __init__(self) -> None:
        self.say: Callable[[str], None] = _say_on_terminal
        self.on_pause: Callable[[bool], None] = lambda _paused: None
        self._lock = threading.RLock()
        self._waiting = self._held = 0
        self._paused_at: float | None = None
        self._paused_s = 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count one wait within this context."""
        self._count(waiting=1)
        try:
            yield
        finally:
            self._count(waiting=-1)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Count one device in use within this context."""
        self._count(held=1)
        try:
            yield
        finally:
            self._count(held=-1)

    def working_s(self) -> float:
        """Return a monotonic clock that stands still while this process only waits for a device."""
        with self._lock:
            now = time.monotonic()
            paused_s = self._paused_s + (now - self._paused_at if self._paused_at is not None else 0.0)
            return now - paused_s

    def _count(self, waiting: int = 0, held: int = 0) -> None:
        with self._lock:
            self._waiting += waiting
            self._held += held
            paused = self._waiting > 0 and not self._held
            if paused and self._paused_at is None:
                self._paused_at = time.monotonic()
                self.on_pause(True)
            elif not paused and self._paused_at is not None:
                self._paused_s += time.monotonic() - self._paused_at
                self._paused_at = None
                self.on_pause(False)


WAITS_HERE = Waits()


def wait_for(
    what: str,
    take: Callable[[], Found | None],
    held_by: Callable[[], str],
    limit_s: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Found:
    """Call `take` until it returns something. held_by: who has it; limit_s: None for no limit; say: shows the waits, by
    default as this process does.

    Raises DeviceBusyError at the limit.
    """
    found = take()
    if found is not None:
        return found
    tell = say or WAITS_HERE.say
    started = time.monotonic()
    say_at = started
    with WAITS_HERE.waiting():
        while found is None:
            now = time.monotonic()
            if limit_s is not None and now - started >= limit_s:
                raise DeviceBusyError(
                    f"{what} stayed in use for {limit_s:g} s: {held_by()}",
                    "one measurement per device at a time",
                    "wait for it to end, or raise deploy.device_wait_s in params.yaml (null: no limit)",
                )
            if now >= say_at:
                tell(f"{WAITS}{what}, {held_by()}")
                say_at += _AGAIN_S
            time.sleep(_POLL_S if limit_s is None else min(_POLL_S, limit_s))
            found = take()
    tell(f"got {what} after {duration(time.monotonic() - started)}")
    return found


def duration(seconds: float) -> str:
    """Return a duration in the largest unit that fits."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
