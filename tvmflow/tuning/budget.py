"""Limit the time of tuning: work that would not finish in time is not started."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Budget:
    """A time limit in seconds from construction; 0 means no limit. now: the clock."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now, self._started = seconds or math.inf, now, now()

    def left_s(self) -> float:
        """Return the remaining seconds, infinity without a limit."""
        return max(0.0, self._started + self.seconds - self._now())

    def has(self, seconds: float) -> bool:
        """Return whether work of this many seconds fits into the remaining time."""
        left_s = self.left_s()
        return left_s > 0 and left_s >= seconds
