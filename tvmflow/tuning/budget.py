"""How much time tuning has: work that would end beyond it is not begun."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Budget:
    """Seconds from when it is made; 0: as many as it takes. now: a clock."""

    def __init__(self, seconds: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now, self._started = seconds or math.inf, now, now()

    def left_s(self) -> float:
        """Return how many seconds are left, infinity where there is no limit."""
        return max(0.0, self._started + self.seconds - self._now())

    def has(self, seconds: float) -> bool:
        """Say whether work of so many seconds ends within it."""
        left_s = self.left_s()
        return left_s > 0 and left_s >= seconds
