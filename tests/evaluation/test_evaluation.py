"""Test agreement, latency, comparison and release gate: each gives a verdict or the reason for none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scorecards import AGREEMENT, accuracy, latency, latency_by_part, scorecard, simulated_part
from tvmflow.backends.vta import VtaBackend
from tvmflow.config.params import ReleaseParams
from tvmflow.evaluation.comparison import compare_exact, compare_libraries
from tvmflow.evaluation.interleaved_timing import TimedModel, Turn
from tvmflow.evaluation.latency import LatencyRules, measure, summarize_turns
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.evaluation.quality_warnings import CALIBRATED_ON_NOISE
from tvmflow.evaluation.regression import change_between, comparable_before
from tvmflow.evaluation.scorecard import Scorecard
from tvmflow.report.tables import part_table
from tvmflow.shipping.gates.cell import judge
from tvmflow.shipping.side_by_side import cost_of_one_run
from tvmflow.support.errors import StoreError
from tvmflow.targets.resolve import host_target
from tvmflow.vta.isa.config import COUNTERS_FUNCTION

RULES = LatencyRules(warmup_runs=2, turns=12, turn_ms=1.0, max_seconds=0.5, max_foreign_load=0.1)
RELEASE = ReleaseParams(max_slowdown=0.5, min_coverage=0.5)


def test_latency_collects_enough_turns() -> None:
    calls: list[int] = []

    def constant(count: int) -> list[float]:
        calls.append(count)
        return [0.001] * count

    latency = measure(constant, RULES)
    assert latency.turns == 12 and latency.median_ms == pytest.approx(1.0) and calls[0] == 2  # the warm-up
    generator = np.random.default_rng(0)
    wild = measure(lambda count: list(generator.choice([0.001, 0.004], count)), RULES)
    assert wild.low_ms is not None and wild.high_ms is not None and wild.high_ms > 2 * wild.low_ms


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=50))
def test_latency_statistics_are_ordered(times: list[float]) -> None:
    latency = summarize_turns({"it": [Turn((time_s,), time_s) for time_s in times]}, RULES, 0).latency["it"]
    assert latency.min_ms <= latency.median_ms <= latency.p90_ms * (1 + 1e-12) <= latency.max_ms * (1 + 1e-12)


def test_a_comparison_cancels_a_drift() -> None:
    clock = {"drift": 1.0}

    def library(name: str, base: float) -> TimedModel:
        def timed(count: int) -> list[float]:
            clock["drift"] *= 1.005  # the device gets slower with every measurement
            return [base * clock["drift"]] * count

        return TimedModel(name, timed)

    rules = replace(RULES, turns=30, turn_ms=10.0, max_seconds=100.0)
    comparison = compare_libraries(library("a", 0.01), library("b", 0.01), rules, 2, confidence=0.95)
    assert comparison.low <= 1.0 <= comparison.high and abs(comparison.ratio - 1) <= 0.0051
    slower = compare_libraries(library("a", 0.01), library("b", 0.012), rules, 2, confidence=0.95)
    assert slower.low > 1.1
    with pytest.raises(StoreError, match="5 rounds"):
        compare_libraries(library("a", 0.01), library("b", 0.01), replace(rules, turns=5), 2, confidence=0.95)


BUSY = ("others used 79%",)
CARD = scorecard(accuracy=accuracy(0.99, 0.99))


@pytest.mark.parametrize(
    ("card", "champion", "ratio", "says"),
    [
        (CARD, None, None, None),
        (CARD, 0.99, (1.0, 0.98, 1.02, ()), None),
        (CARD, 0.99, (1.0, 0.98, 1.02, BUSY), None),  # the interval settles it, on a busy machine too
        (replace(CARD, accuracy=None), None, None, None),
        # There is nothing to be slower than.
        (replace(CARD, latency=latency_by_part(latency(badges=BUSY))), None, None, None),
        (replace(CARD, agreement=replace(AGREEMENT, top1_agreement=0.9)), None, None, "agreement"),
        (replace(CARD, warnings=(CALIBRATED_ON_NOISE,)), None, None, "random inputs"),
        (replace(CARD, coverage=0.4), None, None, "schedules were measured for 40.0%"),
        (replace(CARD, accuracy=accuracy(0.9, 0.99)), None, None, "below the source"),
        (replace(CARD, accuracy=accuracy(0.985, 0.989)), 0.995, None, "below the champion"),
        (CARD, 0.99, (2.0, 1.9, 2.1, BUSY), "slower than the champion"),
        (CARD, 0.99, (1.2, 0.8, 1.8, ()), "more rounds narrow the interval (release.compare_rounds)"),
        (
            CARD,
            0.99,
            (1.2, 0.8, 1.8, BUSY),
            "at most 1.5 (release.max_slowdown); the machine was disturbed (others used 79%): promote with "
            "--wait-quiet",
        ),
    ],
)
def test_the_gate(card: Scorecard, champion: float | None, ratio: tuple[Any, ...] | None, says: str | None) -> None:
    comparison = Comparison(*ratio[:3], 60, 0.95, badges=ratio[3]) if ratio else None
    reasons = judge(card, champion, comparison, RELEASE)
    assert (reasons == ()) == (says is None), reasons
    if says:
        assert any(says in reason for reason in reasons), reasons


def _row(latency_ms: float | None, **more: Any) -> dict[str, Any]:
    interval = {"low_ms": latency_ms and 0.995 * latency_ms, "high_ms": latency_ms and 1.005 * latency_ms}
    place = {"device": "cpu-znver4-t2", "unit": "host-1", "build": "", "round_trip_ns": 60.0, "badges": ""}
    return {"latency_ms": latency_ms, **interval, **place, **more}


@pytest.mark.parametrize(
    ("before", "now", "verdict", "why"),
    [
        (_row(1.0), _row(1.01), "same", ""),
        (_row(1.0), _row(1.05), "slower", ""),
        (_row(1.0), _row(0.9), "faster", ""),
        (_row(1.0), _row(1.5, badges=BUSY[0]), None, BUSY[0]),
        (_row(1.0, badges=BUSY[0]), _row(0.8), None, BUSY[0]),
        (_row(1.0), _row(0.8, badges=BUSY[0]), "faster", ""),  # a disturbance makes nothing faster
        (_row(1.0, badges=BUSY[0]), _row(1.5), "slower", ""),
        (_row(None), _row(1.0), None, "no latency"),
        (_row(1.0), _row(2.0, round_trip_ns=340.0), None, "different states of the machine"),
        (_row(1.0), _row(2.0, round_trip_ns=None), "slower", ""),
        (_row(1.0), _row(2.0, unit="host-2"), None, "different units of the device"),
    ],
)
def test_a_change_between_measurements(before: Any, now: Any, verdict: str | None, why: str) -> None:
    change = change_between(before, now)
    assert (change.verdict, change.why) == (verdict, why)


def test_a_measurement_is_compared_with_the_last_one_like_it() -> None:
    rows = [_row(1.0), _row(1.1, unit="host-2"), _row(2.0, round_trip_ns=340.0), _row(None)]
    assert (
        comparable_before(rows, _row(1.0)) == rows[0]
        and comparable_before(rows, _row(2.0, round_trip_ns=330.0)) == rows[2]
    )
    assert comparable_before(rows, _row(1.0, build="14")) is None


def test_of_a_simulated_accelerator_cycles_count_and_not_the_simulators_time() -> None:
    class Session:
        ran: dict[str, dict[str, int]] = {"old": {"cycles": 500, "runs": 7}, "new": {"cycles": 40, "runs": 2}}  # noqa: RUF012

        def call(self, name: str) -> str:
            assert name == COUNTERS_FUNCTION
            return json.dumps(self.ran)

    class Model:
        def __init__(self, *programs: str) -> None:
            self.programs = programs

        def invoke(self) -> None:
            for name in self.programs:
                session.ran[name]["runs"] += 1

    session: Any = Session()

    def cost(target: str, *programs: str) -> int | None:
        backend = VtaBackend(replace(host_target(), kind="vta", options={"config": {"target": target}}))
        return cost_of_one_run(backend, session, Model(*programs))  # type: ignore[arg-type]

    old, new, both = (cost("sim", *names) for names in (("old",), ("new",), ("old", "new")))
    assert (old, new, both) == (500, 40, 540) and cost("pynq", "old") is None
    comparison = compare_exact(500, 540, "estimated cycles")
    assert (comparison.low, comparison.ratio, comparison.high) == (1.08, 1.08, 1.08) and str(
        comparison
    ) == "1.0800 of estimated cycles"
    simulated = scorecard(part=simulated_part())
    reasons = judge(simulated, None, compare_exact(40, 500, "estimated cycles"), RELEASE)
    assert any("slower than the champion: ratio 12.5000 of estimated cycles" in reason for reason in reasons)
    with pytest.raises(StoreError, match="0 estimated cycles"):
        compare_exact(0, 1, "estimated cycles")


def test_the_table_of_an_accelerator_has_a_row_for_each_region_and_one_for_all() -> None:
    names = ["inp_load_nbytes", "wgt_load_nbytes", "acc_load_nbytes", "uop_load_nbytes", "out_store_nbytes"]
    names += ["dram_nbytes", "gemm_counter", "alu_counter", "insn_count"]
    regions = [
        {"name": f"vta{at}", "counters": dict.fromkeys(names, 10 * (at + 1)), "cycles": 100 * (at + 1)}
        for at in range(2)
    ]
    part = {"mode": "optimized", "launches": 2, "counters": dict.fromkeys(names, 30), "cycles": 300}
    table = part_table(simulated_part(**part, regions=regions))
    columns = list(zip(*table.rows, strict=True))
    assert columns[0] == ("vta0", "vta1", "all") and columns[1] == ("10", "20", "30")
    assert columns[6] == ("50", "100", "150") and columns[-1] == ("10%", "10%", "10%")
    assert len(part_table(simulated_part(**part)).rows) == 1
