"""Test the budget of processor time of a test run."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.cpu_budget import loop_s, used_s, verdict


def test_processor_time_of_ended_children_counts_and_sleep_does_not() -> None:
    before, loop = used_s(), loop_s()
    time.sleep(0.2)
    assert used_s() - before < 40 * loop
    before = used_s()
    subprocess.run([sys.executable, "-c", "for _ in range(2_000_000): pass"], check=True)
    assert used_s() - before > loop


def test_a_run_above_the_budget_warns_and_above_twice_of_it_fails() -> None:
    found = [verdict(loops, 100.0) for loops in (99.0, 100.0, 101.0, 200.0, 201.0)]
    assert found == ["within", "within", "above", "above", "twice"]
