"""Test interleaved timing, machine load and ratios over rounds on simulated clocks."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.scorecards import latency_by_part, scorecard
from tvmflow.evaluation.comparison import compare_libraries
from tvmflow.evaluation.interleaved_timing import TimedModel, Turn, TurnRules, busy_threads, measure_interleaved
from tvmflow.evaluation.latency import Latency, LatencyRules, Measured, measure_latencies, summarize_turns
from tvmflow.evaluation.machine_state import TurnState, disturbance, number_states
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.evaluation.turn_statistics import LEAST_BLOCKS, estimate_time, ratio_between, sign_interval
from tvmflow.report.tables import best_baseline, shown_advantage, shown_best, shown_latency, shown_states

RULES = LatencyRules(warmup_runs=2, turns=60, turn_ms=50.0, max_seconds=30.0, max_foreign_load=0.1)
NEAR_NS, FAR_NS = 60.0, 340.0


class Machine:
    """A machine of two processors whose time passes only while something is measured on it.

    foreign: processors that others keep busy. slow(at): how many times longer a run that begins then takes. far(at):
    whether the cores are far apart then. waits(at): the share of the time that a run then waits for a processor.
    """

    def __init__(
        self,
        foreign: float = 0.0,
        slow: Callable[[float], float] = lambda _: 1.0,
        far: Callable[[float], bool] = lambda _: False,
        waits: Callable[[float], float] = lambda _: 0.0,
    ) -> None:
        self.now, self.own, self.foreign, self.slow, self.far, self.waits = 0.0, 0.0, foreign, slow, far, waits
        self._begun, self._was_ns, self._waited = 0.0, None, 0.0

    def library(self, name: str, base_s: float, noise: float = 0.01, far_s: float | None = None) -> TimedModel:
        """far_s: of a run while the cores are far apart."""
        generator = np.random.default_rng(len(name))

        def timed_runs(count: int) -> list[float]:
            times = []
            for _ in range(count):
                run_s = far_s if far_s is not None and self.far(self.now) else base_s
                took = run_s * self.slow(self.now) * math.exp(noise * generator.standard_normal())
                wait = self.waits(self.now)
                self._waited += took * wait / (1 - wait)
                times.append(took / (1 - wait))
                self.now += times[-1]
            return times

        return TimedModel(name, timed_runs)

    def begin(self) -> None:
        self._begun, self._waited = self.now, 0.0

    def end(self, group: int | None) -> TurnState:
        trip_ns = FAR_NS if self.far(self.now) else NEAR_NS
        was_ns, self._was_ns = self._was_ns, trip_ns
        wall_s = self.now - self._begun
        return TurnState(trip_ns, was_ns, 1000.0, self._waited / wall_s, None, self.foreign / 2, None)


def _measured(machine: Machine, *bases_s: float) -> Measured:
    contestants = [machine.library(name, base) for name, base in zip(("tvmflow", "peer"), bases_s, strict=True)]
    return measure_latencies(contestants, RULES, 2, machine)


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def _interval(latency: Latency) -> tuple[float, float]:
    assert latency.low_ms is not None and latency.high_ms is not None
    assert latency.low_ms <= latency.median_ms <= latency.high_ms
    return latency.low_ms, latency.high_ms


def test_on_a_quiet_machine_latency_and_ratio_have_no_badge() -> None:
    measured = _measured(Machine(), 0.010, 0.015)
    latency = measured.latency["tvmflow"]
    assert latency.badges == () and latency.median_ms == pytest.approx(10, rel=0.01)
    assert latency.turns == 60 == latency.undisturbed
    low, high = _interval(latency)
    assert high / low < 1.02
    shown = measured.advantages["peer"]
    assert shown.times_faster == pytest.approx(1.5, rel=0.01) and shown.low is not None and shown.high is not None
    assert shown.low <= shown.times_faster <= shown.high


def test_a_foreign_load_leaves_the_number_and_gives_it_a_badge() -> None:
    """Every third turn goes undisturbed: these say what a quiet machine would."""
    machine = Machine(foreign=1.6, waits=lambda now: 0.0 if int(now / 0.4) % 3 == 0 else 0.5)
    measured = _measured(machine, 0.0010, 0.0020)
    latency = measured.latency["tvmflow"]
    assert latency.median_ms == pytest.approx(1.0, rel=0.02) and latency.badges == ("others used 80%",)
    shown = measured.advantages["peer"]
    assert shown.times_faster == pytest.approx(2.0, rel=0.02) and shown.badges == latency.badges


def test_where_every_turn_is_disturbed_the_lowest_tenth_counts() -> None:
    generator = np.random.default_rng(3)
    machine = Machine(foreign=2.0, waits=lambda _: float(generator.choice([0.03, 0.03, 0.6])))
    latency = _measured(machine, 0.010, 0.020).latency["tvmflow"]
    assert latency.undisturbed == 0 and latency.turns > 60  # it went on for longer, in vain
    assert latency.median_ms == pytest.approx(10 / 0.97, rel=0.03) and latency.badges[0] == "others used 100%"
    _interval(latency)


def test_two_states_are_told_apart() -> None:
    """The number is that of near cores; what it is far apart stands beside it, and the ratio is of one state."""
    machine = Machine(far=lambda now: int(now / 1.0) % 5 > 0)
    contestants = [machine.library("tvmflow", 0.0068, far_s=0.0152), machine.library("peer", 0.0200, far_s=0.0340)]
    measured = measure_latencies(contestants, RULES, 2, machine)
    latency, shown = measured.latency["tvmflow"], measured.advantages["peer"]
    assert latency.median_ms == pytest.approx(6.8, rel=0.01) and latency.round_trip_ns == NEAR_NS
    assert latency.badges[0].startswith("cores far apart in ")
    (far,) = latency.elsewhere
    assert far.value == pytest.approx(15.2, rel=0.01) and far.round_trip_ns == FAR_NS and far.share > 0.5
    assert shown.times_faster == pytest.approx(20 / 6.8, rel=0.01)
    assert shown.elsewhere[0].value == pytest.approx(34 / 15.2, rel=0.01)


def test_a_far_state_alone_is_shown_as_what_it_is() -> None:
    machine = Machine(far=lambda _: True)
    contestants = [machine.library("tvmflow", 0.0068, far_s=0.0152), machine.library("peer", 0.02)]
    latency = measure_latencies(contestants, RULES, 2, machine).latency["tvmflow"]
    assert latency.median_ms == pytest.approx(15.2, rel=0.01) and latency.round_trip_ns == FAR_NS
    assert latency.badges == () and latency.elsewhere == ()


def test_one_thread_knows_no_distance_between_cores() -> None:
    machine = Machine(far=lambda now: int(now / 1.5) % 2 > 0)
    measured = measure_latencies([machine.library("tvmflow", 0.01), machine.library("peer", 0.02)], RULES, 1, machine)
    latency = measured.latency["tvmflow"]
    assert latency.undisturbed == 60 and latency.round_trip_ns is None and latency.elsewhere == ()


def test_a_lowered_clock_is_left_out() -> None:
    def loop(at: int) -> float:
        return 1300.0 if at % 4 == 0 else 1000.0

    turns = [Turn((0.013 if at % 4 == 0 else 0.010,), 0.05, TurnState(60.0, 60.0, loop(at))) for at in range(60)]
    latency = summarize_turns({"tvmflow": turns}, RULES, 2).latency["tvmflow"]
    assert latency.median_ms == pytest.approx(10) and latency.max_ms == pytest.approx(10) and latency.undisturbed == 45


@pytest.mark.parametrize(
    ("waited", "switches", "runs", "found"),
    [
        (0.04, 3, 8000, None),
        (0.04, 3, 2, "waited"),
        (0.5, 10, 8000, "waited"),
        (0.01, 3, 2, None),
        (0.04, None, 8000, "waited"),
    ],
)
def test_a_wait_counts_by_the_runs_that_it_hits(
    waited: float, switches: int | None, runs: int, found: str | None
) -> None:
    """A pause of 2 ms in one of 8,000 runs does not move their median; in one of two it does."""
    assert disturbance(TurnState(waited=waited, switches=switches), None, runs) == found


def test_a_drift_falls_on_both() -> None:
    same = _measured(Machine(slow=lambda now: 1.0 + now / 10), 0.010, 0.010).advantages["peer"]
    assert same.low is not None and same.high is not None and same.low <= 1 <= same.high
    slower = _measured(Machine(slow=lambda now: 1.0 + now / 10), 0.010, 0.012).advantages["peer"]
    assert slower.times_faster == pytest.approx(1.2, rel=0.03) and slower.low is not None and slower.low > 1


@pytest.mark.parametrize("period_s", [0.05, 0.7, 3.0])
def test_states_that_nobody_sees_make_no_ratio(period_s: float) -> None:
    held = 0
    for seed in range(20):
        machine = Machine(slow=lambda now: 1.6 if int(now / period_s) % 2 else 1.0)
        contestants = [machine.library("a" * (seed + 1), 0.010), machine.library("b" * (seed + 51), 0.010)]
        [shown] = measure_latencies(contestants, RULES, 2, machine).advantages.values()
        held += shown.low is not None and shown.high is not None and shown.low <= 1 <= shown.high
    assert held >= 18  # 19 of 20 at a confidence of 0.95


@given(st.integers(0, 10_000), st.floats(0.3, 3.0), st.floats(0.0, 0.6), st.floats(0.0, 0.9))
@settings(max_examples=examples(15), deadline=None)
def test_printed_times_and_the_printed_ratio_agree(seed: int, factor: float, waits: float, far: float) -> None:
    """In whatever state, however disturbed: 0.123 ms beside 0.384 ms are no 3.92 times."""
    generator = np.random.default_rng(seed)
    spans = generator.random(400)
    machine = Machine(
        waits=lambda now: waits if spans[int(now / 0.13) % 400] > 0.4 else 0.0,
        far=lambda now: spans[int(now) % 400] < far,
    )
    ours, peer = machine.library("tvmflow", 0.0008, 0.05), machine.library("peer", 0.0008 * factor, 0.05)
    rules = LatencyRules(warmup_runs=2, turns=30, turn_ms=20.0, max_seconds=30.0, max_foreign_load=0.1)
    measured = measure_latencies([ours, peer], rules, 2, machine)
    shown, latency = measured.advantages["peer"], measured.latency
    assert shown.times_faster == pytest.approx(latency["peer"].median_ms / latency["tvmflow"].median_ms, rel=0.05)


def test_too_few_rounds_give_a_number_without_an_interval() -> None:
    turns = {name: [Turn((time_s,), time_s)] * (LEAST_BLOCKS - 1) for name, time_s in (("a", 0.01), ("b", 0.02))}
    measured = summarize_turns(turns, RULES, 2)
    assert measured.advantages["b"].times_faster == pytest.approx(2.0) and measured.advantages["b"].low is None
    assert measured.latency["a"].median_ms == pytest.approx(10) and measured.latency["a"].low_ms is None


@given(st.lists(st.floats(0.5, 2.0), min_size=LEAST_BLOCKS, max_size=80), st.floats(0.2, 5.0))
def test_the_interval_holds_the_ratio_and_turns_round_with_it(drifts: list[float], factor: float) -> None:
    theirs = [drift * factor for drift in drifts]
    for is_quiet in (True, False):
        forward, back = ratio_between(drifts, theirs, is_quiet), ratio_between(theirs, drifts, is_quiet)
        assert forward.low is not None and forward.high is not None
        assert forward.low <= forward.value <= forward.high
        assert forward.value == pytest.approx(factor) and back.value == pytest.approx(1 / factor)


def test_intervals_hold_the_median_as_often_as_they_say() -> None:
    """Of noise with a long tail whose neighbours are alike, as that of a machine is: drawn 400 times, 95 % and a margin
    for chance.
    """
    generator = np.random.default_rng(5)
    estimates = []
    for _ in range(400):
        placements = np.repeat(0.02 * generator.standard_normal(15), 4)
        values = np.exp(placements + 0.03 * np.repeat(generator.standard_normal(20), 3))
        values[generator.random(60) < 0.05] *= 3
        estimates.append(estimate_time(list(values)))
    usual = np.median([estimate.value for estimate in estimates])
    held = sum(one.low <= usual <= one.high for one in estimates if one.low is not None and one.high is not None)
    assert 0.93 * 400 <= held < 400
    assert sign_interval([1.0] * (LEAST_BLOCKS - 1)) is None
    assert sign_interval([1, 2, 3, 4, 5, 6]) == (1, 6) and sign_interval([1, 2, 3, 4, 5, 6], 0.999) is None


@pytest.mark.parametrize("slower", [1.0, 1.05])
def test_a_slowdown_of_a_twentieth_is_found_and_none_is_invented(slower: float) -> None:
    found = 0
    for seed in range(40):
        machine = Machine(far=lambda now, seed=seed: int((now + seed) / 2) % 3 == 0)  # type: ignore[misc]
        machine.now = float(seed)
        a, b = (
            machine.library("a" * (seed + 1), 0.002, 0.05, 0.004),
            machine.library("b" * (seed + 51), 0.002 * slower, 0.05, 0.004 * slower),
        )
        rules = LatencyRules(2, 60, 10.0, 30.0, 0.1)
        comparison = compare_libraries(a, b, rules, 2, 0.95, machine)
        found += comparison.low > 1
    assert found >= 38 if slower > 1 else found <= 4


@pytest.mark.parametrize(
    ("trips", "states"),
    [
        ([50, 78, 60, 320, 366, 70, 340], [0, 0, 0, 1, 1, 0, 1]),
        ([180, 212, 190], [0, 0, 0]),
        ([None, None], [0, 0]),
        ([50, 55, 60, 150, 330, 340, 350], [0, 0, 0, None, 1, 1, 1]),
        ([50, 400], [0, 1]),
        ([60, 60, 60, None], [0, 0, 0, None]),
    ],
)
def test_states_lie_apart_by_round_trips_whatever_these_are(
    trips: list[float | None], states: list[int | None]
) -> None:
    assert number_states(trips) == states


def test_a_peer_on_other_threads_is_caught() -> None:
    turns = [Turn((0.01,) * 20, 0.2, TurnState(own_s=0.2 * 3.8))] * 10
    ours = [Turn((0.01,) * 20, 0.2, TurnState(own_s=0.2 * 2))] * 10
    measured = summarize_turns({"tvmflow": ours, "peer": turns}, RULES, threads=2)
    assert measured.latency["peer"].badges == ("ran on 3.8 threads instead of 2",)
    assert measured.advantages["peer"].times_faster is None
    assert measured.advantages["peer"].reason == "peer ran on 3.8 threads instead of 2"
    assert summarize_turns({"peer": turns}, RULES, threads=4).latency["peer"].badges == ()
    assert busy_threads([Turn((0.01,), 0.01)]) is None


def test_contestants_take_turns_in_another_order_each_round() -> None:
    order: list[str] = []

    def runner(name: str) -> TimedModel:
        def timed_runs(count: int) -> list[float]:
            order.append(name)
            return [0.01] * count

        return TimedModel(name, timed_runs)

    turns = measure_interleaved([runner("a"), runner("b"), runner("c")], TurnRules(40, 0.1, 2))
    assert order[:6] == ["a", "a", "b", "b", "c", "c"]  # warm-up, and how long a run takes
    rounds = ["".join(order[at : at + 3]) for at in range(6, len(order), 3)]
    assert len(rounds) == 40 and {"".join(sorted(one)) for one in rounds} == {"abc"} and len(set(rounds)) == 6
    assert all(len(turn.times_s) == 10 for taken in turns.values() for turn in taken)
    long = measure_interleaved([TimedModel("slow", lambda count: [5.0] * count)], TurnRules(10, 0.1, 2, max_seconds=40))
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
        if runs != 3:  # of the warm-up and of the turn: a stop is told once
            _, status = os.waitpid(child.pid, os.WUNTRACED)
            waiting.append(os.WIFSTOPPED(status))
        return [0.01] * runs

    try:
        measure_interleaved([TimedModel("it", ask, child.pid), TimedModel("other", other)], TurnRules(1, 0.01, 1, 1))
    finally:
        child.kill()
        child.wait()
    assert waiting == [True, True]


def _card(measured: Measured) -> Scorecard:
    latency = latency_by_part(measured.latency["tvmflow"])
    return scorecard(latency=latency, peers={"peer": measured.latency["peer"]}, advantages=measured.advantages)


def test_what_is_printed() -> None:
    shown = _card(_measured(Machine(), 0.010, 0.015))
    assert shown.advantages["peer"].is_shown and shown_advantage(shown, "peer").startswith("1.5")
    assert best_baseline(shown) == "peer" and shown_best(shown).endswith("(peer)")
    assert shown_latency(shown.latency.compute).startswith(("10 ms (9.9", "9.95 ms (9.9"))
    assert shown_states(shown.latency.compute) == "cores 60 ns apart"
    same = _card(_measured(Machine(), 0.010, 0.010))
    assert not same.advantages["peer"].is_shown and shown_advantage(same, "peer").endswith(": no difference shown")
    busy = _card(_measured(Machine(foreign=1.5), 0.010, 0.080))
    assert busy.advantages["peer"].times_faster == pytest.approx(8, rel=0.01)
    assert re.fullmatch(r"9\.9\d ms \(9\.9\d to (10|9\.9\d)\), others used 75%", shown_latency(busy.latency.compute))
    assert shown_advantage(scorecard(), "peer") == "-"
