"""Test goals: what is missed, what no other beats, what is tuned further, what is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvmflow.api.searches import SearchResult
from tvmflow.config.overrides import CellOverrides
from tvmflow.shipping.search.goals import Candidate, Goals, Numbers, choose, pareto, split
from tvmflow.support.errors import UsageError
from tvmflow.support.quantities import BYTES, MILLISECONDS, SHARES, quantity

GOALS = Goals(max_drop=0.005, max_latency_ms=8.0)


def _one(precision: str, ms: float, drop: float, target: str = "phone", trials: int = 8) -> Candidate:
    numbers = Numbers(drop, ms, 0.98 * ms, 1.02 * ms, memory_bytes=1e6, library_bytes=1e5)
    return Candidate(f"cats@{target}:{precision}", CellOverrides(), trials, "", state="measured", numbers=numbers)


def test_what_a_goal_lacks_is_said_with_both_numbers() -> None:
    numbers = Numbers(drop=0.02, latency_ms=9.0, library_bytes=2e6)
    assert numbers.missed(Goals()) == ()
    assert numbers.missed(replace(GOALS, max_memory_bytes=1e6, max_library_bytes=3e6)) == (
        "accuracy drop 2.00% above 0.50%",
        "latency 9 ms above 8 ms",
        "memory unknown",
    )


def test_the_best_are_those_that_no_other_of_their_target_beats() -> None:
    fast, exact = _one("int8", 2.0, 0.01), _one("float32", 6.0, 0.0)
    slow, same = _one("float16", 7.0, 0.001), _one("bfloat16", 6.0, 0.0)
    other = _one("float32", 60.0, 0.0, target="board")
    lost = replace(_one("int8", 1.0, 0.0), state="failed")
    untimed = replace(other, numbers=replace(other.numbers, latency_ms=None, drop=0.5))
    assert pareto([slow, exact, lost, fast, other, same]) == [other, fast, same, exact]
    assert pareto([exact, untimed]) == [untimed, exact], "another target"
    assert pareto([other, untimed]) == [other], "what is not known of one is not compared"


def test_only_what_may_win_is_tuned_further() -> None:
    exact, wrong, late = _one("float32", 6.0, 0.0), _one("vta_int8", 1.0, 0.3), _one("float16", 12.5, 0.0)
    beaten, near = _one("bfloat16", 9.5, 0.0), _one("int8", 5.0, 0.004)
    failed = replace(exact, state="failed", why="no device")
    shown, front = split([exact, wrong, late, beaten, near, failed], GOALS)
    assert front == [exact, near]
    assert [one.why.removeprefix("not tuned further: ") for one in shown] == [
        "",
        "accuracy drop 30.00% above 0.50%",
        "latency 12.5 ms: more than 1.5 times 8 ms",
        "cats@phone:float32 is more than 1.5 times faster and no worse",
        "",
        "no device",
    ]


def test_of_equal_latencies_the_one_that_loses_least_is_chosen() -> None:
    exact, near = _one("float32", 5.1, 0.0), _one("int8", 5.0, 0.004)
    faster, slow = _one("int8", 3.0, 0.0051), _one("float32", 7.0, 0.0, target="board")
    chosen = choose([near, exact, faster, slow], GOALS)
    assert chosen == {"board": slow, "phone": exact}, "its interval includes the fastest that meets the goals"
    assert choose([faster], GOALS) == {} and choose([faster], Goals(max_drop=0.01)) == {"phone": faster}
    assert choose([near, replace(exact, numbers=_one("float32", 6.0, 0.0).numbers)], GOALS) == {"phone": near}
    more, few = _one("int8", 5.0, 0.004, trials=64), _one("int8", 5.0, 0.004)
    assert choose([more, few], GOALS) == {"phone": few}, "a budget that gains nothing is not spent again"


def test_a_target_without_a_candidate_that_meets_the_goals_is_named() -> None:
    result = SearchResult(
        "cats", GOALS, ("phone", "board"), (_one("float32", 6.0, 0.0), _one("int8", 60.0, 0.0, "board"))
    )
    assert result.unmet == ("board",)
    rows = result.to_json()["candidates"]
    assert [(row["is_best"], row["is_chosen"]) for row in rows] == [(True, True), (True, False)]


def test_quantities_have_units() -> None:
    assert quantity("x", "0.5%", SHARES) == pytest.approx(0.005) and quantity("x", "0.005", SHARES) == 0.005
    assert quantity("x", "8ms", MILLISECONDS) == 8 and quantity("x", "1.5 s", MILLISECONDS) == 1500
    assert quantity("x", "64MB", BYTES) == 64e6 and quantity("x", "1MiB", BYTES) == 1 << 20
    for text, units in (("8", MILLISECONDS), ("-1ms", MILLISECONDS), ("1e9ms", MILLISECONDS), ("nan", SHARES)):
        with pytest.raises(UsageError, match="--x"):
            quantity("--x", text, units)
    with pytest.raises(UsageError):
        quantity("--max-drop", "101%", SHARES)
