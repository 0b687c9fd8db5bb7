"""Describe the latency of one library beside that of another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    """ratio: latency of B / latency of A (above 1: B is slower), with its confidence interval [low, high].

    For simulated accelerators: the ratio of estimated cycles, which are the same in every run. badges: what disturbed
    the measurement.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    confidence: float
    of: str = "latency"
    badges: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.of != "latency":
            return f"{self.ratio:.4f} of {self.of}"
        return f"{self.ratio:.4f} [{self.low:.4f}, {self.high:.4f}] at {self.confidence:.0%} over {self.rounds} rounds"
