"""Test the comparison of cells at two moments, unit by unit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tvmflow.evaluation.fleet import UnitChange, changes_of_units, suspects


def _row(unit: str, latency_ms: float, **given: Any) -> dict[str, Any]:
    number = given.pop("number", 0)
    return {
        **{
            "cell": "m@t:float32",
            "device": "phone",
            "unit": unit,
            "build": "15/1",
            "tvm": "0.26.0",
            "sha256": "a" * 64,
        },
        **{"library": "a" * 12, "when": "2026-11-01 10:00", "run_id": f"{unit} {latency_ms} {number} {given}"},
        **{"latency_ms": latency_ms, "low_ms": 0.99 * latency_ms, "high_ms": 1.01 * latency_ms, "badges": ""},
        **{"round_trip_ns": 60.0, "accuracy_share": 0.9, "memory_bytes": 1e6, "library_bytes": 1e5},
        **given,
    }


def _changes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> dict[str, UnitChange]:
    return {one.unit: one for one in changes_of_units(before, now, max_accuracy_drop=0.01)}


def test_alternating_units_are_each_compared_with_themselves() -> None:
    """Phone b is twice as slow as phone a, and both became 1.5 times slower: neither hides behind the other."""
    found = _changes([_row("a", 1.0), _row("b", 2.0)], [_row("a", 1.5, number=1), _row("b", 3.0, number=1)])
    assert [(one.verdict, one.cause) for one in found.values()] == [("slower", "fleet"), ("slower", "fleet")]
    assert found["a"].ratio == pytest.approx(1.5) and found["b"].ratio == pytest.approx(1.5)
    assert found["a"].changed == ()


def test_one_sick_unit_is_told_from_the_fleet_and_from_a_unit_without_others() -> None:
    before = [_row(unit, 1.0) for unit in "abc"] + [_row("z", 1.0, device="board")]
    now = [_row("a", 1.0, number=1), _row("b", 1.4), _row("c", 0.99), _row("z", 1.3, device="board")]
    found = changes_of_units(before, now, 0.01)
    assert [(one.unit, one.cause) for one in found] == [("z", "alone"), ("a", ""), ("b", "unit"), ("c", "")]
    assert suspects(found) == [
        "unit b of phone got worse in 1 of its 1 cells, other units did not: look at this device"
    ]
    new_tvm = {"tvm": "0.27.0", "sha256": "b" * 64}
    [said] = suspects(changes_of_units(before[:2], [_row(unit, 1.2, **new_tvm) for unit in "ab"], 0.01))
    assert said == (
        "every unit of phone got worse in m@t:float32: look at what changed for all of them "
        "(TVM 0.26.0 -> 0.27.0, library)"
    )


@pytest.mark.parametrize(("step", "verdict"), [(1.15, "slower"), (1.0, "same"), (0.8, "faster")])
def test_a_step_of_15_percent_is_seen_also_where_single_intervals_are_wide(step: float, verdict: str) -> None:
    """Intervals of 10 % hide it in one measurement; five on each side show how much they really vary."""
    wide = [0.98, 1.0, 1.01, 1.0, 0.99]

    def measured(factor: float, count: int, first: int = 0) -> list[dict[str, Any]]:
        return [
            _row("a", factor * ms, low_ms=0.9 * factor * ms, high_ms=1.1 * factor * ms, number=first + at)
            for at, ms in enumerate(wide[:count])
        ]

    assert _changes(measured(1.0, 5), measured(step, 5, first=5))["a"].verdict == verdict
    assert _changes(measured(1.0, 1), measured(1.15, 1))["a"].verdict == "same"
    assert _changes([_row("a", 1.0)], [_row("a", 1.15)])["a"].verdict == "slower"


def test_a_creep_is_seen_between_its_ends() -> None:
    steps = [_row("a", 1.0 * 1.015**at) for at in range(11)]
    assert all(_changes([a], [b])["a"].verdict == "same" for a, b in itertools.pairwise(steps))
    assert _changes(steps[:1], steps[-1:])["a"].verdict == "slower"


def test_only_measurements_in_one_state_of_the_machine_are_compared() -> None:
    before = [_row("a", 1.0), _row("a", 2.0, round_trip_ns=400.0)]
    assert _changes(before, [_row("a", 1.01)])["a"].verdict == "same"
    assert _changes(before[1:], [_row("a", 1.01)])["a"].verdict == "no verdict (different states of the machine)"


def test_a_disturbed_measurement_gives_way_to_the_quiet_one_before() -> None:
    now = [_row("a", 1.0, number=1), _row("a", 3.0, badges="others used 40%")]
    assert _changes([_row("a", 1.0)], now)["a"].verdict == "same"
    only = _changes([_row("a", 1.0)], now[1:])["a"]
    assert only.verdict == "no verdict (others used 40%)" and only.worse == ()


def test_accuracy_memory_and_size_count_and_an_update_of_the_system_is_named() -> None:
    one = _changes(
        [_row("a", 1.0)],
        [_row("a", 1.0, build="15/2", accuracy_share=0.85, memory_bytes=2e6, library_bytes=1.04e5)],
    )["a"]
    assert one.worse == ("accuracy 90.00% -> 85.00%", "memory 1,000,000 -> 2,000,000 bytes")
    assert one.changed == ("system 15/1 -> 15/2",) and one.verdict == "same"


def test_what_was_not_measured_since_is_left_out() -> None:
    assert _changes([_row("a", 1.0)], [_row("a", 1.0)]) == {}
    assert _changes([_row("a", 1.0)], [_row("b", 1.0)]) == {}
