"""Agreement, latency, comparison and the gate: verdicts, never numbers that nobody may trust."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import small_params
from tvmflow.errors import AgreementError
from tvmflow.evaluation.agreement import check_golden, compare
from tvmflow.evaluation.comparison import compare_interleaved, interval
from tvmflow.evaluation.latency import LatencyRules, measure, summarize
from tvmflow.params import Params
from tvmflow.release.gate import judge
from tvmflow.report.tables import shown_latency

RULES = LatencyRules(warmup_runs=2, min_runs=30, min_seconds=0.01, max_seconds=0.5, max_spread=0.15)


def test_agreement_of_equal_and_of_different_answers() -> None:
    a = np.array([[1.0, 2.0], [3.0, 1.0]])
    same = compare(a, a)
    assert (same.top1_agreement, same.max_relative_error, same.samples) == (1.0, 0.0, 2)
    assert same.cosine == pytest.approx(1.0)
    other = compare(a[:, ::-1], a)
    assert other.top1_agreement == 0.0 and other.max_absolute_error == 2.0


@pytest.mark.parametrize("answers", [np.zeros((2, 3)), np.array([[np.nan, 0.0]]), np.array([[np.inf, 0.0]])])
def test_answers_of_another_shape_or_not_finite_are_refused(answers: Any) -> None:
    with pytest.raises(AgreementError):
        compare(answers, np.zeros((1, 2)))


def test_a_golden_check_raises_and_names_the_stage() -> None:
    with pytest.raises(AgreementError, match="graph_pack changes the answers"):
        check_golden("graph_pack", np.array([[1.0, 2.1]]), np.array([[1.0, 2.0]]), 1e-3)


def test_latency_collects_enough_runs_and_says_when_it_is_unsteady() -> None:
    calls: list[int] = []

    def steady(count: int) -> list[float]:
        calls.append(count)
        return [0.001] * count

    found = measure(steady, RULES)
    assert found.steady and found.runs >= 30 and found.median_ms == pytest.approx(1.0)
    assert calls[0] == 2  # the warm-up
    generator = np.random.default_rng(0)
    wild = measure(lambda count: list(generator.choice([0.001, 0.004], count)), RULES)
    assert not wild.steady
    assert shown_latency(wild.to_json()).startswith("unsteady")
    assert "ms" in shown_latency(found.to_json())


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=50))
def test_latency_statistics_are_ordered(times: list[float]) -> None:
    found = summarize(times, RULES)
    assert found.min_ms <= found.median_ms <= found.p90_ms <= found.max_ms * (1 + 1e-12)


def test_interleaved_comparison_cancels_a_drift() -> None:
    clock = {"drift": 1.0}

    def library(base: float) -> Any:
        def timed(count: int) -> list[float]:
            clock["drift"] *= 1.02  # the device gets slower with every measurement
            return [base * clock["drift"]] * count

        return timed

    found = compare_interleaved(library(0.01), library(0.01), rounds=12, confidence=0.95)
    assert found.low < 1.0 < found.high and abs(found.ratio - 1) < 0.005
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
    rules = Params.model_validate(small_params()).release
    verdict = judge(card, champion, interval(log_ratios, 0.95) if log_ratios else None, rules)
    assert verdict.passed == (says is None)
    if says:
        assert any(says in reason for reason in verdict.reasons)
