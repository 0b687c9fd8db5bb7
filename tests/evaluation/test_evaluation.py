"""Agreement, latency, comparison and the gate: verdicts, never numbers that nobody may trust."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmflow.backends.vta import VtaBackend
from tvmflow.errors import StoreError
from tvmflow.evaluation.comparison import compare_exact, compare_interleaved, interval
from tvmflow.evaluation.latency import LatencyRules, measure, summarize
from tvmflow.params import ReleaseParams
from tvmflow.release.candidate import cost_of_one_run
from tvmflow.release.gate import judge
from tvmflow.report.tables import part_table, shown_latency
from tvmflow.targets.resolve import host_target
from tvmflow.vta.config import COUNTERS_FUNCTION

RULES = LatencyRules(
    warmup_runs=2, min_runs=30, min_seconds=0.01, max_seconds=0.5, max_spread=0.15, max_foreign_load=0.1
)
RELEASE = ReleaseParams(max_slowdown=0.5, min_coverage=0.5)


def test_latency_collects_enough_runs_and_says_when_it_is_unsteady() -> None:
    calls: list[int] = []

    def steady(count: int) -> list[float]:
        calls.append(count)
        return [0.001] * count

    latency = measure(steady, RULES)
    assert latency.steady and latency.runs >= 30 and latency.median_ms == pytest.approx(1.0)
    assert calls[0] == 2  # the warm-up
    generator = np.random.default_rng(0)
    wild = measure(lambda count: list(generator.choice([0.001, 0.004], count)), RULES)
    assert not wild.steady
    assert shown_latency(wild.to_json()).startswith("unsteady")
    assert "ms" in shown_latency(latency.to_json())


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=50))
def test_latency_statistics_are_ordered(times: list[float]) -> None:
    latency = summarize(times, RULES)
    assert latency.min_ms <= latency.median_ms <= latency.p90_ms <= latency.max_ms * (1 + 1e-12)


def test_interleaved_comparison_cancels_a_drift() -> None:
    clock = {"drift": 1.0}

    def library(base: float) -> Any:
        def timed(count: int) -> list[float]:
            clock["drift"] *= 1.02  # the device gets slower with every measurement
            return [base * clock["drift"]] * count

        return timed

    comparison = compare_interleaved(library(0.01), library(0.01), rounds=12, confidence=0.95)
    assert comparison.low < 1.0 < comparison.high and abs(comparison.ratio - 1) < 0.005
    slower = compare_interleaved(library(0.01), library(0.012), rounds=12, confidence=0.95)
    assert slower.low > 1.1


def test_the_interval_narrows_with_rounds() -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.05, 100).tolist()
    few, many = interval(noise[:6], 0.95), interval(noise, 0.95)
    assert many.high - many.low < few.high - few.low


def _card(**changes: Any) -> dict[str, Any]:
    card: dict[str, Any] = {
        "latency": {"compute": {"steady": True, "spread": 0.01}},
        "agreement": {"top1_agreement": 1.0},
        "coverage": 1.0,
        "accuracy": {"built": 0.99, "source": 0.99},
    }
    return card | changes


@pytest.mark.parametrize(
    ("card", "champion", "log_ratios", "says"),
    [
        (_card(), None, None, None),
        (_card(), 0.99, [0.0, 0.001, -0.001, 0.0], None),
        (_card(accuracy=None), None, None, None),
        (_card(latency={"compute": {"steady": False, "spread": 0.5}}), None, None, "unsteady"),
        (_card(agreement={"top1_agreement": 0.9}), None, None, "agreement"),
        (_card(coverage=0.4), None, None, "schedules were measured for 40.0%"),
        (_card(accuracy={"built": 0.9, "source": 0.99}), None, None, "below the source"),
        (_card(accuracy={"built": 0.985, "source": 0.989}), 0.995, None, "below the champion"),
        (_card(), 0.99, [0.7, 0.71, 0.69, 0.7], "slower than the champion"),
        (_card(), 0.99, [0.9, -0.9, 0.8, -0.7], "not shown to be as fast"),
    ],
)
def test_the_gate(
    card: dict[str, Any], champion: float | None, log_ratios: list[float] | None, says: str | None
) -> None:
    verdict = judge(card, champion, interval(log_ratios, 0.95) if log_ratios else None, RELEASE)
    assert verdict.passed == (says is None)
    if says:
        assert any(says in reason for reason in verdict.reasons)


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
    simulated = _card(latency={"compute": {"steady": False, "spread": 0.5}}, part={"simulated": True})
    verdict = judge(simulated, None, compare_exact(40, 500, "estimated cycles"), RELEASE)
    assert [reason for reason in verdict.reasons if "unsteady" in reason] == []
    assert any("slower than the champion: ratio 12.5000 of estimated cycles" in reason for reason in verdict.reasons)
    with pytest.raises(StoreError, match="0 estimated cycles"):
        compare_exact(0, 1, "estimated cycles")


def test_the_table_of_an_accelerator_has_a_row_for_each_region_and_one_for_all() -> None:
    names = ["inp_load_nbytes", "wgt_load_nbytes", "acc_load_nbytes", "uop_load_nbytes", "out_store_nbytes"]
    names += ["dram_nbytes", "gemm_counter", "alu_counter", "insn_count"]
    regions = [
        {"name": f"vta{at}", "counters": dict.fromkeys(names, 10 * (at + 1)), "cycles": 100 * (at + 1)}
        for at in range(2)
    ]
    part = {"name": "d", "mode": "optimized", "launches": 2, "counters": dict.fromkeys(names, 30), "cycles": 300}
    table = part_table({"part": {**part, "regions": regions}})
    columns = list(zip(*table.rows, strict=True))
    assert columns[0] == ("vta0", "vta1", "all") and columns[1] == ("10", "20", "30")
    assert columns[6] == ("50", "100", "150") and columns[-1] == ("10%", "10%", "10%")
    assert len(part_table({"part": part}).rows) == 1
