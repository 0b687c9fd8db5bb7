"""Test measurements in many placements in memory, with hidden neighbours: neither a placement nor a neighbour
decides.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from tvmflow.evaluation.interleaved_timing import TimedModel, TurnRules, classify_turns, measure_interleaved, ratio_of
from tvmflow.evaluation.turn_statistics import estimate_time


class Placed:
    """A library that each placement makes faster or slower, by up to 5 %."""

    def __init__(self, name: str, seconds: float, seed: int, placing_s: float = 0.0) -> None:
        self.seconds, self.placing_s, self.count = seconds, placing_s, 0
        self.draw = np.random.default_rng(seed)
        self.contestant = TimedModel(name, self.time_runs, relocate=self.relocate)
        self.factor = self._drawn()

    def _drawn(self) -> float:
        return float(np.exp(0.02 * self.draw.standard_normal()))

    def relocate(self) -> None:
        time.sleep(self.placing_s)
        self.factor, self.count = self._drawn(), self.count + 1

    def time_runs(self, count: int) -> list[float]:
        return [self.seconds * self.factor] * count


def test_measurements_of_many_placements_agree() -> None:
    rules = TurnRules(60, 0.001, 1)
    ratios = []
    for seed in range(40):
        a, b = Placed("a", 1e-5, 2 * seed), Placed("b", 1e-5, 2 * seed + 1)
        turns = measure_interleaved([a.contestant, b.contestant], rules)
        assert a.count == b.count == 14
        ratios.append(ratio_of(classify_turns(turns, 2), "a", "b")[0])
    assert max(one.value for one in ratios) / min(one.value for one in ratios) < 1.06  # of one placement each: 1.15
    assert sum(one.low is not None and one.low > 1.02 for one in ratios) <= 1  # what the gate of a release would refuse


def test_what_is_long_or_slow_to_place_stays_where_it_is() -> None:
    long, slow = Placed("long", 2e-3, 0), Placed("slow", 1e-5, 1, placing_s=0.3)
    measure_interleaved([long.contestant, slow.contestant], TurnRules(30, 0.002, 1))
    assert long.count == 0 and slow.count == 1


def test_a_neighbour_that_nobody_sees_in_half_of_the_turns_moves_nothing() -> None:
    generator = np.random.default_rng(7)
    for share in (0.0, 0.3, 0.55):
        values = np.where(generator.random(60) < share, 1.3, 1.0) * np.exp(0.002 * generator.standard_normal(60))
        assert estimate_time(list(values)).value == pytest.approx(1.0, abs=0.01)
