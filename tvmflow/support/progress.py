"""Define progress listeners: (what is being done, number done, total; 0 of 0 if unknown)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

TASK_LINE = "[Task "  # prefix of the text of one tuning measurement
Progress = Callable[[str, int, int], None]
_MOST_STEPS, _MOST_TEXT = 100, 120


def silent(_text: str, _done: int, _total: int) -> None:
    """Ignore progress."""


class StepTimes:
    """A listener that passes progress on and keeps when each step began. Texts that differ in numbers are one step."""

    def __init__(self, listener: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._listener, self._clock, self._started = listener, clock, clock()
        self._kind, self._steps = "", list[tuple[str, float]]()

    def __call__(self, text: str, done: int, total: int) -> None:
        kind = re.sub(r"\d[\d.]*", "#", text.split(": best", maxsplit=1)[0])
        if kind != self._kind and len(self._steps) < _MOST_STEPS:
            self._kind = kind
            self._steps.append((text[:_MOST_TEXT], self.elapsed_s))
        self._listener(text, done, total)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the beginning."""
        return round(self._clock() - self._started, 3)

    @property
    def steps(self) -> tuple[tuple[str, float], ...]:
        """Return the text of each step, and the seconds after which it began."""
        return tuple(self._steps)
