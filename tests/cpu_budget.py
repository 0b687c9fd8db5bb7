"""Measure the processor time of a test run in units of a loop that is timed meanwhile, since machines differ in speed.

Above the budget of pyproject.toml the summary warns, above twice of it the run fails: everyone pays for every test.
"""

from __future__ import annotations

import resource
import time
from statistics import median
from typing import Any

import pytest

_STEPS = 400_000  # of the loop: about 20 ms
_ROUNDS = 5


def loop_s() -> float:
    """Return the processor seconds of the loop: the median of a few runs in this process."""
    times = []
    for _ in range(_ROUNDS):
        begin, total = time.process_time(), 0
        for step in range(_STEPS):
            total ^= step * step
        times.append(time.process_time() - begin)
    return median(times)


def used_s() -> float:
    """Return the processor seconds of this process, and of those that it started and that ended."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


def verdict(loops: float, budget: float) -> str:
    """Return "within", "above" or "twice" the budget."""
    return "within" if loops <= budget else "above" if loops <= 2 * budget else "twice"


class CpuBudget:
    """A plugin of pytest: of each worker where there are some, else of the one process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.began_s = config, loop_s()
        self.seconds, self.loops = 0.0, 0.0

    @property
    def budget(self) -> float:
        return float(self.config.getini("cpu_budget_loops"))

    def _add(self, seconds: float, loop: float) -> None:
        self.seconds += seconds
        self.loops += seconds / loop

    @pytest.hookimpl(optionalhook=True)  # of pytest-xdist
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(*getattr(node, "workeroutput", {}).get("cpu", (0.0, 1.0)))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        loop = (self.began_s + loop_s()) / 2
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output["cpu"] = (used_s(), loop)
            return
        # With workers this process only waits: what its children used is what they reported.
        self._add(time.process_time() if self.config.getoption("numprocesses", None) else used_s(), loop)
        if verdict(self.loops, self.budget) == "twice" and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found = verdict(self.loops, self.budget)
        line = f"{self.seconds:.0f} s of processor time, {self.loops:.0f} loops; the budget is {self.budget:.0f}"
        says = {"within": "", "above": ": above it, make a test cheaper", "twice": ": more than twice of it, refused"}
        terminalreporter.write_line(line + says[found], yellow=found == "above", red=found == "twice")
