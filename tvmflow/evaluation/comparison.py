"""Compare two libraries on one device by interleaved timing, with a confidence interval."""

from __future__ import annotations

from tvmflow.evaluation.interleaved_timing import TimedModel, classify_turns, measure_interleaved, ratio_of
from tvmflow.evaluation.latency import LatencyRules, summarize_turns
from tvmflow.evaluation.latency_ratio import Comparison
from tvmflow.evaluation.machine_state import Watch
from tvmflow.support.errors import StoreError


def compare_exact(a: int, b: int, of: str) -> Comparison:
    """Compare two numbers that are the same in every run. Raises StoreError if A is not positive."""
    if a <= 0:
        raise StoreError(f"{a} {of} of the champion", "more than none")
    return Comparison(b / a, b / a, b / a, 1, 1.0, of)


def compare_libraries(
    a: TimedModel, b: TimedModel, rules: LatencyRules, threads: int, confidence: float, watch: Watch | None = None
) -> Comparison:
    """Time A and B interleaved; return the latency of B over that of A, over rounds in which both were in one machine
    state.
    """
    turns = measure_interleaved([a, b], rules.turn_rules, watch)
    ratio, rounds, _ = ratio_of(classify_turns(turns, threads), a.name, b.name, None, confidence)
    if ratio.low is None or ratio.high is None:
        raise StoreError(
            f"{len(rounds)} rounds give no interval at a confidence of {confidence:g}",
            "more rounds, or a lower confidence",
            "raise release.compare_rounds",
        )
    latency = summarize_turns(turns, rules, threads).latency
    badges = tuple(dict.fromkeys((*latency[a.name].badges, *latency[b.name].badges)))
    return Comparison(ratio.value, ratio.low, ratio.high, len(rounds), confidence, badges=badges)
