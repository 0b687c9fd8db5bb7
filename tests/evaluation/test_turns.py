"""Latency in turns, the load of the machine, and ratios that the rounds support: on clocks of our own, never the machine's."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmflow.evaluation.latency import LatencyRules, Measured, measure_in_turns, of_turns
from tvmflow.evaluation.load import CpuReading, foreign_share, process_tree, read_cpu
from tvmflow.evaluation.turns import LEAST_ROUNDS, Contestant, Turn, TurnRules, advantage, busy_threads, take_turns
from tvmflow.report.tables import shown_advantage, shown_latency, times_faster

RULES = LatencyRules(
    warmup_runs=2, min_runs=30, min_seconds=2.0, max_seconds=30.0, max_spread=0.15, max_foreign_load=0.1
)


class Machine:
    """A machine of two processors whose time passes only while something is measured on it.

    foreign: processors that others keep busy. slow(at): how many times longer a run that begins then takes.
    """

    def __init__(self, foreign: float = 0.0, slow: Callable[[float], float] = lambda _: 1.0) -> None:
        self.now, self.own, self.foreign, self.slow = 0.0, 0.0, foreign, slow

    def library(self, name: str, base_s: float, threads: float = 2.0, noise: float = 0.01) -> Contestant:
        generator = np.random.default_rng(len(name))

        def timed_runs(count: int) -> list[float]:
            times = []
            for _ in range(count):
                times.append(base_s * self.slow(self.now) * math.exp(noise * generator.standard_normal()))
                self.now += times[-1]
                self.own += threads * times[-1]
            return times

        return Contestant(name, timed_runs)

    def read(self) -> CpuReading:
        return CpuReading(self.now, self.own + self.foreign * self.now, {1: self.own})


def _measured(machine: Machine, *bases_s: float) -> Measured:
    contestants = [machine.library(name, base) for name, base in zip(("tvmflow", "peer"), bases_s, strict=True)]
    share = foreign_share
    assert share(CpuReading(0, 0, {}), CpuReading(10, 5, {1: 4}), 2) == pytest.approx(0.05)
    return measure_in_turns(contestants, RULES, 2, machine.read)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_on_a_quiet_machine_latency_and_ratio_are_given() -> None:
    measured = _measured(Machine(), 0.010, 0.015)
    assert measured.latency["tvmflow"].steady and measured.latency["tvmflow"].median_ms == pytest.approx(10, rel=0.01)
    assert measured.latency["tvmflow"].runs >= 30
    shown = measured.advantages["peer"]
    assert shown.times_faster == pytest.approx(1.5, rel=0.02) and shown.low is not None and shown.high is not None
    assert shown.low <= shown.times_faster <= shown.high


def test_a_constant_foreign_load_forbids_every_number() -> None:
    """The spread sees nothing: every run is slow alike."""
    measured = _measured(Machine(foreign=1.0, slow=lambda _: 1.9), 0.010, 0.050)
    latency = measured.latency["tvmflow"]
    assert latency.spread < RULES.max_spread and not latency.steady
    assert latency.reason == "busy machine (others 50%, at most 10%)"
    assert measured.advantages["peer"].times_faster is None and measured.advantages["peer"].reason == latency.reason


def test_a_load_that_falls_on_the_peers_turns_alone_is_seen() -> None:
    machine = Machine()
    ours, peer = machine.library("tvmflow", 0.01), machine.library("peer", 0.01)

    def disturbed(count: int) -> list[float]:
        times = peer.time_runs(count)
        machine.own, machine.foreign = machine.own, machine.foreign
        machine.extra += sum(times)  # type: ignore[attr-defined]
        return times

    machine.extra = 0.0  # type: ignore[attr-defined]

    def read() -> CpuReading:
        plain = machine.read()
        return replace(plain, busy_s=plain.busy_s + machine.extra)  # type: ignore[attr-defined]

    measured = measure_in_turns([ours, replace(peer, time_runs=disturbed)], RULES, 2, read)
    assert measured.latency["tvmflow"].steady
    assert not measured.latency["peer"].steady and "busy machine" in str(measured.advantages["peer"].reason)


def test_a_drift_falls_on_both() -> None:
    measured = _measured(Machine(slow=lambda now: 1.0 + now / 10), 0.010, 0.010)
    assert (
        measured.advantages["peer"].times_faster is None and measured.advantages["peer"].reason == "no difference shown"
    )
    slower = _measured(Machine(slow=lambda now: 1.0 + now / 10), 0.010, 0.012).advantages["peer"]
    assert slower.times_faster == pytest.approx(1.2, rel=0.03)


@pytest.mark.parametrize("period_s", [0.05, 0.7, 3.0])
def test_a_clock_of_two_states_makes_no_ratio(period_s: float) -> None:
    machine = Machine(slow=lambda now: 1.6 if int(now / period_s) % 2 else 1.0)
    measured = _measured(machine, 0.010, 0.010)
    assert measured.advantages["peer"].times_faster is None
    assert not measured.latency["tvmflow"].steady and str(measured.latency["tvmflow"].reason).startswith("unsteady")
    assert shown_latency(measured.latency["tvmflow"].to_json()).startswith("unsteady")


def test_one_slow_round_changes_nothing() -> None:
    measured = _measured(Machine(slow=lambda now: 6.0 if 1.0 < now < 2.2 else 1.0), 0.010, 0.013)
    assert measured.advantages["peer"].times_faster == pytest.approx(1.3, rel=0.03)


def test_too_few_rounds_give_no_ratio() -> None:
    turns = [Turn((0.01,), 0.01)] * (LEAST_ROUNDS - 1)
    assert "rounds" in str(advantage(turns, [Turn((0.02,), 0.02)] * len(turns)).reason)
    ratio = advantage([Turn((0.01,), 0.01)] * LEAST_ROUNDS, [Turn((0.02,), 0.02)] * LEAST_ROUNDS)
    assert ratio.times_faster == pytest.approx(2.0)


@given(st.lists(st.floats(0.5, 2.0), min_size=LEAST_ROUNDS, max_size=20), st.floats(0.2, 5.0))
def test_the_interval_holds_the_ratio_and_turns_round_with_it(drifts: list[float], factor: float) -> None:
    ours = [Turn((d,), d) for d in drifts]
    theirs = [Turn((d * factor,), d * factor) for d in drifts]
    forward, back = advantage(ours, theirs), advantage(theirs, ours)
    if forward.times_faster is None:
        assert factor == pytest.approx(1.0) and back.times_faster is None
    else:
        assert forward.times_faster == pytest.approx(factor) and back.times_faster == pytest.approx(1 / factor)


@given(st.integers(0, 200))
def test_equal_contestants_are_seldom_told_apart(seed: int) -> None:
    """A fixed set of seeds: about one in twenty may be, by what an interval of 95 % means; none by much."""
    noise = np.random.default_rng(seed).normal(0, 0.1, (2, 10))
    ratio = advantage(*([Turn((math.exp(x),), 1.0) for x in row] for row in noise))
    assert ratio.times_faster is None or 0.7 < ratio.times_faster < 1.4


def test_a_peer_on_other_threads_is_caught() -> None:
    turns = [Turn((0.01,) * 20, 0.2, 0.0, 0.2 * 3.8)] * 10
    latency = of_turns(turns, RULES, threads=2)
    assert not latency.steady and latency.reason == "ran on 3.8 threads instead of 2"
    assert of_turns(turns, RULES, threads=4).steady
    assert busy_threads([Turn((0.01,), 0.01)]) is None


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


def test_contestants_take_turns_and_the_order_turns_round() -> None:
    order: list[str] = []

    def runner(name: str) -> Contestant:
        def timed_runs(count: int) -> list[float]:
            order.append(name)
            return [0.01] * count

        return Contestant(name, timed_runs)

    turns = take_turns([runner("a"), runner("b"), runner("c")], TurnRules(4, 0.1, 2), read=None)
    assert order[:6] == ["a", "a", "b", "b", "c", "c"]  # warm-up, and how long a run takes
    assert order[6:] == [*"abc", *"cba", *"abc", *"cba"]
    assert all(len(turn.times_s) == 10 for taken in turns.values() for turn in taken)
    long = take_turns(
        [Contestant("slow", lambda count: [5.0] * count)], TurnRules(10, 0.1, 2, max_seconds=25), read=None
    )
    assert len(long["slow"]) == 3


def test_between_its_turns_a_process_is_stopped() -> None:
    """It replies in its own turns; in those of others the kernel says that it has stopped."""
    count = "import sys\nn = 0\nwhile sys.stdin.readline():\n n += 1\n print(n, flush=True)"
    child = subprocess.Popen(
        [sys.executable, "-c", count], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdin is not None and child.stdout is not None
    answers = child.stdout
    waiting: list[bool] = []

    def ask(runs: int) -> list[float]:
        child.stdin.write(b"\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
        answers.readline()
        return [0.01] * runs

    def other(runs: int) -> list[float]:
        if runs == 1:  # a turn of its own: a stop is told once
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            waiting.append(os.WIFSTOPPED(status))
        return [0.01] * runs

    try:
        take_turns([Contestant("it", ask, child.pid), Contestant("other", other)], TurnRules(1, 0.01, 1, 1), None)
    finally:
        child.kill()
        child.wait()
    assert waiting == [True, True]


def _card(measured: Measured) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(json.dumps({
        "latency": {"compute": measured.latency["tvmflow"].to_json()}, "peers": {"peer": measured.latency["peer"].to_json()},
        "advantages": {name: ratio.to_json() for name, ratio in measured.advantages.items()}, "part": None,
    }))  # fmt: skip
    return card


def test_what_is_printed() -> None:
    shown = _card(_measured(Machine(), 0.010, 0.015))
    assert times_faster(shown, "peer") is not None and shown_advantage(shown, "peer").startswith("1.5")
    same = _card(_measured(Machine(), 0.010, 0.010))
    assert times_faster(same, "peer") is None and shown_advantage(same, "peer") == "no difference shown"
    busy = _card(_measured(Machine(foreign=1.5), 0.010, 0.080))
    assert times_faster(busy, "peer") is None
    assert (
        shown_latency(busy["latency"]["compute"])
        == shown_advantage(busy, "peer")
        == shown_latency(busy["peers"]["peer"])
    )
    assert "75%" in shown_advantage(busy, "peer")
    assert shown_advantage({"advantages": {}}, "peer") == "-"  # of a scorecard from before


def test_the_interval_of_a_median_holds_it_and_narrows_with_the_noise() -> None:
    def found(noise: float) -> tuple[float, float, float]:
        machine = Machine()
        turns = take_turns([machine.library("tvmflow", 0.001, noise=noise)], RULES.turns, machine.read)["tvmflow"]
        latency = of_turns(turns, RULES, 2).to_json()
        return latency["low_ms"], latency["median_ms"], latency["high_ms"]

    quiet, loud = found(0.01), found(0.3)
    assert quiet[0] <= quiet[1] <= quiet[2] and loud[0] <= loud[1] <= loud[2]
    assert quiet[0] == pytest.approx(1.0, rel=0.02) and quiet[2] - quiet[0] < (loud[2] - loud[0]) / 3
    few = of_turns([Turn((0.001,), 0.001)] * (LEAST_ROUNDS - 1), RULES, 0)
    assert few.low_ms is None and few.high_ms is None
