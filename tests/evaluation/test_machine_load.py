"""Test the load by other processes: their share, how tvmflow's own processes are recognized, waiting for an idle
machine.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmflow.evaluation.machine_load import CpuReading, foreign_share, process_tree, read_cpu, wait_until_quiet


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_a_quiet_machine_is_waited_for() -> None:
    class Busy:
        def __init__(self, until: float) -> None:
            self.now, self.until, self.busy_s = 0.0, until, 0.0

        def read(self) -> CpuReading:
            return CpuReading(self.now, self.busy_s)

        def sleep(self, seconds: float) -> None:
            self.now += seconds
            self.busy_s += seconds if self.now < self.until else 0.0

    busy = Busy(5.0)
    told: list[float | None] = []
    assert wait_until_quiet(60, 0.1, told.append, busy.read, busy.sleep) and 5 <= busy.now < 8
    assert told[0] == pytest.approx(0.5)
    endless = Busy(1e9)
    assert not wait_until_quiet(10, 0.1, told.append, endless.read, endless.sleep) and endless.now == pytest.approx(10)


def test_a_kernel_that_hides_the_machines_times_is_no_quiet_machine() -> None:
    assert foreign_share(CpuReading(0, 0, {1: 0.0}), CpuReading(1, 0, {1: 2.0}), 2) is None
    assert foreign_share(CpuReading(1, 0), CpuReading(1, 0), 2) is None


@given(st.floats(0, 4), st.floats(0, 4), st.floats(0.01, 100), st.integers(1, 64))
def test_the_foreign_share_is_what_is_left(own: float, others: float, wall: float, processors: int) -> None:
    share = foreign_share(CpuReading(0, 7, {3: 2.0}), CpuReading(wall, 7 + own + others, {3: 2.0 + own}), processors)
    assert share is not None and share == pytest.approx(min(1.0, others / (wall * processors)), abs=1e-9)


def test_a_process_that_spins_is_ours_or_foreign() -> None:
    """Counted in processor seconds, which do not depend on how busy the machine is."""
    spin = (
        "import time\nprint(flush=True)\ninput()\nend = time.process_time() + 0.4\n"
        "while time.process_time() < end: pass\nprint(flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        before = read_cpu()
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = read_cpu()
        assert child.pid in process_tree(os.getpid())
        assert after.used_since(before, {child.pid}) > 0.2
        assert after.used_since(before) >= after.used_since(before, {child.pid})
        child.stdin.close()
